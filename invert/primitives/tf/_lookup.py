"""Which rule raises a node: one of the registry, the XLA bridge, or TensorFlow on the host."""

from __future__ import annotations

from ._bridge import bridge_entry
from ._host import host_entry, text_entry
from ._node import Node
from ._registry import REGISTRY, Entry


def entry_of(node: Node) -> Entry | None:
    """How to raise `node`; `None` where nothing can."""
    return text_entry(node) or REGISTRY.get(node.op) or bridge_entry(node.op) or host_entry(node.op)
