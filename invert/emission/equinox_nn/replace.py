"""Replaces recovered layers by equivalent layers of `equinox.nn`.

Candidates, with their sizes, strides and epsilons, are read from the equations that use the
parameters. Each is traced under `jax.vmap` and compared with the recovered layer (`layout`), which
also infers the layout of the weights. A layer with different arithmetic stays as it is.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Hashable, Iterator, Sequence

import jax

from invert._errors import only_refusals, optional_step
from invert._private.jax import REFUSALS, open_jaxpr, trace_closed
from invert.emission.equinox_nn.candidates import FIELDS, candidates
from invert.emission.equinox_nn.layout import Comparison, Layout, flat
from invert.emission.layers.cut import Layer, LayerCall
from invert.emission.layers.native import Native
from invert.emission.sizes.program import Program
from invert.ir import traced_form
from invert.ir.graph import from_outside, is_var, read_by
from invert.ir.types import AnyJaxpr, Atom, Eqn, Jaxpr, Var


class Replacer:
    """Replaces layers in a tree by those of `equinox.nn`.

    **Attributes:**

    - `layouts`: the layouts of the parameters of these layers.
    """

    def __init__(self, jaxpr: Jaxpr, program: Program, parameters: set[Var], messages: list[str]):
        self.jaxpr, self.program, self.parameters = jaxpr, program, parameters
        self.messages = messages
        self.layouts: dict[Var, Layout] = {}
        self._makers: dict[Atom, Eqn] = {v: e for e in jaxpr.eqns for v in e.outvars}
        self._traced: dict[Hashable, AnyJaxpr | str] = {}
        self._found: collections.Counter[str] = collections.Counter()
        self._left: dict[str, list[str]] = collections.defaultdict(list)

    def replace(self, root: Layer) -> None:
        """Replace layers where possible; messages list replaced and other layers."""
        self._inside(root)
        _settle(root, top=True)
        for kind, count in self._found.items():
            layers = "layer is" if count == 1 else "layers are"
            self.messages.append(
                f"{count} {layers} eqx.nn.{kind}: traced, each does the same arithmetic for every "
                "element as the recovered one, with weights in another layout"
            )
        for reason, names in self._left.items():
            several = names[0] if len(names) == 1 else f"{len(names)} layers such as {names[0]}"
            self.messages.append(f"{several} stay as recovered: {reason}")
        if not self._found and not self._left:
            self.messages.append("there are no layers with parameters of their own")

    def _inside(self, layer: Layer) -> None:
        counts = collections.Counter(s.layer for s in layer.steps if isinstance(s, LayerCall))
        for inner in counts:
            self._inside(inner)
        steps: list[Eqn] = []
        for step in layer.steps:
            # A layer with several calls has different steps around each of them.
            if isinstance(step, LayerCall) and counts[step.layer] == 1:
                steps += self._replaced(step) or [step]
            else:
                steps.append(step)
        layer.steps = steps

    def _replaced(self, call: LayerCall) -> list[Eqn] | None:
        """The steps that replace a call; `None` if the layer is unchanged."""
        layer = call.layer
        if not layer.parameters or any(isinstance(s, LayerCall) for s in layer.steps):
            return None
        reason: str | None = None
        for part in _parts(layer, set(layer.parameters)):
            replacement = self._native(part)
            if isinstance(replacement, tuple):
                native, arrays = replacement
                self._found[native.kind] += 1
                layer.steps, layer.native, layer.arrays = part.steps, native, arrays
                layer.inputs, layer.outputs = [part.x], [part.y]
                call.invars, call.outvars = [part.x], [part.y]
                return [*part.head, call, *part.tail]
            # The first reason is for the largest part.
            reason = reason or replacement
        self._left[reason or "no layer of equinox.nn has such parameters"].append(
            "/".join(layer.path)
        )
        return None

    def _native(self, part: _Part) -> tuple[Native, dict[str, Var]] | str | None:
        """The replacement of a layer's part, or why there is none, if known."""
        constants: list[Eqn] = []
        for v in part.inputs:
            if v is part.x:
                continue
            eqns = self._constant(v)
            if eqns is None:
                return "it takes more than one value" if v not in self.parameters else (
                    "it shares its parameters")  # fmt: skip
            constants += eqns
        unique = list({id(e): e for e in constants}.values())
        x, held = part.x, part.parameters
        program = self.jaxpr.replace(
            constvars=[], invars=[x, *held], outvars=[part.y], eqns=[*unique, *part.steps]
        )
        closed = flat(traced_form.normal(program))
        reason: str | None = None
        for native, roles in candidates(open_jaxpr(closed), self._sizes(part)):
            if sorted(roles) != list(range(len(held))):
                continue
            arrays = [held[i] for i in roles]
            got = self._compared(native, x, arrays, roles, closed)
            if isinstance(got, str):
                reason = reason or f"eqx.nn.{native.kind} would be a different program, {got}"
                continue
            self.layouts |= got
            names = FIELDS[1:] if ("use_weight", False) in native.keywords else FIELDS
            return native, dict(zip(names, arrays, strict=False))
        return reason

    def _sizes(self, part: _Part) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return self.program.shape(part.x), self.program.shape(part.y)

    def _constant(self, v: Atom) -> list[Eqn] | None:
        """The equations of a value, unless it depends on inputs."""
        eqn = self._makers.get(v)
        if eqn is None:
            return None
        eqns: list[Eqn] = []
        for atom in eqn.invars:
            if is_var(atom):
                before = self._constant(atom)
                if before is None:
                    return None
                eqns += before
        return [*eqns, eqn]

    def _compared(
        self,
        native: Native,
        x: Var,
        arrays: Sequence[Var],
        roles: Sequence[int],
        closed: AnyJaxpr,
    ) -> dict[Var, Layout] | str:
        """The layouts of the weights, or the difference of the programs."""
        key = (native, tuple(x.aval.shape), x.aval.dtype, tuple(v.aval.dtype for v in arrays))
        if key not in self._traced:
            step = f"eqx.nn.{native.kind}"
            traced = optional_step(step, self.messages, _trace, native, x, arrays)
            self._traced[key] = (
                "which cannot be traced because of a defect" if traced is None else traced
            )
        traced = self._traced[key]
        if isinstance(traced, str):
            return traced
        mine, theirs = open_jaxpr(traced), open_jaxpr(closed)
        own = mine.invars[1:]
        if len(own) != len(arrays):
            return f"which has {len(own)} arrays"
        pairs: dict[Atom, Var] = {mine.invars[0]: theirs.invars[0]}
        pairs |= {q: theirs.invars[1 + i] for q, i in zip(own, roles, strict=True)}
        comparison = Comparison(traced, closed, pairs, unknown=own)
        if (difference := comparison.difference()) is not None:
            return difference
        if set(own) - comparison.layouts.keys():
            return "which does not use all of its arrays"
        return {v: comparison.layouts[q] for v, q in zip(arrays, own, strict=True)}


def _trace(native: Native, x: Var, arrays: Sequence[Var]) -> AnyJaxpr | str:
    try:
        with only_refusals():
            leaves, tree = jax.tree_util.tree_flatten(native.make())

            def run(x: jax.Array, *values: jax.Array) -> jax.Array:
                return native.apply(jax.tree_util.tree_unflatten(tree, values), x)

            types = [
                jax.ShapeDtypeStruct(leaf.shape, v.aval.dtype)
                for leaf, v in zip(leaves, arrays, strict=True)
            ]
            shape = jax.ShapeDtypeStruct(x.aval.shape, x.aval.dtype)
            with jax.enable_x64(True):
                return flat(traced_form.normal(trace_closed(run, shape, *types)))
    except REFUSALS as error:
        return f"which JAX refuses: {str(error).splitlines()[0] if str(error) else error!r}"


@dataclasses.dataclass
class _Part:
    """A layer's part that uses all parameters: a function of one value.

    **Arguments:**

    - `head`, `tail`: the other steps of the layer, before and after.
    """

    x: Var
    y: Var
    inputs: Sequence[Atom]
    parameters: list[Var]
    steps: list[Eqn]
    head: list[Eqn]
    tail: list[Eqn]


def _parts(layer: Layer, own: set[Var]) -> Iterator[_Part]:
    """Parts of a layer that hold all uses of its parameters, the largest first.

    Steps after the last use, such as an activation, and before the first, such as a reshape, may be
    moved out of the layer.
    """
    steps = layer.steps
    # Values that depend only on parameters, such as a reshaped bias.
    held = set(own)
    inside = [False] * len(steps)
    for i, step in enumerate(steps):
        operands = [a for a in step.invars if is_var(a)]
        inside[i] = any(a in held for a in operands)
        if operands and all(a in held for a in operands):
            held.update(step.outvars)
    needed: set[Atom] = set()
    for i in reversed(range(len(steps))):
        inside[i] = inside[i] or any(v in needed for v in steps[i].outvars)
        if inside[i]:
            needed.update(a for a in steps[i].invars if is_var(a))
    core = [s for s, k in zip(steps, inside, strict=True) if k]
    tail = [s for s, k in zip(steps, inside, strict=True) if not k]
    for body, after in ((steps, []), (core, tail)):
        if body is core and not tail:
            break
        before = 0
        while not any(a in own for a in body[before].invars if is_var(a)):
            before += 1
        for start in dict.fromkeys((0, before)):
            part = _part(layer, own, body[:start], body[start:], after)
            if part is not None:
                yield part


def _part(
    layer: Layer, own: set[Var], head: list[Eqn], steps: list[Eqn], tail: list[Eqn]
) -> _Part | None:
    inputs = [v for v in from_outside(steps) if v not in own]
    outside = {*read_by(tail), *layer.outputs}
    outputs = [v for s in steps for v in s.outvars if v in outside]
    first = {v for s in head for v in s.outvars}
    # Among the inputs, the layer is applied to one value; the others are constants.
    values = [v for v in inputs if v in first] or [v for v in inputs if v in set(layer.inputs)]
    if len(outputs) != 1 or not values:
        return None
    x = max(values, key=lambda v: len(v.aval.shape))
    return _Part(x, outputs[0], inputs, list(layer.parameters), steps, head, tail)


def _settle(layer: Layer, *, top: bool = False) -> None:
    """Drop steps and inputs that are no longer used."""
    for step in layer.steps:
        if isinstance(step, LayerCall) and not step.layer.native:
            _settle(step.layer)
            step.invars = list(step.layer.inputs)
    needed = set(layer.results)
    kept: list[Eqn] = []
    for step in reversed(layer.steps):
        if any(v in needed for v in step.outvars) or getattr(step, "effects", None):
            kept.append(step)
            needed.update(a for a in step.invars if is_var(a))
    layer.steps = kept[::-1]
    if not top:
        layer.inputs = [v for v in layer.inputs if v in needed]
