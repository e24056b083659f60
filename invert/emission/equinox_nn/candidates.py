"""Candidates of `equinox.nn` for a layer, read from the equations that use its parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from invert.emission.layers.native import Native
from invert.ir import kinds
from invert.ir.graph import is_var
from invert.ir.sizes import is_open
from invert.ir.types import Atom, Eqn, Jaxpr, Literal, Var

# The array fields of all layers of `equinox.nn`, in order.
FIELDS = ("weight", "bias")


Roles = tuple[int, ...]
# The shapes of the value and of the result.
Sizes = tuple[tuple[int, ...], tuple[int, ...]]
Candidates = Iterator[tuple[Native, Roles]]


def candidates(jaxpr: Jaxpr, sizes: Sizes) -> Candidates:
    """Layers that a program may be, and the parameter for each of their arrays.

    **Arguments:**

    - `jaxpr`: a program of one value and parameters.
    - `sizes`: the shapes of the value and the result, with open sizes.
    """
    _, *held = jaxpr.invars
    uses = _Uses(jaxpr, {v: i for i, v in enumerate(held)})
    for name, row in _ROWS:
        for eqn in jaxpr.eqns:
            if eqn.primitive.name == name:
                yield from row(eqn, uses, sizes)
                break


class _Uses:
    """The first operation on each parameter that does more than move its elements."""

    def __init__(self, jaxpr: Jaxpr, parameters: Mapping[Var, int]):
        self.jaxpr = jaxpr
        self.of: dict[Atom, int] = {**parameters}
        self.count = len(parameters)
        self.shapes = {i: tuple(v.aval.shape) for v, i in parameters.items()}
        self.first: dict[int, str] = {}
        for eqn in jaxpr.eqns:
            for atom in eqn.invars:
                if not is_var(atom) or atom not in self.of:
                    continue
                if eqn.primitive.name in _PASSED:
                    self.of[eqn.outvars[0]] = self.of[atom]
                else:
                    self.first.setdefault(self.of[atom], eqn.primitive.name)

    def by(self, name: str) -> int | None:
        return next((i for i, n in self.first.items() if n == name), None)


# These keep all elements of a parameter.
_PASSED = kinds.LAYOUT | {"convert_element_type"}


def _linear(eqn: Eqn, uses: _Uses, sizes: Sizes) -> Candidates:
    weight, bias = uses.by("dot_general"), uses.by("add")
    if weight is None:
        return
    ((left, right), (batch, _)) = eqn.params["dimension_numbers"]
    here = uses.of.get(eqn.invars[0]) == weight
    axes = left if here else right
    value = eqn.invars[1 if here else 0]
    if batch or not is_var(value):
        return
    shape = uses.shapes[weight]
    n_in = int(np.prod([eqn.invars[0 if here else 1].aval.shape[i] for i in axes]))
    total = int(np.prod(shape))
    if not n_in or total % n_in:
        return
    n_out = total // n_in
    x, y = sizes
    keep = len(x)
    while keep and int(np.prod([int(n) for n in x[keep:]])) != n_in:
        keep -= 1
    if int(np.prod([int(n) for n in x[keep:]])) != n_in:
        return
    one_in = len(x) - keep == 1
    one_out = len(y) - keep == 1
    roles = (weight,) if bias is None else (weight, bias)
    yield Native(
        "Linear", (n_in, n_out), () if bias is not None else (("use_bias", False),), maps=keep,
        into=None if one_in else (*x[:keep], n_in), out=None if one_out else tuple(y),
    ), roles  # fmt: skip


def _convolution(eqn: Eqn, uses: _Uses, sizes: Sizes) -> Candidates:
    weight, bias = uses.by("conv_general_dilated"), uses.by("add")
    if weight is None or uses.of.get(eqn.invars[1]) != weight:
        return
    params = eqn.params
    spec = params["dimension_numbers"]
    n = len(params["window_strides"])
    if not 1 <= n <= 3 or len(sizes[0]) != n + 2 or params["batch_group_count"] != 1:
        return
    kernel = [eqn.invars[1].aval.shape[i] for i in spec.rhs_spec]
    groups = params["feature_group_count"]
    padding = tuple(tuple(map(int, p)) for p in params["padding"])
    keywords: dict[str, Any] = {}
    transposed = any(d != 1 for d in params["lhs_dilation"])
    steps = params["lhs_dilation"] if transposed else params["window_strides"]
    if any(d != 1 for d in steps):
        keywords["stride"] = _short(steps)
    if transposed:
        # The part of the full correlation that padding cuts off, on both sides and at the end.
        full = [d * (k - 1) for d, k in zip(params["rhs_dilation"], kernel[2:], strict=True)]
        low = [f - p[0] for f, p in zip(full, padding, strict=True)]
        more = [p[1] - f + w for f, p, w in zip(full, padding, low, strict=True)]
        if any(w != 1 for w in params["window_strides"]) or any(m < 0 for m in more):
            low = [f - p[0] for f, p in zip(full, padding, strict=True)]
            keywords["padding"] = tuple(
                (f - a, f - b) for f, (a, b) in zip(full, padding, strict=True)
            )
        else:
            keywords["padding"] = _short(low)
            if any(more):
                keywords["output_padding"] = _short(more)
    elif any(p != (0, 0) for p in padding):
        even = all(a == b for a, b in padding)
        keywords["padding"] = _short([a for a, _ in padding]) if even else padding
    if any(d != 1 for d in params["rhs_dilation"]):
        keywords["dilation"] = _short(params["rhs_dilation"])
    if groups != 1:
        keywords["groups"] = groups
    if bias is None:
        keywords["use_bias"] = False
    plain = tuple(range(n + 2))
    before, after = tuple(spec.lhs_spec), tuple(spec.out_spec.index(i) for i in plain)
    yield Native(
        f"{'ConvTranspose' if transposed else 'Conv'}{n}d",
        (kernel[1] * groups, kernel[0], _short(kernel[2:])),
        tuple(keywords.items()),
        maps=1,
        before=() if before == plain else before,
        after=() if after == plain else after,
    ), ((weight,) if bias is None else (weight, bias))  # fmt: skip


def _short(sizes: Sequence[int]) -> int | tuple[int, ...]:
    """A single number if all sizes are equal."""
    numbers = tuple(int(n) for n in sizes)
    return numbers[0] if len(set(numbers)) == 1 else numbers


def _norm(eqn: Eqn, uses: _Uses, sizes: Sizes) -> Candidates:
    weight, bias = uses.by("mul"), uses.by("add")
    epsilon = _beside(uses.jaxpr, eqn)
    if epsilon is None or (weight is None and bias is None):
        return
    shape = uses.shapes[weight if weight is not None else bias]  # type: ignore[index]
    keywords: dict[str, Any] = {"eps": epsilon}
    if weight is None:
        keywords["use_weight"] = False
    if bias is None:
        keywords["use_bias"] = False
    roles = tuple(i for i in (weight, bias) if i is not None)
    x = sizes[0]
    if x[len(x) - len(shape) :] == shape:
        size = shape[0] if len(shape) == 1 else shape
        maps = len(x) - len(shape)
        for kind in ("LayerNorm", "RMSNorm"):
            yield Native(kind, (size,), tuple(keywords.items()), keyed=False, maps=maps), roles
    if len(shape) == 1 and len(x) > 2 and weight is not None and bias is not None:
        for axis in dict.fromkeys((1, len(x) - 1)):
            yield from _groups(axis, shape[0], epsilon, uses.jaxpr, x, roles)


def _groups(
    axis: int, channels: int, epsilon: float, jaxpr: Jaxpr, x: Sequence[int], roles: Roles
) -> Candidates:
    """Group norms, with the numbers of groups that occur in the program's shapes."""
    if x[axis] != channels:
        return
    sizes = {n for e in jaxpr.eqns for v in e.outvars for n in v.aval.shape if not is_open(n)}
    before = (0, axis, *(i for i in range(1, len(x)) if i != axis))
    plain = tuple(range(len(x)))
    after = tuple(before.index(i) for i in plain)
    for groups in sorted(int(g) for g in sizes if g and channels % g == 0):
        yield Native(
            "GroupNorm", (groups, channels), (("eps", epsilon),), keyed=False, maps=1,
            before=() if before == plain else before, after=() if before == plain else after,
        ), roles  # fmt: skip


def _beside(jaxpr: Jaxpr, eqn: Eqn) -> float | None:
    """The number that was added to the operand of an equation."""
    makers: dict[Atom, Eqn] = {v: e for e in jaxpr.eqns for v in e.outvars}
    made = makers.get(eqn.invars[0])
    for _ in range(4):
        if made is None or made.primitive.name not in _PASSED:
            break
        made = makers.get(made.invars[0])
    if made is None or made.primitive.name != "add":
        return None
    for atom in made.invars:
        while is_var(atom) and (inner := makers.get(atom)) is not None:
            if inner.primitive.name not in _PASSED:
                break
            atom = inner.invars[0]
        if isinstance(atom, Literal):
            # The shortest number with the same value in the dtype of the program.
            return float(str(np.asarray(atom.val)[()]))
    return None


def _embedding(eqn: Eqn, uses: _Uses, sizes: Sizes) -> Candidates:
    weight = uses.by("gather")
    if weight is not None and len(uses.shapes[weight]) == 2:
        yield Native("Embedding", uses.shapes[weight], maps=len(sizes[0])), (weight,)


_ROWS = (
    ("dot_general", _linear),
    ("conv_general_dilated", _convolution),
    ("rsqrt", _norm),
    ("gather", _embedding),
)
