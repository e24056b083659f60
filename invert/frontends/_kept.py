"""Programs that TensorFlow does not get to see while it loads a SavedModel.

The weights of a JAX model that were constants stand in the bytes of its modules, attributes of
`XlaCallModule`. TensorFlow copies the attributes of a function some ten times on loading, and again
for every graph that it gives out. What is loaded holds short keys instead; the bytes are kept here
once.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

# Modules of fewer bytes stay where they are.
_LEAST = 1 << 20

Modules = Mapping[bytes, bytes]


def take_modules(proto: Any) -> tuple[Any, Modules]:
    """A `SavedModel` proto with keys in the place of large modules, and these modules by key.

    One that names files is left as it is, since TensorFlow looks for them beside it.
    """
    if any(meta.asset_file_def for meta in proto.meta_graphs):
        return proto, {}
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


@contextlib.contextmanager
def stand_in(directory: Path, proto: Any) -> Iterator[Path]:
    """A directory that has `proto` for the model, and the variables of `directory`."""
    with tempfile.TemporaryDirectory() as made:
        place = Path(made)
        (place / "saved_model.pb").write_bytes(proto.SerializeToString())
        variables = directory / "variables"
        if variables.is_dir():
            os.symlink(variables.resolve(), place / "variables", target_is_directory=True)
        yield place
