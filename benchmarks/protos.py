"""Writes what the package reads TensorFlow's messages with.

    python benchmarks/protos.py

That is the descriptor of the messages, made of their types, and the definitions of ops as
TensorFlow's registry has them, without the documentation. TensorFlow has to be installed.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from invert.protos import messages, ops
from invert.protos.messages import message
from invert.protos.types import OpList


def registered() -> bytes:
    """The definitions of the ops that TensorFlow itself registers."""
    import tensorflow as tf  # registers them
    from tensorflow.python.client import pywrap_tf_session

    del tf
    buffer: Any = pywrap_tf_session.TF_GetBuffer(pywrap_tf_session.TF_GetAllOpList())
    registry: Any = message(OpList).FromString(buffer)
    for op in registry.op:
        op.DiscardUnknownFields()
    return written({op.name: op.SerializeToString(deterministic=True) for op in registry.op})


def written(definitions: Mapping[str, bytes]) -> bytes:
    """Messages by name, as `invert.protos.ops` reads them."""
    parts = [definitions[name] for name in sorted(definitions)]
    places = itertools.accumulate(map(len, parts), initial=0)
    lines = [" ".join(sorted(definitions)), " ".join(map(str, places)), ""]
    return "\n".join(lines).encode() + b"".join(parts)


def write(name: str, data: bytes) -> None:
    path = Path(messages.__file__).with_name(name)
    path.write_bytes(data)
    print(f"{path}: {len(data)} bytes")


if __name__ == "__main__":
    write(messages.FILE, messages.described().SerializeToString(deterministic=True))
    # Read with the descriptor that was just written.
    write(ops.FILE, registered())
