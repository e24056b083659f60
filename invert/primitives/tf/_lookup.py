"""Which rule raises a node: one of the registry, the XLA bridge, or TensorFlow itself for text."""

from __future__ import annotations

from ._bridge import bridge_entry
from ._node import Node
from ._registry import REGISTRY, Entry


def entry_of(node: Node) -> Entry | None:
    """How to raise `node`; `None` where nothing can."""
    return REGISTRY.get(node.op) or bridge_entry(node.op)
