"""Images that are flattened to vectors, or made from them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from invert.emission.layers.cut import LayerCall
from invert.emission.layers.tree import Node


def flattened(nodes: Iterable[Node]) -> Iterator[tuple[int, Sequence[int]]]:
    """The sizes of the images in some layers, by their numbers of elements."""
    for step in (s for node in nodes for layer in node.layers for s in layer.steps):
        if step.primitive.name == "reshape" and not isinstance(step, LayerCall):
            shapes = step.invars[0].aval.shape, step.outvars[0].aval.shape
            (flat, image) = sorted(shapes, key=len)
            known = all(isinstance(n, int) and n > 1 for n in image[1:])
            if known and len(flat) == 2 and len(image) > 3 and flat[0] == image[0]:
                yield flat[1], image[1:]
