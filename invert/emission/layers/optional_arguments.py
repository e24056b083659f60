"""Arguments that only some layers of a class take, such as the bias of an attention's scores."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from invert.emission.layers.shared import Draft
from invert.emission.layers.ties import Ties
from invert.emission.python import syntax
from invert.ir.types import Var


def lacking(whole: Draft, other: Draft) -> list[str]:
    """The last arguments of one layer's method, where another layer's has fewer."""
    (method,), (shorter,) = whole.methods, other.methods
    return [a.arg for a in method.args.args[len(shorter.args.args) :]]


def place(draft: Draft, name: str) -> int | None:
    """The position of an argument among the arrays of a layer."""
    named = (i for i, s in enumerate(draft.sources) if s is not None and syntax.is_named(s, name))
    return next(named, None)


def of(method: ast.FunctionDef) -> list[str]:
    """The arguments of a method that calls may lack."""
    count = len(method.args.args) - len(method.args.defaults)
    return [a.arg for a in method.args.args[count:]]


def complete(draft: Draft, whole: Draft, names: Sequence[str]) -> None:
    """Add the arrays that a layer does not take, at the sizes they would have.

    **Arguments:**

    - `draft`: a layer with the method of `whole`.
    - `names`: the arguments that it lacks.
    """
    if not names:
        return
    ties = Ties()
    for layer in whole.node.layers:
        ties.layer(layer)
    (method,) = draft.methods
    types = {a.arg: a.annotation for a in method.args.args}
    for name in names:
        at, annotation = place(whole, name), types[name]
        assert at is not None and annotation is not None  # ensured by `Family.takes`
        kind, shape = whole.arrays[at]
        sizes = [
            next(_tied(whole, draft, ties, at, axis), (size, None))
            for axis, size in enumerate(shape)
        ]
        draft.arrays.insert(at, (kind, tuple(size for size, _ in sizes)))
        draft.axes.insert(at, tuple(axis for _, axis in sizes))
        draft.sources.insert(at, ast.Name(name, ast.Load()))
        draft.annotations.insert(at, annotation)
    draft.absent = tuple(names)


def _tied(
    whole: Draft, draft: Draft, ties: Ties, at: int, axis: int
) -> Iterator[tuple[int, tuple[Var, int] | None]]:
    """The sizes in a layer, with their axes, that one of an argument has to be equal to."""
    own = whole.axes[at][axis]
    if own is None:
        return
    root, size = ties.root(ties.axis(*own)), whole.arrays[at][1][axis]
    for j, source in enumerate(whole.sources):
        if source is None or j == at or draft.sources[j] is None:
            continue
        for k, other in enumerate(reversed(whole.axes[j]), 1):
            if other is None or k > len(draft.arrays[j][1]):
                continue
            if ties.root(ties.axis(*other)) == root and whole.arrays[j][1][-k] == size:
                yield draft.arrays[j][1][-k], draft.axes[j][-k]


def settle(drafts: Sequence[Draft]) -> None:
    """Remove arguments that no layer takes, and the defaults of those that all take."""
    for name in of(drafts[0].methods[0]):
        absent = [name in d.absent for d in drafts]
        if all(absent):
            for draft in drafts:
                _remove(draft, name)
    if not any(d.absent for d in drafts):
        for draft in drafts:
            draft.methods[0].args.defaults = []


def _remove(draft: Draft, name: str) -> None:
    (method,), at = draft.methods, place(draft, name)
    assert at is not None
    for items in (draft.arrays, draft.axes, draft.annotations, draft.sources):
        del items[at]
    method.args.args = [a for a in method.args.args if a.arg != name]
    method.args.defaults = method.args.defaults[1:]
    draft.absent = tuple(n for n in draft.absent if n != name)
