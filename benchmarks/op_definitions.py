"""Writes the definitions of TensorFlow's ops that the package reads graphs with.

    python benchmarks/op_definitions.py

TensorFlow has to be installed. The file holds what its registry says, without the documentation.
"""

from __future__ import annotations

import lzma
from pathlib import Path

from invert.protos.messages import message
from invert.protos.ops import FILE
from invert.protos.types import OpList


def registered() -> bytes:
    """The `OpList` of the ops that TensorFlow itself registers, sorted by name."""
    import tensorflow as tf  # registers them
    from tensorflow.python.client import pywrap_tf_session

    del tf
    ops = message(OpList).FromString(
        pywrap_tf_session.TF_GetBuffer(pywrap_tf_session.TF_GetAllOpList())
    )
    found = message(OpList)()
    for op in sorted(ops.op, key=lambda op: op.name):
        op.DiscardUnknownFields()
        found.op.add().CopyFrom(op)
    return found.SerializeToString(deterministic=True)


if __name__ == "__main__":
    data = lzma.compress(registered(), preset=9 | lzma.PRESET_EXTREME)
    path = Path(__file__).parents[1] / "invert" / "protos" / FILE
    path.write_bytes(data)
    print(f"{path}: {len(data)} bytes")
