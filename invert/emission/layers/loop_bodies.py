"""Bodies of loops that call layers of the program around them, as samplers of language models do.

Such a body is cut into layers as a program of its own, on the parameters of the whole. Its layers
are those modules, with another method where they compute something else. The arrays of these layers
are not operands of the loop.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Callable, Collection, Iterator, Sequence, Set

from invert._private.jax import close_like, open_jaxpr, with_names
from invert.emission.layers.cut import BODY, Layer, Path, layers_in, names_outside
from invert.emission.layers.scans import copied
from invert.ir import kinds
from invert.ir.graph import is_var, read_by
from invert.ir.jaxprs import names_in
from invert.ir.loops import ScanParts, WhileParts
from invert.ir.types import Atom, Eqn, Jaxpr, Var

_LOOPS = frozenset(("while", "scan"))


@dataclasses.dataclass(eq=False)
class LoopBody:
    """The body of a loop.

    **Arguments:**

    - `loop`: its equation.
    - `program`: the body; the parameters that it closes over are the variables outside.
    - `parameters`: these.
    - `root`: the body as a layer, once it is cut.
    - `home`: the layer that calls the loop, once it is known.
    """

    loop: Eqn
    program: Jaxpr
    parameters: Sequence[Var]
    root: Layer = dataclasses.field(default_factory=lambda: Layer(()))
    home: Layer = dataclasses.field(default_factory=lambda: Layer(()))

    def closed(self, steps: Sequence[Eqn]) -> Eqn:
        """The loop with these steps, whose body is given only the parameters that they use."""
        read = itertools.chain(*(s.invars for s in steps), self.program.outvars)
        used = {a for a in read if is_var(a)}
        own, consts = set(self.parameters), _consts(self.loop)
        kept = [i for i, a in enumerate(consts) if not is_var(a) or a not in own or a in used]
        body = self.program
        invars = [body.invars[i] for i in kept] + list(body.invars[len(consts) :])
        inner = body.replace(invars=invars, eqns=list(steps))
        if self.loop.primitive.name == "scan":
            parts = ScanParts.of(self.loop)
            loop = parts.closing_over(self.loop, close_like(parts.body, inner), kept)
        else:
            parts = WhileParts.of(self.loop)
            body_consts = [consts[i] for i in kept]
            loop = dataclasses.replace(
                parts, body=close_like(parts.body, inner), body_consts=body_consts
            ).put_into(self.loop)
        return loop.replace(params={**loop.params, BODY: self})


def find(jaxpr: Jaxpr, parameters: Collection[Var]) -> list[LoopBody]:
    """The bodies of loops that use parameters as the program around them does.

    **Arguments:**

    - `parameters`: variables of the parameters that no state holds.
    """
    loops = [e for e in jaxpr.eqns if e.primitive.name in _LOOPS]
    if not loops:
        return []
    inside = {id(e) for e in loops}
    others = {*read_by(e for e in jaxpr.eqns if id(e) not in inside)}
    uses: collections.Counter[Atom] = collections.Counter()
    for loop in loops:
        uses.update({a for a in _consts(loop) if is_var(a) and a in parameters})
    found: list[LoopBody] = []
    for loop in loops:
        own = [a for a in dict.fromkeys(_consts(loop)) if isinstance(a, Var) and uses[a]]
        again = any(a in others or uses[a] > 1 for a in own)
        if own and (again or loop.primitive.name == "while"):
            body = _body(loop, own)
            if body is not None:
                found.append(body)
    return found


def _consts(loop: Eqn) -> Sequence[Atom]:
    """The operands that the body of a loop closes over."""
    if loop.primitive.name == "scan":
        return ScanParts.of(loop).consts
    return WhileParts.of(loop).body_consts


def _body(loop: Eqn, own: Sequence[Var]) -> LoopBody | None:
    """The body of a loop, if it computes products with some of its parameters."""
    scanned = loop.primitive.name == "scan"
    body = open_jaxpr(ScanParts.of(loop).body if scanned else WhileParts.of(loop).body)
    if body.constvars:
        return None
    mine = set(own)
    pairs = zip(body.invars, _consts(loop), strict=False)
    body = copied(body, {v: a for v, a in pairs if isinstance(a, Var) and a in mine})
    eqns = [with_names(e, names_outside(e)) for e in body.eqns]
    if kinds.CONTRACTIONS.isdisjoint(names_in(body)):
        return None
    return LoopBody(loop, body.replace(eqns=eqns), own)


def differ(root: Layer, bodies: Sequence[LoopBody]) -> bool:
    """Return whether bodies need parameters in other layers than the program around them."""
    outside = dict(_owners(root)) if bodies else {}
    inside = [pair for body in bodies for pair in _owners(body.root)]
    return any(outside.setdefault(v, path) != path for v, path in inside)


def _owners(layer: Layer) -> Iterator[tuple[Var, Path]]:
    """The parameters in a layer, each with the path of the layer that owns it."""
    yield from ((v, layer.path) for v in layer.parameters)
    for inner in layers_in(layer):
        yield from _owners(inner)


def connect(
    root: Layer, bodies: Sequence[LoopBody], looped: Callable[[Sequence[Eqn]], list[Eqn]]
) -> None:
    """Put the steps of bodies into the loops of a layer and its inner layers."""

    def visit(layer: Layer, left: Set[LoopBody]) -> None:
        for i, step in enumerate(layer.steps):
            body: LoopBody | None = step.params.get(BODY)
            if body is not None and body in left:
                body.home = layer
                layer.steps[i] = body.closed(looped(body.root.steps))
        for inner in layers_in(layer):
            visit(inner, left)

    if bodies:
        visit(root, set(bodies))
