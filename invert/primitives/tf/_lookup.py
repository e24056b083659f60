"""Which rule raises a node: one of the registry, the XLA bridge, or TensorFlow on the host."""

from __future__ import annotations

from ._bridge import bridge_entry
from ._host import host_entry, text_entry
from ._node import Node
from ._registry import REGISTRY, Entry

# Ops with the inputs and attributes of another, whose rule is theirs.
_SAME = {"XlaIf": "StatelessIf", "XlaWhile": "StatelessWhile"}


def entry_of(node: Node) -> Entry | None:
    """How to raise `node`; `None` where nothing can."""
    op = _SAME.get(node.op, node.op)
    return text_entry(node) or REGISTRY.get(op) or bridge_entry(op) or host_entry(op)
