"""Compares the arithmetic of two programs element by element, ignoring layouts.

A layer of Equinox takes one example and has its own layout of weights. Under `jax.vmap` its
products and transposes differ from those of an equivalent layer of another framework. The
comparison goes from the results to the arguments: an element of a value is an operation on elements
of its operands at derived indices. Transposes, reshapes and broadcasts only change indices. All
other operations are compared one by one; sums may be taken in any order, as in XLA.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from invert._private.jax import close_like, consts_of, open_jaxpr
from invert.emission.equinox_nn import indices
from invert.emission.equinox_nn.indices import Index, Layout
from invert.ir import kinds
from invert.ir.graph import Graph, is_var
from invert.ir.interpret import inline_calls
from invert.ir.jaxprs import literals, with_inlined
from invert.ir.match import same_params, same_value
from invert.ir.types import AnyJaxpr, Atom, Eqn, Literal, Var

# Parameters of a convolution that do not depend on the order of the axes.
_WINDOW = (
    "window_strides", "padding", "lhs_dilation", "rhs_dilation", "feature_group_count",
    "batch_group_count",
)  # fmt: skip

_DEFAULT = jax.lax.Precision.DEFAULT


class Difference(Exception):
    """The programs differ; the message says where."""


class _Side:
    """One of the two programs."""

    def __init__(self, closed: AnyJaxpr, names: Mapping[Atom, int]):
        self.graph = Graph(closed, consts_of(closed))
        self.names = names
        self._prints: dict[Atom, int] = {}
        for eqn in self.graph.eqns:
            self._add(eqn)

    def print_of(self, atom: Atom) -> int:
        """A hash that is equal for atoms computed alike, ignoring their layouts."""
        if isinstance(atom, Literal):
            return hash(("literal", np.asarray(atom.val).dtype, np.asarray(atom.val).tobytes()))
        if atom in self._prints:
            return self._prints[atom]
        if atom in self.graph.consts:
            value = np.asarray(self.graph.consts[atom])
            return hash(("constant", value.dtype, value.tobytes()))
        return hash(("argument", self.names.get(atom)))

    def _add(self, eqn: Eqn) -> None:
        name, operands = _operation(eqn)
        parts = [self.print_of(a) for a in operands]
        if name in kinds.LAYOUT:
            value = parts[0]
        elif name in kinds.COMMUTATIVE or name == "dot_general":
            value = hash((name, *sorted(parts)))
        else:
            value = hash((name, *parts))
        for i, v in enumerate(eqn.outvars):
            self._prints[v] = value if i == 0 else hash((value, i))

    def bare(self, atom: Atom, at: tuple[Index, ...]) -> tuple[Atom, tuple[Index, ...]]:
        """The atom before transposes, reshapes and broadcasts, and the indices into it."""
        while (eqn := self.graph.producer(atom)) is not None:
            if eqn.primitive.name == "concatenate":
                part = indices.part(eqn, at)
                if part is None:
                    break
                atom, at = part
                continue
            if eqn.primitive.name not in kinds.LAYOUT:
                break
            at = _below(eqn, at)
            atom = eqn.invars[0]
        return atom, at


def _operation(eqn: Eqn) -> tuple[str, Sequence[Atom]]:
    """The name and the operands of an operation; a square is a product."""
    name = eqn.primitive.name
    if name == "square" or (name == "integer_pow" and eqn.params["y"] == 2):
        return "mul", (eqn.invars[0], eqn.invars[0])
    return name, eqn.invars


def _below(eqn: Eqn, at: tuple[Index, ...]) -> tuple[Index, ...]:
    """The indices into the operand of an equation that only moves elements."""
    shape = eqn.invars[0].aval.shape
    name, params = eqn.primitive.name, eqn.params
    if name == "broadcast_in_dim":
        return indices.plain([at[d] for d in params["broadcast_dimensions"]], shape)
    if name == "transpose":
        order = list(params["permutation"])
        return tuple(at[order.index(i)] for i in range(len(order)))
    if name == "squeeze":
        rest = iter(at)
        dims = {d % len(shape) for d in params["dimensions"]}
        return tuple(indices.ZERO if i in dims else next(rest) for i in range(len(shape)))
    return indices.reshaped(at, eqn.outvars[0].aval.shape, shape)


class Comparison:
    """Compares a program with another.

    **Arguments:**

    - `a`, `b`: closed jaxprs without calls.
    - `pairs`: the arguments of `a` with those of `b`.
    - `layouts`: layouts of arguments of `a`, relative to those of `b`. Those of the arguments in
        `unknown` are inferred and added.
    """

    def __init__(
        self,
        a: AnyJaxpr,
        b: AnyJaxpr,
        pairs: Mapping[Atom, Var],
        layouts: dict[Var, Layout] | None = None,
        unknown: Sequence[Var] = (),
    ):
        self.a = _Side(a, {v: i for i, v in enumerate(pairs)})
        self.b = _Side(b, {w: i for i, w in enumerate(pairs.values())})
        self.pairs, self.layouts, self.unknown = pairs, layouts or {}, set(unknown)
        self._done: set[Hashable] = set()
        self._pending: list[tuple[Atom, tuple[Index, ...], Atom, tuple[Index, ...]]] = []

    def difference(self) -> str | None:
        """`None` if the programs are equal, otherwise the difference."""
        outs = self.a.graph.jaxpr.outvars, self.b.graph.jaxpr.outvars
        if len(outs[0]) != len(outs[1]):
            return f"{len(outs[0])} results against {len(outs[1])}"
        try:
            for x, y in zip(*outs, strict=True):
                if x.aval.shape != y.aval.shape:
                    return f"a result of shape {x.aval.shape} against {y.aval.shape}"
                self._whole(x, y)
            while self._pending:
                self._step(*self._pending.pop())
        except Difference as error:
            return str(error)
        return None

    def _whole(self, x: Atom, y: Atom) -> None:
        """Require that two values are equal in all elements."""
        if tuple(x.aval.shape) != tuple(y.aval.shape):
            raise Difference(f"an operand of shape {x.aval.shape} against {y.aval.shape}")
        at = indices.plain(range(len(x.aval.shape)), x.aval.shape)
        self._add(x, at, y, at)

    def _add(self, x: Atom, at: Sequence[Index], y: Atom, to: Sequence[Index]) -> None:
        x, at = self.a.bare(x, tuple(at))
        y, to = self.b.bare(y, tuple(to))
        at = indices.plain(at, x.aval.shape)
        to = indices.plain(to, y.aval.shape)
        # Indices are renumbered, so that a value used twice is compared only once.
        at, to = indices.renamed(at, to)
        key = (x if is_var(x) else id(x), at, y if is_var(y) else id(y), to)
        if key not in self._done:
            self._done.add(key)
            self._pending.append((x, at, y, to))

    def _step(self, x: Atom, at: tuple[Index, ...], y: Atom, to: tuple[Index, ...]) -> None:
        if x.aval.dtype != y.aval.dtype:
            raise Difference(f"{x.aval.dtype} against {y.aval.dtype}")
        first = self.a.graph.producer(x)
        second = self.b.graph.producer(y)
        if first is None or second is None:
            if first is not None or second is not None:
                raise Difference(
                    f"{_described(y, second)} where Equinox has {_described(x, first)}"
                )
            self._leaf(x, at, y, to)
            return
        name, operands = _operation(first)
        other, others = _operation(second)
        if name != other:
            raise Difference(f"{other} where Equinox has {name}")
        if name == "dot_general":
            self._dot(first, at, second, to)
        elif name in kinds.REDUCTIONS:
            self._reduce(first, at, second, to)
        elif name == "conv_general_dilated":
            self._convolution(first, at, second, to)
        elif name in kinds.ELEMENTWISE:
            if name != "mul" and not same_params(first.params, second.params):
                raise Difference(f"{name} with different parameters")
            if self._swapped(name, operands, others):
                others = others[::-1]
            for v, w in zip(operands, others, strict=True):
                self._add(v, at if v.aval.shape else (), w, to if w.aval.shape else ())
        elif name == "gather" and indices.taken(first) and indices.taken(second):
            self._take(first, at, second, to)
        else:
            self._opaque(first, x, at, second, y, to)

    def _swapped(self, name: str, operands: Sequence[Atom], others: Sequence[Atom]) -> bool:
        """Return whether the operands of two operations are swapped."""
        if name not in kinds.COMMUTATIVE and name != "dot_general":
            return False
        here = [self.a.print_of(v) for v in operands]
        there = [self.b.print_of(w) for w in others]
        return here[0] != there[0] and here[0] == there[1]

    def _leaf(self, x: Atom, at: tuple[Index, ...], y: Atom, to: tuple[Index, ...]) -> None:
        values = [
            a.val if isinstance(a, Literal) else side.graph.consts.get(a)
            for side, a in ((self.a, x), (self.b, y))
        ]
        if values[0] is not None or values[1] is not None:
            if values[0] is None or values[1] is None or not same_value(*values) or at != to:
                raise Difference(f"the number {values[1]} where Equinox has {values[0]}")
            return
        if self.pairs.get(x) is not y:
            raise Difference("different arguments")
        if x in self.unknown and x not in self.layouts:
            self.layouts[x] = indices.layout(at, to, x.aval.shape)
        if x in self.layouts:
            order, shape = self.layouts[x]
            source = tuple(y.aval.shape[i] for i in order)
            moved = indices.reshaped(at, shape, source)
            at = indices.plain([moved[order.index(i)] for i in range(len(order))], y.aval.shape)
        if at != to:
            raise Difference("an argument is used along a different axis")

    def _dot(self, first: Eqn, at: Sequence[Index], second: Eqn, to: Sequence[Index]) -> None:
        if _precision(first) != _precision(second):
            raise Difference("dot_general with a different precision")
        fresh = indices.fresh(at, to)
        sizes = [indices.contracted(e) for e in (first, second)]
        common = indices.common(sizes[0], sizes[1], fresh)
        if common is None:
            raise Difference("dot_general over a different number of elements")
        left = indices.operands_of_dot(first, at, common[0])
        right = indices.operands_of_dot(second, to, common[1])
        others = list(zip(second.invars, right, strict=True))
        if self._swapped("dot_general", first.invars, second.invars):
            others.reverse()
        for (v, i), (w, j) in zip(zip(first.invars, left, strict=True), others, strict=True):
            self._add(v, i, w, j)

    def _reduce(self, first: Eqn, at: Sequence[Index], second: Eqn, to: Sequence[Index]) -> None:
        fresh = indices.fresh(at, to)
        sizes = [
            [e.invars[0].aval.shape[i] for i in sorted(e.params["axes"])] for e in (first, second)
        ]
        common = indices.common(sizes[0], sizes[1], fresh)
        if common is None:
            raise Difference(f"{first.primitive.name} over a different number of elements")
        inputs = []
        for eqn, outer, bound in ((first, at, common[0]), (second, to, common[1])):
            rest, inner = iter(outer), iter(bound)
            axes = set(eqn.params["axes"])
            rank = len(eqn.invars[0].aval.shape)
            inputs.append([next(inner) if i in axes else next(rest) for i in range(rank)])
        self._add(first.invars[0], inputs[0], second.invars[0], inputs[1])

    def _convolution(
        self, first: Eqn, at: Sequence[Index], second: Eqn, to: Sequence[Index]
    ) -> None:
        if any(first.params[k] != second.params[k] for k in _WINDOW):
            raise Difference("a convolution with a different window")
        if _precision(first) != _precision(second):
            raise Difference("a convolution with a different precision")
        specs = [e.params["dimension_numbers"] for e in (first, second)]
        # Batch, features, then the axes of the window.
        if [at[i] for i in specs[0].out_spec] != [to[i] for i in specs[1].out_spec]:
            raise Difference("a convolution along different axes")
        for k, name in enumerate(("lhs_spec", "rhs_spec")):
            v, w = first.invars[k], second.invars[k]
            here, there = (getattr(s, name) for s in specs)
            if [v.aval.shape[i] for i in here] != [w.aval.shape[i] for i in there]:
                raise Difference("a convolution of arrays of different sizes")
            places = range(len(here))
            self._add(v, [here.index(i) for i in places], w, [there.index(i) for i in places])

    def _take(self, first: Eqn, at: Sequence[Index], second: Eqn, to: Sequence[Index]) -> None:
        outside = [indices.out_of_bounds(e) for e in (first, second)]
        if outside[0] != outside[1]:
            raise Difference(
                f"indices out of bounds {outside[1]} where those of Equinox {outside[0]}"
            )
        bound = next(indices.fresh(at, to))
        left = indices.operands_of_take(first, at, bound)
        right = indices.operands_of_take(second, to, bound)
        for v, w, i, j in zip(first.invars, second.invars, left, right, strict=True):
            self._add(v, i, w, j)

    def _opaque(
        self, first: Eqn, x: Atom, at: Sequence[Index], second: Eqn, y: Atom, to: Sequence[Index]
    ) -> None:
        """Require equal operations on whole arrays, and the same element of the result."""
        same = first.primitive is second.primitive and same_params(first.params, second.params)
        if not same or len(first.invars) != len(second.invars):
            raise Difference(f"{first.primitive.name} with different parameters")
        outs: tuple[list[Atom], list[Atom]] = [*first.outvars], [*second.outvars]
        if at != to or outs[0].index(x) != outs[1].index(y):
            raise Difference(f"a different element of the result of {first.primitive.name}")
        for v, w in zip(first.invars, second.invars, strict=True):
            self._whole(v, w)


def _precision(eqn: Eqn) -> object:
    """The precision of a product; `None` for the default."""
    precision = eqn.params["precision"]
    return None if precision in (None, (None, None), _DEFAULT, (_DEFAULT, _DEFAULT)) else precision


def _described(atom: Atom, eqn: Eqn | None) -> str:
    if eqn is not None:
        return eqn.primitive.name
    return f"the number {atom.val}" if isinstance(atom, Literal) else "an argument"


def flat(closed: AnyJaxpr) -> AnyJaxpr:
    """The program with all calls inlined."""
    called = functools.partial(kinds.called, calls=frozenset(("jit",)))
    with jax.enable_x64(True):
        while calls := [c for e in open_jaxpr(closed).eqns if (c := called(e)) is not None]:
            # The rules of functions in a normal form are programs, which cannot be traced.
            if all(literals(c) is not None for c in calls):
                closed = close_like(closed, with_inlined(open_jaxpr(closed), called))
            else:
                closed = inline_calls(closed)
    return closed


def laid(value: Any, layout: Layout, depth: int) -> Any:
    """An array in a different layout; the first `depth` axes are kept."""
    order, shape = layout
    rest = [i + depth for i in order]
    return value.transpose([*range(depth), *rest]).reshape(*value.shape[:depth], *shape)
