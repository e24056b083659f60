"""Linear expressions over traced integers, to prove that differences are constant.

`x[i : i + 2]` has two rows for every `i`. The expression of a traced integer is read off the
equations that were traced.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from invert._private.jax import is_tracer, made_by
from invert.ir import kinds

# Bounds are short vectors, a few equations away from what they depend on.
_MOST = 16
_DEEPEST = 32

# Coefficients of other traced integers by their `id` and place in them; those of `None` are added.
_Sum = dict[tuple[int, int] | None, int]


def distance(low: Any, high: Any) -> int | None:
    """`high - low` of two integers, where it does not depend on data."""
    seen: dict[int, list[_Sum]] = {}
    (a,), (b,) = _sums(low, 0, seen), _sums(high, 0, seen)
    difference = _added(b, a, -1)
    return difference.get(None, 0) if set(difference) <= {None} else None


def known(vector: Any) -> np.ndarray | None:
    """The value of a vector of integers that does not depend on data, though it may be traced."""
    if isinstance(vector, np.ndarray):
        return vector
    if math.prod(vector.shape) > _MOST:
        return None
    sums = _sums(vector, 0, {})
    if any(set(one) - {None} for one in sums):
        return None
    return np.asarray([one.get(None, 0) for one in sums], vector.dtype).reshape(vector.shape)


def _added(a: _Sum, b: _Sum, factor: int = 1) -> _Sum:
    keys = [*a, *(k for k in b if k not in a)]
    total = {k: a.get(k, 0) + factor * b.get(k, 0) for k in keys}
    return {k: n for k, n in total.items() if n}


def _times(a: _Sum, b: _Sum) -> _Sum | None:
    for one, other in ((a, b), (b, a)):
        if set(one) <= {None}:
            return _added({}, other, one.get(None, 0))
    return None


def _sums(x: Any, depth: int, seen: dict[int, list[_Sum]]) -> list[_Sum]:
    """Each element of a small array as a sum. `seen`: those of other arrays, by `id`."""
    if not is_tracer(x):
        return [{None: int(n)} for n in np.ravel(np.asarray(x)).tolist()]
    if id(x) not in seen:
        seen[id(x)] = _sums_of(x, depth, seen)
    return seen[id(x)]


def _sums_of(x: Any, depth: int, seen: dict[int, list[_Sum]]) -> list[_Sum]:
    count = math.prod(x.shape)
    atoms: list[_Sum] = [{(id(x), i): 1} for i in range(count)]
    source = made_by(x)
    if source is None or depth > _DEEPEST or not np.issubdtype(x.dtype, np.integer):
        return atoms
    name, operands, params = source
    if any(math.prod(np.shape(o)) > _MOST for o in operands):
        return atoms
    rule = _RULES.get(name)
    if rule is None or not all(np.issubdtype(np.result_type(o), np.integer) for o in operands):
        return atoms
    sums = [_sums(o, depth + 1, seen) for o in operands]
    results = rule(sums, count, [np.shape(o) for o in operands], params)
    return atoms if results is None or len(results) != count else results


_Rule = Callable[[Sequence[list[_Sum]], int, Sequence[Any], Any], list[_Sum] | None]


def _elementwise(combine: Callable[[_Sum, _Sum], _Sum | None]) -> _Rule:
    def rule(
        operands: Sequence[list[_Sum]], count: int, shapes: Sequence[Any], params: Any
    ) -> list[_Sum] | None:
        a, b = (o * count if len(o) == 1 else o for o in operands)
        sums = [combine(p, q) for p, q in zip(a, b, strict=True)]
        return None if None in sums else [s for s in sums if s is not None]

    return rule


def _same(
    operands: Sequence[list[_Sum]], count: int, shapes: Sequence[Any], params: Any
) -> list[_Sum] | None:
    (elements,) = operands
    return elements * count if len(elements) == 1 else elements


def _negative(
    operands: Sequence[list[_Sum]], count: int, shapes: Sequence[Any], params: Any
) -> list[_Sum] | None:
    return [_added({}, one, -1) for one in operands[0]]


def _joined(
    operands: Sequence[list[_Sum]], count: int, shapes: Sequence[Any], params: Any
) -> list[_Sum] | None:
    # Vectors, or scalars that become one.
    if any(len(shape) > 1 for shape in shapes):
        return None
    return [one for elements in operands for one in elements]


def _slice(
    operands: Sequence[list[_Sum]], count: int, shapes: Sequence[Any], params: Any
) -> list[_Sum] | None:
    if len(shapes[0]) != 1:
        return None
    (start,), (stop,), steps = params["start_indices"], params["limit_indices"], params["strides"]
    return operands[0][start : stop : 1 if steps is None else steps[0]]


_RULES: dict[str, _Rule] = {
    "add": _elementwise(_added),
    "sub": _elementwise(lambda a, b: _added(a, b, -1)),
    "mul": _elementwise(_times),
    "neg": _negative,
    # A broadcast is of a scalar; what a vector becomes has as many elements only where it stays
    # one. A transpose puts the elements in another order.
    **dict.fromkeys(kinds.LAYOUT - {"transpose"} | {"convert_element_type", "copy"}, _same),
    "concatenate": _joined,
    "stack": _joined,
    "slice": _slice,
}
