"""Gives layers only read from outside the method of others with these arrays."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from invert.emission.layers.shared import Draft
from invert.emission.python import syntax


def lend(drafts: Sequence[Draft], arrays: Callable[[Draft], Hashable]) -> None:
    """Lend methods to such layers, such as an embedding whose table is read.

    **Arguments:**

    - `arrays`: the names, kinds and initial values of the fields.
    """
    having: dict[Hashable, Draft] = {}
    for draft in drafts:
        if len(draft.methods) == 1 and not draft.node.nodes:
            having.setdefault(arrays(draft), draft)
    for draft in drafts:
        other = None if draft.methods or draft.node.nodes else having.get(arrays(draft))
        if other is None or _rows(draft) != _rows(other)[: len(draft.arrays)]:
            continue
        rest = slice(len(draft.arrays), None)
        # Together, since annotations and sources are parts of the method.
        copies = syntax.cloned((other.methods, other.annotations[rest], other.sources[rest]))
        draft.methods = copies[0]
        draft.annotations += copies[1]
        draft.sources += copies[2]
        draft.texts = list(other.texts)
        draft.arrays = draft.arrays + other.arrays[rest]
        draft.axes = draft.axes + other.axes[rest]


def _rows(draft: Draft) -> list[tuple[int, ...]]:
    return [shape[1:] for _, shape in draft.arrays]
