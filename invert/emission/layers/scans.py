"""Blocks of loops over stacked parameters: what a step computes with its rows, as a layer.

The arrays of all blocks are stacked along their first axis, and a `scan` goes through them. Such
arrays are one module, and each step calls a row of it. The block is cut into layers as a program of
its own; its parameters are the rows.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import re
from collections.abc import Callable, Mapping, Sequence, Set

from invert._private.jax import close_like, open_jaxpr, renamed, with_names
from invert.emission.layers import cells
from invert.emission.layers.copies import Part
from invert.emission.layers.cut import (
    BODY,
    COLLECTIONS,
    PART,
    WHOLE,
    Layer,
    LayerCall,
    Path,
    common_prefix,
    holds_part,
    layers_in,
    scope_of,
)
from invert.emission.python.naming import plural, singular
from invert.ir import kinds
from invert.ir.graph import Graph, is_var
from invert.ir.loops import ScanParts
from invert.ir.types import AnyJaxpr, Atom, Eqn, Jaxpr, Var

_NAME = "block"
# What Flax calls modules that it lifts, if their author does not: `ScanCheckpointBlock_0`.
_LIFTED = re.compile(r"(?:Scan|Checkpoint|Remat)+([A-Z]\w*?)(_\d+)?")
# Primitives that make a block: products, and programs and loops that may have some.
_BLOCKS = kinds.CONTRACTIONS | {"gather", "scan", "jit"}


@dataclasses.dataclass(eq=False)
class Stack(Part):
    """The block of a loop.

    **Arguments:**

    - `rows`: the stacked parameters, by their rows.
    - `prefix`: what the names of these have in common, and the layer implies.
    - `count`: the number of blocks.
    - `scan`: the loop in the program.
    """

    rows: Mapping[Var, Var] = dataclasses.field(default_factory=dict)
    prefix: Path = ()
    count: int = 0
    scan: Eqn | None = None

    def become(self, layer: Layer) -> None:
        """Take a layer for the block, and name it."""
        name = self.path[-1]
        lifted = _LIFTED.fullmatch(name)
        layer.path, layer.count = self.path, self.count
        layer.kind = singular(lifted[1] if lifted else name)
        layer.field = plural(lifted[1]) if lifted else name if self.prefix else plural(name)
        self.layer = layer


def outlined(
    jaxpr: Jaxpr, parameters: Mapping[Var, Path], row_of: Callable[[Var], Var]
) -> tuple[Jaxpr, list[Stack]]:
    """The program with a call of a part in each loop over stacked parameters, and the parts.

    **Arguments:**

    - `parameters`: variables of the parameters that no state holds, with their names.
    - `row_of`: returns the variable of the rows of a parameter.
    """
    uses = itertools.chain(*(e.invars for e in jaxpr.eqns), jaxpr.outvars)
    counts = collections.Counter(filter(is_var, uses))
    once = {v for v in parameters if counts[v] == 1}
    stacks: list[Stack] = []
    eqns: list[Eqn] = []
    for eqn in jaxpr.eqns:
        made = _outlined(eqn, once, parameters, row_of) if eqn.primitive.name == "scan" else None
        if made is not None:
            eqn, stack = made
            stacks.append(stack)
        eqns.append(eqn)
    return (jaxpr.replace(eqns=eqns), stacks) if stacks else (jaxpr, [])


def _outlined(
    scan: Eqn, once: Set[Var], parameters: Mapping[Var, Path], row_of: Callable[[Var], Var]
) -> tuple[Eqn, Stack] | None:
    parts = ScanParts.of(scan)
    body = open_jaxpr(parts.body)
    consts, carry, xs = parts.split(body.invars)
    rows = {
        row_of(a): a for a in parts.xs if isinstance(a, Var) and a in once and len(a.aval.shape) > 0
    }
    if not rows or body.constvars:
        return None
    own = {w: v for v, w in rows.items()}
    body = copied(body, {v: own[a] for v, a in zip(xs, parts.xs, strict=True) if a in own})
    consts, carry, xs = parts.split(body.invars)
    inner, order = body, [*carry, *xs, *consts]
    if (whole := checkpoint_of(body)) is not None:
        inner = open_jaxpr(whole.params["jaxpr"])
        pairs = [*zip(inner.invars, whole.invars, strict=True)]
        inner = copied(inner, {v: a for v, a in pairs if isinstance(a, Var) and a in rows})
        order = [
            v for a in order for v, b in zip(inner.invars, whole.invars, strict=True) if a is b
        ]
    graph = Graph(inner)
    region = cells.core(graph, rows)
    if not _is_block(region, rows):
        return None
    prefix = common_prefix(parameters[w][:-1] for w in rows.values())
    others = (path[: len(prefix)] for v, path in parameters.items() if v not in own)
    prefix = () if prefix in others or prefix[-1:] in [(c,) for c in COLLECTIONS] else prefix
    name = prefix[-1] if prefix else _NAME
    inputs, outputs = cells.ends(graph, region, rows, order, [])
    program = inner.replace(invars=[*rows, *inputs], outvars=outputs, eqns=region)
    scope = scope_of(scan)
    scope = scope[:-1] if scope[-1:] == prefix[-1:] else scope
    count = scan.params["length"]
    path = (*scope, name)
    stack = Stack(program, list(rows), path, rows=rows, prefix=prefix, count=count, scan=scan)
    call = region[0].replace(
        primitive=PART, invars=[*rows, *inputs], outvars=outputs, params={"part": stack}
    )
    changed = inner.replace(eqns=cells.with_call(graph, region, inputs, call))
    if whole is not None:
        params = {**whole.params, "jaxpr": close_like(whole.params["jaxpr"], changed)}
        changed = body.replace(eqns=[whole.replace(params=params)])
    params = {**scan.params, "jaxpr": close_like(parts.body, changed)}
    return with_names(scan.replace(params=params), scope), stack


def _is_block(region: Sequence[Eqn], rows: Mapping[Var, Var]) -> bool:
    """Return whether a step computes products with matrices among its rows."""
    matrices = any(len(v.aval.shape) > 1 for v in rows)
    return matrices and any(kinds.computes(e) in _BLOCKS for e in region)


def copied(jaxpr: Jaxpr, names: Mapping[Var, Var]) -> Jaxpr:
    """A program on variables of its own, as equal loops may share theirs; `names` are given."""
    results = (v for e in jaxpr.eqns for v in e.outvars)
    new: dict[Var, Atom] = {v: Var(v.aval) for v in (*jaxpr.invars, *results)}
    new |= names
    eqns = [
        e.replace(invars=renamed(e.invars, new), outvars=renamed(e.outvars, new))
        for e in jaxpr.eqns
    ]
    invars, outvars = (renamed(atoms, new) for atoms in (jaxpr.invars, jaxpr.outvars))
    return jaxpr.replace(invars=invars, outvars=outvars, eqns=eqns)


def checkpoint_of(body: Jaxpr) -> Eqn | None:
    """The equation of a `jax.checkpoint` around a whole step, if there is one."""
    if len(body.eqns) != 1 or body.eqns[0].primitive.name != kinds.CHECKPOINT:
        return None
    (eqn,) = body.eqns
    distinct = all(map(is_var, eqn.invars)) and len({*eqn.invars}) == len(eqn.invars)
    return eqn if distinct and list(body.outvars) == list(eqn.outvars) else None


def step_of(closed: AnyJaxpr) -> tuple[AnyJaxpr, Eqn | None]:
    """The body of a loop, without the checkpoint around a whole step, and that checkpoint."""
    body = open_jaxpr(closed)
    whole = checkpoint_of(body)
    if whole is None:
        return closed, None
    inner = open_jaxpr(whole.params["jaxpr"])
    own = dict(zip(whole.invars, inner.invars, strict=True))
    inner = inner.replace(invars=[own.get(v, v) for v in body.invars])
    return close_like(closed, inner), whole


def connect(layer: Layer, stacks: Sequence[Stack]) -> None:
    """Call the blocks in the loops of a layer and its inner layers, without their parameters."""
    gone = {v for stack in stacks for pair in stack.rows.items() for v in pair}

    def visit(layer: Layer) -> None:
        layer.parameters = [v for v in layer.parameters if v not in gone]
        layer.inputs = [v for v in layer.inputs if v not in gone]
        for i, step in enumerate(layer.steps):
            if isinstance(step, LayerCall):
                step.invars = _left(step.invars, gone)
            else:
                layer.steps[i] = _connected(step, gone)
        for inner in layers_in(layer):
            visit(inner)

    visit(layer)


def _left(atoms: Sequence[Atom], gone: Set[Var]) -> list[Atom]:
    return [a for a in atoms if not is_var(a) or a not in gone]


def _connected(step: Eqn, gone: Set[Var]) -> Eqn:
    """A loop whose steps call its block."""
    invars = _left(step.invars, gone)
    if step.primitive is PART:
        stack = step.params["part"]
        own = isinstance(stack, Stack)
        return LayerCall(stack.root, invars, list(step.outvars)) if own else step
    if not holds_part(step) or BODY in step.params:
        return step
    closed = step.params["jaxpr"]
    body = open_jaxpr(closed)
    own = [v for v in body.invars if v not in gone]
    params = {
        **step.params,
        "jaxpr": close_like(
            closed, body.replace(invars=own, eqns=[_connected(e, gone) for e in body.eqns])
        ),
        WHOLE: next(filter(None, map(_stack_of, body.eqns)), None),
    }
    return step.replace(invars=invars, params=params)


def _stack_of(step: Eqn) -> Stack | None:
    """The stack whose block a step of a loop calls, also under a checkpoint."""
    if step.primitive is PART:
        return step.params["part"]
    inner = open_jaxpr(step.params["jaxpr"]).eqns if holds_part(step) else ()
    return next(filter(None, map(_stack_of, inner)), None)
