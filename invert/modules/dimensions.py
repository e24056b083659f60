"""Names of the open dimensions of a function's arguments, and its symbolic shapes."""

from __future__ import annotations

import collections
import dataclasses
import functools
import re
from collections.abc import Mapping, Sequence
from typing import Literal

import jax
import jax.export

from invert._entry import ArgSpec, EntryPoint
from invert._errors import SignatureError
from invert._private.jax import SIZE_ERRORS, dim_terms
from invert.emission.python.naming import Names, identifier
from invert.ir.sizes import (
    Constraint,
    Shape,
    decided,
    dimension,
    dimensions,
    evaluate,
    parsed,
    scope,
)

# JAX's parser treats these as operations.
_OPERATIONS = ("floordiv", "mod", "max", "min")
_EXPRESSION = re.compile(r"[\w\s+*(),-]*")


def named_shapes(
    specs: Sequence[ArgSpec], shared: Literal["batch", "axes", "none"] = "batch"
) -> list[list[int | str]]:
    """The shapes with a name, or the container's expression, for each open size.

    **Arguments:**

    - `shared`: the unnamed open sizes that all arguments share: the first axis (the batch), every
        axis, or none.
    """
    stated = [n for spec in specs for n in spec.shape if isinstance(n, str)]
    taken = Names()
    for name in {word for n in stated for word in re.findall(r"[A-Za-z_]\w*", n)}:
        taken.new(name)
    for name in _OPERATIONS:
        taken.new(name)
    groups = _groups(specs)
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
                wanted = _default_name(spec, axis)
                if spec.name in groups and key != "batch":
                    wanted = f"{groups[spec.name]}_{wanted}"
                if wanted in known.values():
                    wanted = f"{spec.name}_{_default_name(spec, axis)}"
                known[key] = taken.new(identifier(wanted, "size"))
            shape.append(known[key])
        shapes.append(shape)
    return shapes


def _groups(specs: Sequence[ArgSpec]) -> dict[str, str]:
    """The first words of names of open arguments, if several share each.

    The arguments of an encoder have one length, and those of a decoder another.
    """
    long = [s.name for s in specs if None in s.shape[1:] and s.name]
    words = {name: name.partition("_")[0] for name in long}
    counts = collections.Counter(words.values())
    return words if len(counts) > 1 and min(counts.values()) > 1 else {}


def _default_name(spec: ArgSpec, axis: int) -> str:
    """The default name of an open size, such as `length`, `height` or `width`."""
    if axis == 0:
        return "batch"
    rest = [i for i, size in enumerate(spec.shape) if size is None and i]
    if len(spec.shape) == 4 and len(rest) == 2 and rest[1] == rest[0] + 1:
        return ("height", "width")[axis - rest[0]]
    return "length" if axis == 1 else f"size_{axis}"


def with_sizes(entry: EntryPoint, sizes: Mapping[str, str] | None) -> EntryPoint:
    """The entry point with names and numbers from `Config.sizes` for open sizes.

    A name stated by the container is replaced wherever it occurs.

    **Raises:** `SignatureError` that lists all mismatches.
    """
    if not sizes:
        return entry
    specs = entry.specs
    problems: list[str] = []
    named: dict[str, str] = {}
    given: dict[int, tuple[int | str | None, ...]] = {}
    for name, text in sizes.items():
        positions = [i for i, s in enumerate(specs) if s.name == name]
        if not positions:
            known = ", ".join(repr(s.name) for s in specs)
            problems.append(f"sizes: no argument is named {name!r}; there are {known}")
        for i in positions:
            given[i] = _given_sizes(specs[i], text, named, problems)
    if problems:
        raise SignatureError(
            f"{entry.name}: " + "; ".join(problems), remedy="Change Config(sizes=...)."
        )

    def renamed(size: int | str | None) -> int | str | None:
        if not isinstance(size, str):
            return size
        text = re.sub(r"[A-Za-z_]\w*", lambda m: named.get(m[0], m[0]), size)
        return int(text) if text.isdecimal() else text

    count = iter(range(len(specs)))

    def resized(spec: ArgSpec) -> ArgSpec:
        shape = given.get(next(count), spec.shape)
        return dataclasses.replace(spec, shape=tuple(map(renamed, shape)))

    args, kwargs = jax.tree_util.tree_map(resized, (entry.args, dict(entry.kwargs)))
    results = entry.results and tuple(
        dataclasses.replace(r, shape=tuple(map(renamed, r.shape))) for r in entry.results
    )
    return dataclasses.replace(entry, args=args, kwargs=kwargs, results=results)


def opened_sizes(spec: ArgSpec, text: str) -> tuple[int | None, ...] | None:
    """An example's shape with the named sizes open; `None` for other ranks."""
    words = text.split()
    if len(words) != len(spec.shape):
        return None
    return tuple(
        n if isinstance(n, int) and w.isdecimal() else None
        for n, w in zip(spec.shape, words, strict=True)
    )


def _given_sizes(
    spec: ArgSpec, text: str, named: dict[str, str], problems: list[str]
) -> tuple[int | str | None, ...]:
    """The shape of an argument from its text; records renamed dimensions in `named`."""
    words, shape = text.split(), list(spec.shape)
    what = f"sizes of {spec.name!r}: {text!r}"
    if len(words) != len(shape):
        problems.append(f"{what} has {len(words)} sizes, but the argument has {len(shape)}")
        return spec.shape
    for axis, (word, size) in enumerate(zip(words, shape, strict=True)):
        if isinstance(size, int):
            if word != str(size):
                open_it = "" if word.isdecimal() else ", since the program was made for it"
                problems.append(f"{what}, but axis {axis} has size {size}{open_it}")
        elif not (word.isdecimal() or (word.isidentifier() and word not in _OPERATIONS)):
            problems.append(f"{what}: {word!r} is neither a name nor a number")
        elif size is None:
            shape[axis] = int(word) if word.isdecimal() else word
        elif not size.isidentifier():
            if word != size:
                problems.append(f"{what}: axis {axis} is {size}; name the dimensions in it")
        elif named.setdefault(size, word) != word:
            problems.append(f"{what}: dimension {size!r} is {named[size]!r} elsewhere")
    return tuple(shape)


def symbolic_shapes(
    shapes: Sequence[Sequence[int | str]], constraints: Sequence[Constraint] = ()
) -> list[Shape] | None:
    """The shapes as expressions of their dimensions; `None` if one cannot be parsed."""
    if any(not _EXPRESSION.fullmatch(n) for shape in shapes for n in shape if isinstance(n, str)):
        return None
    try:
        of = scope_of(constraints)
        return [parsed(shape, of) for shape in shapes]
    except (ValueError, NotImplementedError, *SIZE_ERRORS):
        return None


def scope_of(constraints: Sequence[Constraint]) -> jax.export.SymbolicScope:
    """The scope with those constraints that JAX can represent."""
    kept: tuple[str, ...] = ()
    names = sorted({d for c in constraints for d in c.dimensions})
    # An equality replaces a dimension, but not in earlier constraints: expressions would still
    # hold it, or JAX's comparisons recur without end (jax/_src/export/shape_poly_decision.py, jax
    # 0.10.2). So those of dimensions come first.
    ordered = sorted(
        _multiples(constraints),
        key=lambda c: (c.relation != "eq", dimension(c.left) is None),
    )
    for text in filter(None, (c.text() for c in ordered)):
        orders = ((*kept, text), (text, *kept))
        usable = (order for order in orders if _usable(order, tuple(names)))
        kept = next(usable, kept)  # any other is checked when the program runs
    return scope(kept)


def _multiples(constraints: Sequence[Constraint]) -> list[Constraint]:
    """Replace `n == floordiv(m, 2)` by `m == 2*n` where `mod(m, 2) == 0`.

    JAX replaces `m`, and so computes with a multiple instead of a quotient.
    """
    zeros = {c.words() for c in constraints if c.relation == "eq"}

    def multiple(c: Constraint) -> Constraint:
        match dim_terms(c.right):
            case [(1, [(("floordiv", (whole, int() as n)), 1)])] if c.relation == "eq":
                if dimension(c.left) and dimension(whole) and f"mod({whole}, {n}) == 0" in zeros:
                    return dataclasses.replace(c, left=whole, right=n * c.left)
        return c

    return [*map(multiple, constraints)]


@functools.lru_cache(maxsize=1024)
def _usable(conditions: tuple[str, ...], names: Sequence[str]) -> bool:
    """Return whether JAX can compute with dimensions under some conditions.

    JAX replaces a dimension that equals an expression, even one that contains the dimension. A
    contradiction is an error at the first comparison.
    """
    try:
        of = scope(conditions)
        # Another dimension is compared too: all of these may be replaced by numbers.
        *parts, other = parsed((*names, "other"), of)
        sizes = dict(zip(names, parts, strict=True))
        left = {d for size in parts for d in dimensions(size)}
        for size in (*(sizes[name] for name in left), other):
            decided("ge", size, 2)
    except (ValueError, NotImplementedError, RecursionError):
        return False
    return all(dimension(sizes[name]) == name for name in left)


def independent(constraints: Sequence[Constraint]) -> tuple[Constraint, ...]:
    """The constraints without redundant ones."""
    kept = [*{c.words(): c for c in constraints}.values()]
    for c in sorted(kept, key=lambda c: -len(c.words())):
        others = [k for k in kept if k is not c]
        of = scope_of(others)
        moved = c.at({d: parsed((d,), of)[0] for d in c.dimensions})
        if decided(moved.relation, moved.left, moved.right):
            kept = others
    return tuple(kept)


def at_numbers(shapes: Sequence[Sequence[int | str]], numbers: Sequence[int]) -> list[list[int]]:
    """The shapes at numbers for their dimensions, in order of appearance, cyclically.

    **Raises:** `SignatureError` if a size cannot be parsed.
    """
    if (symbolic := symbolic_shapes(shapes)) is None:
        raise SignatureError(
            f"the sizes {[*map(list, shapes)]} cannot be read",
            remedy="Write a size as a number, a name, or an expression of names such as `2*n + 1`.",
        )
    names = dimension_order(symbolic)
    values = {name: numbers[i % len(numbers)] for i, name in enumerate(names)}
    return [[evaluate(n, values) for n in shape] for shape in symbolic]


def dimension_order(shapes: Sequence[Shape]) -> list[str]:
    """The names of the dimensions in some shapes, in order of appearance."""
    return list(dict.fromkeys(d for shape in shapes for n in shape for d in sorted(dimensions(n))))
