"""Writes the definitions of TensorFlow's ops that the package reads graphs with.

    python benchmarks/op_definitions.py

TensorFlow has to be installed. The file holds what its registry says, without the documentation.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from pathlib import Path

from invert.protos.messages import message
from invert.protos.ops import FILE
from invert.protos.types import OpList


def registered() -> bytes:
    """The definitions of the ops that TensorFlow itself registers, sorted by name."""
    import tensorflow as tf  # registers them
    from tensorflow.python.client import pywrap_tf_session

    del tf
    ops = message(OpList).FromString(
        pywrap_tf_session.TF_GetBuffer(pywrap_tf_session.TF_GetAllOpList())
    )
    found = {op.name: op for op in sorted(ops.op, key=lambda op: op.name)}
    for op in found.values():
        op.DiscardUnknownFields()
    return written({name: op.SerializeToString(deterministic=True) for name, op in found.items()})


def written(messages: Mapping[str, bytes]) -> bytes:
    """Messages by name, as `invert.protos.ops` reads them."""
    sizes = " ".join(str(len(message)) for message in messages.values())
    return "\n".join([" ".join(messages), sizes, ""]).encode() + b"".join(messages.values())


if __name__ == "__main__":
    data = zlib.compress(registered(), 9)
    path = Path(__file__).parents[1] / "invert" / "protos" / FILE
    path.write_bytes(data)
    print(f"{path}: {len(data)} bytes")
