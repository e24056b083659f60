"""The open dimensions of a function's arguments: their names, and shapes of expressions of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

import jax.export

from invert._entry import ArgSpec
from invert._errors import SignatureError
from invert._private.jax import SIZE_ERRORS
from invert.emission.python.naming import Names, identifier
from invert.ir.sizes import Constraint, Shape, dimensions, evaluate, parsed, scope

# JAX's parser takes these for operations.
_OPERATIONS = ("floordiv", "mod", "max", "min")
_EXPRESSION = re.compile(r"[\w\s+*(),-]*")


def named_shapes(
    specs: Sequence[ArgSpec], shared: Literal["batch", "axes", "none"] = "batch"
) -> list[list[int | str]]:
    """The shapes with a name, or the expression that the container states, for each open size.

    **Arguments:**

    - `shared`: which open sizes without a name all arguments share: the first, which is the batch;
        those of every axis; or none.
    """
    stated = [n for spec in specs for n in spec.shape if isinstance(n, str)]
    taken = Names()
    for name in {word for n in stated for word in re.findall(r"[A-Za-z_]\w*", n)}:
        taken.new(name)
    for name in _OPERATIONS:
        taken.new(name)
    known: dict[tuple[str, int] | str, str] = {}
    shapes: list[list[int | str]] = []
    for spec in specs:
        shape: list[int | str] = []
        for axis, size in enumerate(spec.shape):
            if size is not None:
                shape.append(size)
                continue
            own = ("" if shared == "axes" else spec.name, axis)
            key = "batch" if axis == 0 and shared != "none" else own
            if key not in known:
                # What has two axes or more is a row of steps for each of the batch.
                common = "length" if axis == 1 else f"size_{axis}"
                wanted = "batch" if axis == 0 else f"{own[0]}_{axis}" if own[0] else common
                known[key] = taken.new(identifier(wanted, "size"))
            shape.append(known[key])
        shapes.append(shape)
    return shapes


def symbolic_shapes(
    shapes: Sequence[Sequence[int | str]], constraints: Sequence[Constraint] = ()
) -> list[Shape] | None:
    """The shapes as expressions of their dimensions; `None` where one cannot be read."""
    if any(not _EXPRESSION.fullmatch(n) for shape in shapes for n in shape if isinstance(n, str)):
        return None
    try:
        of = scope_of(constraints)
        return [parsed(shape, of) for shape in shapes]
    except (ValueError, NotImplementedError, *SIZE_ERRORS):
        return None


def scope_of(constraints: Sequence[Constraint]) -> jax.export.SymbolicScope:
    """The scope under those of the constraints that JAX can hold."""
    kept: list[str] = []
    for text in (c.text() for c in constraints):
        if not text:
            continue
        try:
            scope([*kept, text])
            kept.append(text)
        except (ValueError, NotImplementedError):
            continue  # it is checked when the program runs
    return scope(kept)


def at_numbers(shapes: Sequence[Sequence[int | str]], numbers: Sequence[int]) -> list[list[int]]:
    """The shapes at numbers for their dimensions, in order of appearance, again from the first.

    **Raises:** `SignatureError` where a size cannot be read.
    """
    if (found := symbolic_shapes(shapes)) is None:
        raise SignatureError(f"the sizes {[*map(list, shapes)]} cannot be read")
    names = dimension_order(found)
    values = {name: numbers[i % len(numbers)] for i, name in enumerate(names)}
    return [[evaluate(n, values) for n in shape] for shape in found]


def dimension_order(shapes: Sequence[Shape]) -> list[str]:
    """The names of the dimensions in some shapes, in order of appearance."""
    return list(dict.fromkeys(d for shape in shapes for n in shape for d in sorted(dimensions(n))))
