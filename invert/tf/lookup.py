"""Which rule raises a node: one of the registry, the XLA bridge, or TensorFlow on the host."""

from __future__ import annotations

from typing import Literal

from invert.tf.fallback.host import host_entry, runs_on_host, text_entry
from invert.tf.fallback.host_ops import LOOKUPS, REFUSED
from invert.tf.fallback.xla_bridge import bridge_entry
from invert.tf.ops.node import Node
from invert.tf.ops.registry import REGISTRY, Entry

# Ops with the inputs and attributes of another, whose rule is theirs.
_SAME = {"XlaIf": "StatelessIf", "XlaWhile": "StatelessWhile"}


def entry_of(node: Node) -> Entry | None:
    """How to raise `node`; `None` where nothing can."""
    op = _SAME.get(node.op, node.op)
    return text_entry(node) or REGISTRY.get(op) or bridge_entry(op) or host_entry(op)


def runs_in_tensorflow(node: Node) -> bool:
    """Whether TensorFlow itself has to compile or compute a node."""
    route = route_of(node)
    return route == "xla" or (route == "host" and runs_on_host(node) and node.op not in LOOKUPS)


def route_of(node: Node) -> Literal["rule", "xla", "host", "none"]:
    """Which of the routes of `entry_of` a node takes."""
    op = _SAME.get(node.op, node.op)
    if text_entry(node) is not None:
        return "host"
    if REGISTRY.get(op) is not None:
        return "rule"
    if bridge_entry(op) is not None:
        return "xla"
    return "none" if op in REFUSED or host_entry(op) is None else "host"
