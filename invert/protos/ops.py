"""Definitions of TensorFlow's ops, as TensorFlow 2.21 registers them.

`benchmarks/op_definitions.py` writes the file that holds them.
"""

from __future__ import annotations

import functools
import importlib.resources
import lzma
from collections.abc import Mapping
from typing import TYPE_CHECKING

from invert.protos.messages import message

if TYPE_CHECKING:
    from invert.protos.types import OpDef

FILE = "op_definitions.binpb.xz"


def op_def(op: str) -> OpDef | None:
    """The `OpDef` of an op type; `None` where TensorFlow itself does not have it."""
    return definitions().get(op)


@functools.cache
def definitions() -> Mapping[str, OpDef]:
    """All `OpDef` messages by op type."""
    data = importlib.resources.files("invert.protos").joinpath(FILE).read_bytes()
    return {op.name: op for op in message("OpList").FromString(lzma.decompress(data)).op}
