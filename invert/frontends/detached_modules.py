"""Programs that TensorFlow does not get to see while it loads a SavedModel.

The weights of a JAX model that were constants stand in the bytes of its modules, attributes of
`XlaCallModule`. TensorFlow copies the attributes of a function some ten times on loading, and again
for every graph that it gives out. What is loaded holds short keys instead; the bytes are kept here
once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Modules of fewer bytes stay where they are.
_LEAST = 1 << 20

Modules = Mapping[bytes, bytes]


def take_modules(proto: Any) -> tuple[Any, Modules]:
    """A `SavedModel` proto with keys in the place of large modules, and these modules by key."""
    found: dict[bytes, bytes] = {}
    for meta in proto.meta_graphs:
        functions = (f.node_def for f in meta.graph_def.library.function)
        for nodes in (meta.graph_def.node, *functions):
            for node in nodes:
                if node.op == "XlaCallModule" and len(node.attr["module"].s) >= _LEAST:
                    key = f"kept module {len(found)}".encode()
                    found[key] = node.attr["module"].s
                    node.attr["module"].s = key
    if not found:
        return proto, {}
    # Messages keep the memory of what they held before.
    return type(proto).FromString(proto.SerializeToString()), found
