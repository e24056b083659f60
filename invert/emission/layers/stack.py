"""Stacks runs of consecutive layers that compute the same.

The first layer of a run represents all of them, and each of its parameters the corresponding ones
of the others, found by matching the programs of the layers.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from invert._errors import EmissionError
from invert._private.jax import close_like, open_jaxpr
from invert.emission.layers.cut import WHOLE, Assign, Layer, LayerCall
from invert.emission.layers.links import passed_on
from invert.emission.python.naming import plural
from invert.emission.sizes.program import Program
from invert.ir import traced_form
from invert.ir.graph import Graph, read_by
from invert.ir.interpret import OnEqn, evaluate, interpret
from invert.ir.jaxprs import map_jaxprs
from invert.ir.loops import ScanParts
from invert.ir.match import Match
from invert.ir.merging import program_key
from invert.ir.size_slices import with_slices
from invert.ir.types import AnyJaxpr, Atom, Eqn, Jaxpr, Literal, ShapedArray, Value, Var

# As many equations of equal layers compile much faster as a scan: 32 blocks of a transformer and
# their gradient in half of the time, 16 in 0.8, while eight take longer (`benchmarks/layers.py`).
PAYS = 1000

_T = TypeVar("_T")
_S = TypeVar("_S")
Nested: TypeAlias = "_T | list[Nested[_T]] | tuple[Nested[_T], ...]"
# The variables that a variable of the first layer represents; nested lists for nested runs.
Rows: TypeAlias = "Nested[Var]"
# For each layer of a run, its variables by those of the first; nested lists for nested runs.
_Maps: TypeAlias = "Nested[Mapping[Var, Var]]"


@dataclasses.dataclass(eq=False)
class Run(LayerCall):
    """A run of layers; replaces an equation.

    `layer` is the first one. The operands are its inputs; the results are the carried values after
    the last layer, then the stacked outputs.

    **Arguments:**

    - `count`: the number of layers.
    - `carried`: for each value passed from layer to layer, its positions among the inputs and the
        outputs.
    - `collected`: the outputs that are stacked.
    """

    count: int = 0
    carried: Sequence[tuple[int, int]] = ()
    collected: Sequence[int] = ()


@dataclasses.dataclass(eq=False)
class Pick(LayerCall):
    """One of the values stacked by a run.

    **Arguments:**

    - `index`: its index in the stack.
    - `name`: the name of its layer.
    """

    index: int = 0
    name: str = ""


@dataclasses.dataclass
class Members:
    """The layers of a run, from the first.

    **Arguments:**

    - `calls`: their calls in the layer above.
    - `maps`: for each layer, its variables by those of the first.
    - `others`: the inputs that differ from call to call, besides those carried.
    """

    calls: list[LayerCall]
    maps: list[Mapping[Var, Var]]
    carried: tuple[tuple[int, int], ...] = ()
    others: tuple[int, ...] = ()


class Stacker:
    """Replaces each run in a tree of layers by its first layer.

    **Arguments:**

    - `marks`: whether each parameter is trained; stacked ones must agree.
    - `messages`: receives a line for each run.
    - `least`: runs with fewer equations stay as they are.

    **Attributes:**

    - `rows`: the parameters represented by those of the first layer of a run.
    """

    def __init__(
        self,
        jaxpr: Jaxpr,
        program: Program,
        marks: Mapping[Var, object],
        messages: list[str],
        least: int = 0,
    ):
        self.jaxpr, self.program = jaxpr, program
        self.marks, self.messages = marks, messages
        self.least = least
        self.rows: dict[Var, Rows] = {}
        # Those of normal forms; layers that are alike share one.
        self._graphs: dict[Hashable, Graph] = {}

    def stack(self, root: Layer) -> None:
        """Replace the runs in a tree of layers."""
        self._inside(root, {})
        if not self.rows:
            reason = (
                f"no run of equal layers has {self.least} equations, where a scan begins to pay"
                if self.least
                else "none follows another that computes the same"
            )
            self.messages.append(f"no layers are stacked: {reason}")

    def _inside(self, layer: Layer, spread: _Maps) -> None:
        runs = self.runs(layer)
        member = {id(c): run for run in runs for c in run.calls}
        steps: list[Eqn] = []
        for step in layer.steps:
            run = member.get(id(step))
            if run is None:
                steps.append(step)
                if isinstance(step, LayerCall):
                    self._inside(step.layer, spread)
            elif run.calls[0] is step:
                steps += self._replaced(layer, run)
                self._inside(run.calls[0].layer, _composed(spread, run.maps))
        if spread:
            for v in _own(layer):
                self.rows[v] = _applied(spread, v)
        layer.steps = steps

    def runs(
        self, layer: Layer, given: Callable[[Atom, Atom], bool] | None = None
    ) -> list[Members]:
        """The runs among the calls of a layer.

        `given` tells which inputs of one call and of the next may differ; by default, none.
        """
        calls = [s for s in layer.steps if isinstance(s, LayerCall)]
        kinds = {id(c): kind_of(c.layer) for c in calls}
        alike = collections.Counter(kinds.values())
        calls = [c for c in calls if kinds[id(c)] is not None and alike[kinds[id(c)]] > 1]
        makers = {v: c for c in calls for v in c.outvars}
        programs: dict[int, tuple[list[Var], Graph]] = {}
        runs: dict[int, Members] = {}
        for call in calls:
            above = (makers[v] for v in call.invars if v in makers)
            before = next((c for c in above if kinds[id(c)] == kinds[id(call)]), None)
            if before is None:
                continue
            run = runs.get(id(before)) or Members([before], [_Same()])
            if run.calls[-1] is before and self._follows(run, call, programs, given):
                runs[id(call)] = runs[id(before)] = run
        found = {id(run): run for run in runs.values()}.values()
        return [r for r in found if sum(len(equations(c.layer)) for c in r.calls) >= self.least]

    def _follows(
        self,
        run: Members,
        call: LayerCall,
        programs: dict[int, tuple[list[Var], Graph]],
        given: Callable[[Atom, Atom], bool] | None,
    ) -> bool:
        """Return whether a call continues a run; adds it if so."""
        first, last = run.calls[0], run.calls[-1]
        variables = self._matched(first.layer, call.layer, programs)
        if variables is None:
            return False
        inputs = [
            (_given(last, run.maps[-1][v]), _given(call, variables[v])) for v in first.layer.inputs
        ]
        carried, others = passed_on(last.outvars, inputs)
        if any(given is None or not given(*inputs[i]) for i in others):
            return False
        if not carried or (run.carried and (carried, others) != (run.carried, run.others)):
            return False
        if {variables[v] for v in _parameters(first.layer)} != set(_parameters(call.layer)):
            return False
        run.calls.append(call)
        run.maps.append(variables)
        run.carried, run.others = carried, others
        return True

    def _matched(
        self, a: Layer, b: Layer, programs: dict[int, tuple[list[Var], Graph]]
    ) -> dict[Var, Var] | None:
        """Inputs and parameters of `b` by those of `a`, if the programs agree."""
        for layer in (a, b):
            if id(layer) not in programs:
                programs[id(layer)] = self._program(layer)
        (held, x), (other, y) = programs[id(a)], programs[id(b)]
        if len(held) != len(other) or len(x.eqns) != len(y.eqns):
            return None
        match = Match(x, y)
        if not match.run(list(zip(x.jaxpr.outvars, y.jaxpr.outvars, strict=True))):
            return None
        if len(match.eqns) != len(x.eqns):
            return None
        places: dict[Atom, Var] = dict(zip(y.jaxpr.invars, other, strict=True))
        atoms = map(match.atoms.get, x.jaxpr.invars)
        matched = (None if atom is None else places.get(atom) for atom in atoms)
        variables = {v: w for v, w in zip(held, matched, strict=True) if w is not None}
        shape = self.program.shape
        if len(set(variables.values())) != len(held) or any(
            shape(v) != shape(w) or self.marks.get(v) != self.marks.get(w)
            for v, w in variables.items()
        ):
            return None
        return variables

    def _program(self, layer: Layer) -> tuple[list[Var], Graph]:
        """The inputs and parameters of a layer, and its program over them."""
        held = [*layer.inputs, *_parameters(layer)]
        jaxpr = self.jaxpr.replace(
            constvars=[], invars=held, outvars=layer.outputs, eqns=equations(layer)
        )
        key = program_key(jaxpr)
        if key is None:
            return held, Graph(traced_form.normal(jaxpr))
        if key not in self._graphs:
            self._graphs[key] = Graph(traced_form.normal(jaxpr))
        return held, self._graphs[key]

    def _replaced(self, layer: Layer, run: Members) -> list[Eqn]:
        """The steps that replace a run."""
        first, last = run.calls[0], run.calls[-1]
        inside = {id(c) for c in run.calls}
        outside = {*layer.results, *read_by(s for s in layer.steps if id(s) not in inside)}
        carried = {j for _, j in run.carried}
        collected = [
            j
            for j in range(len(first.outvars))
            if any(c.outvars[j] in outside and not (c is last and j in carried) for c in run.calls)
        ]
        count = len(run.calls)
        stacked = [self._stacked(first.outvars[j], count) for j in collected]
        picks = [
            Pick(first.layer, [ys], [c.outvars[j]], index=k, name=c.layer.name)
            for ys, j in zip(stacked, collected, strict=True)
            for k, c in enumerate(run.calls)
            if c.outvars[j] in outside and not (c is last and j in carried)
        ]
        outvars = [*(last.outvars[j] for _, j in run.carried), *stacked]
        call = Run(
            first.layer, list(first.layer.inputs), outvars,
            count=count, carried=run.carried, collected=collected,
        )  # fmt: skip
        first.layer.field, first.layer.count = plural(first.layer.name), count
        self.messages.append(
            f"{count} layers from {first.layer.name} to {last.layer.name} are one stack, which "
            "lax.scan runs; unrolled, it is the recovered program"
        )
        return [call, *picks]

    def _stacked(self, v: Var, count: int) -> Var:
        aval = ShapedArray((count, *v.aval.shape), v.aval.dtype)
        return Var(aval)


def _given(call: LayerCall, v: Var) -> Atom:
    """The atom that a call passes for an input of its layer, which may have its own variable."""
    return call.invars[call.layer.inputs.index(v)] if type(call) is LayerCall else v


class _Same(dict[Var, Var]):
    """The identity map of variables."""

    def __missing__(self, key: Var) -> Var:
        return key


def equations(layer: Layer) -> list[Eqn]:
    """The equations of a layer and its inner layers."""
    eqns: list[Eqn] = []
    for step in layer.steps:
        if isinstance(step, LayerCall):
            eqns += equations(step.layer)
        else:
            eqns.append(step if (whole := step.params.get(WHOLE)) is None else whole.scan)
    return eqns


def _own(layer: Layer) -> list[Var]:
    """The parameters of a layer, those that its loops go through among them."""
    stacks = (step.params.get(WHOLE) for step in layer.steps)
    return [*layer.parameters, *(v for s in stacks if s is not None for v in s.rows.values())]


def _parameters(layer: Layer) -> list[Var]:
    """The parameters of a layer and its inner layers."""
    parameters = _own(layer)
    for step in layer.steps:
        if isinstance(step, LayerCall):
            parameters += _parameters(step.layer)
    return parameters


def kind_of(layer: Layer) -> int | None:
    """A hash that is equal for layers that compute the same.

    `None` for a layer that assigns variables, which is not stacked."""
    if any(isinstance(e, Assign) for e in equations(layer)):
        return None
    names = ((e.primitive.name, *(v.aval.shape for v in e.outvars)) for e in equations(layer))
    return hash((*names, len(layer.inputs), len(layer.outputs)))


def _composed(spread: _Maps, maps: Sequence[Mapping[Var, Var]]) -> _Maps:
    """The maps of a run inside the first layer of another run."""
    if isinstance(spread, (list, tuple)):
        return [_composed(s, maps) for s in spread]
    if not spread:
        return list(maps)
    return [
        spread if isinstance(m, _Same) else {v: spread[w] for v, w in m.items() if w in spread}
        for m in maps
    ]


def _applied(spread: _Maps, v: Var) -> Rows:
    if isinstance(spread, (list, tuple)):
        return [_applied(s, v) for s in spread]
    return spread[v]


def stacked(rows: Nested[_T], values: Mapping[_T, Value]) -> Value:
    """The values of some variables as one array."""
    if not isinstance(rows, (list, tuple)):
        return values[rows]
    parts = [stacked(r, values) for r in rows]
    if all(isinstance(p, np.ndarray) for p in parts):
        return np.stack(parts)
    return jnp.stack(parts)


def stacked_type(rows: Rows) -> jax.ShapeDtypeStruct:
    """The type of the array that `stacked` returns."""
    sizes: list[int] = []
    while isinstance(rows, (list, tuple)):
        sizes.append(len(rows))
        rows = rows[0]
    return jax.ShapeDtypeStruct((*sizes, *rows.aval.shape), rows.aval.dtype)


def leaves_of(rows: Nested[_T]) -> list[_T]:
    """The leaves of nested lists, in order."""
    if not isinstance(rows, (list, tuple)):
        return [rows]
    return [leaf for r in rows for leaf in leaves_of(r)]


def renamed(rows: Nested[_T], names: Mapping[_T, _S]) -> Nested[_S]:
    """Nested tuples with the leaves replaced by `names`."""
    if not isinstance(rows, (list, tuple)):
        return names[rows]
    return tuple(renamed(r, names) for r in rows)


def unrolled(
    closed: AnyJaxpr,
    held: Sequence[Var],
    leaves: Sequence[Rows],
    shapes: Mapping[Var, tuple[int, ...]],
) -> AnyJaxpr:
    """The program with each scan over stacked parameters unrolled.

    **Arguments:**

    - `held`: variables of the leading arguments of the unrolled program.
    - `leaves`: for each leading argument of `closed`, the variables of `held` stacked in it.
    - `shapes`: shapes of those of `held` that are laid out differently in the text.

    **Raises:** `EmissionError` if anything but a scan uses stacked values.
    """
    closed = map_jaxprs(closed, with_slices)
    jaxpr = open_jaxpr(closed)
    # Other methods have parameters that this one does not use.
    every = dict.fromkeys((*held, *(v for rows in leaves for v in leaves_of(rows))))
    fresh = {v: Var(ShapedArray(shapes.get(v, v.aval.shape), v.aval.dtype)) for v in every}
    env: dict[Atom, Nested[Atom]] = {v: v for v in (*jaxpr.constvars, *jaxpr.invars)}
    env.update(
        (v, _listed(renamed(rows, fresh))) for v, rows in zip(jaxpr.invars, leaves, strict=False)
    )
    eqns: list[Eqn] = []
    outvars = list(map(evaluate(jaxpr.eqns, env, _writing(eqns), _same), jaxpr.outvars))
    if any(isinstance(a, list) for a in outvars):
        raise EmissionError("the program returns a stack of values")
    invars = [*(fresh[v] for v in held), *jaxpr.invars[len(leaves) :]]
    return close_like(closed, jaxpr.replace(invars=invars, eqns=eqns, outvars=outvars))


def _listed(rows: Nested[_T]) -> Nested[_T]:
    return [_listed(r) for r in rows] if isinstance(rows, (list, tuple)) else rows


def _same(literal: Literal) -> Literal:
    return literal


def _writing(eqns: list[Eqn]) -> OnEqn:
    """Append equations on other variables, or on stacks of them, to `eqns`."""

    def on_eqn(eqn: Eqn, operands: list[Value]) -> list[Value]:
        if not any(isinstance(a, list) for a in operands):
            outvars = [Var(v.aval) for v in eqn.outvars]
            eqns.append(eqn.replace(invars=operands, outvars=outvars))
            return outvars
        if eqn.primitive.name == "scan":
            return _calls(eqn, operands, on_eqn)
        return [_part(eqn, operands[0])]

    return on_eqn


def _calls(eqn: Eqn, operands: Sequence[Value], on_eqn: OnEqn) -> list[Value]:
    """The results of a scan over stacks, unrolled."""
    parts = ScanParts.of(eqn)
    inner = open_jaxpr(parts.body)
    held, carry, xs = parts.split(operands)
    count = len(carry)
    if eqn.params["reverse"] or not all(isinstance(x, list) for x in xs) or inner.constvars:
        raise EmissionError("a scan over more than stacked parameters")
    collected: list[list[Value]] = [[] for _ in inner.outvars[count:]]
    for k in range(eqn.params["length"]):
        results = interpret(inner, [*held, *carry, *(x[k] for x in xs)], on_eqn, _same)
        carry = results[:count]
        for values, value in zip(collected, results[count:], strict=True):
            values.append(value)
    return [*carry, *collected]


def _part(eqn: Eqn, rows: Value) -> Value:
    """A row of stacked values."""
    params = eqn.params
    if eqn.primitive.name == "slice" and isinstance(rows, list):
        start, limit = params["start_indices"][0], params["limit_indices"][0]
        shape = eqn.invars[0].aval.shape
        whole = all(a == 0 for a in params["start_indices"][1:]) and tuple(
            params["limit_indices"][1:]
        ) == tuple(shape[1:])
        if whole and not params["strides"]:
            return rows[start:limit]
    if eqn.primitive.name == "squeeze" and tuple(params["dimensions"]) == (0,) and len(rows) == 1:
        return rows[0]
    raise EmissionError(f"{eqn.primitive.name} uses stacked values")
