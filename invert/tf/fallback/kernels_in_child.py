"""TensorFlow's kernels and shape functions on values that come from a model.

On unexpected values some of TensorFlow's kernels abort the process, exhaust memory or never return
(StringNGrams, DecodeCompressed and others, TensorFlow 2.21). So a child process runs all but those
in `PLAIN`. It has to import TensorFlow, so it is started on first use and kept.
"""

from __future__ import annotations

import functools
import pathlib
import struct
from collections.abc import Sequence

import numpy as np

from invert._child import Child, ChildError
from invert._private.tensorflow import TfObject
from invert.protos.tensors import decode_dtype, decode_tensor
from invert.tf.ops.node import import_tensorflow
from invert.tf.values.constants import MOST_COMPUTED

# Ops that move, compare or convert elements and check every index that an input holds. An element
# of a result takes at most one element of each input and the attributes together, so small inputs
# have small results. Chosen from what their documentation says and from damaged inputs; the kernels
# themselves were not audited.
PLAIN = frozenset(
    """
    Concat ConcatV2 DecodeBase64 EncodeBase64 Equal ExpandDims Gather GatherV2 ListDiff NotEqual
    Pack Rank ReduceJoin Reshape Reverse ReverseV2 Select SelectV2 Shape ShapeN Size Slice Split
    SplitV Squeeze StaticRegexFullMatch StridedSlice StringJoin StringLength StringLower StringSplit
    StringSplitV2 StringStrip StringToHashBucket StringToHashBucketFast StringToNumber StringUpper
    Substr Transpose Unique UniqueV2 UniqueWithCounts UniqueWithCountsV2 Unpack Where ZerosLike
    """.split()
)

_START_SECONDS = 180.0
_SECONDS = 60.0
# Inputs have at most `MOST_BYTES`, results `MOST_COMPUTED`.
_MEMORY_BYTES = 4 << 30
_LENGTH = struct.Struct("<Q")


@functools.cache
def _child() -> Child:
    worker = pathlib.Path(__file__).with_name("kernel_worker.py")
    return Child(
        [str(worker), str(MOST_COMPUTED), str(_MEMORY_BYTES)],
        {
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "CUDA_VISIBLE_DEVICES": "-1",
            # Its allocator would wait twenty seconds for memory beyond the limit.
            "TF_ENABLE_ONEDNN_OPTS": "0",
        },
        start_seconds=_START_SECONDS,
    )


class KernelError(Exception):
    """TensorFlow rejects the op on these inputs; the message is its reason."""


class LimitError(KernelError):
    """The op takes more time or memory than the child process has, or ends it."""


def run_apart(
    text: bytes, library: bytes, types: Sequence[int], values: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """The results of a serialized op on known values, computed in the child process.

    **Raises:** `KernelError`; `LimitError` if the child dies or takes too long.
    """
    graph = graph_with_inputs(text, library, types, [(v.shape, v) for v in values])
    return read_results(ask(graph))


def read_results(content: bytes) -> list[np.ndarray]:
    """The arrays in an answer."""
    tf = import_tensorflow()
    results, at = [], 0
    while at < len(content):
        (length,) = _LENGTH.unpack_from(content, at)
        at += _LENGTH.size
        proto = tf.compat.v1.AttrValue().tensor
        proto.ParseFromString(content[at : at + length])
        results.append(decode_tensor(proto))
        at += length
    return results


# The shape of an input, `None` for unknown sizes or rank, and its value if that is known.
Input = tuple[Sequence[int | None] | None, np.ndarray | None]


def refusal(
    text: bytes, library: bytes, types: Sequence[int], inputs: Sequence[Input]
) -> str | None:
    """Why TensorFlow rejects an op at these shapes and values, if it does."""
    try:
        ask(graph_with_inputs(text, library, types, inputs))
    except KernelError as error:
        return str(error)
    return None


def graph_with_inputs(
    text: bytes, library: bytes, types: Sequence[int], inputs: Sequence[Input]
) -> TfObject:
    """A serialized op as a `GraphDef`, after constants and placeholders for its inputs."""
    tf = import_tensorflow()
    graph = tf.compat.v1.GraphDef()
    graph.versions.producer = tf.version.GRAPH_DEF_VERSION
    if library:
        graph.library.ParseFromString(library)
    for i, (kind, (shape, value)) in enumerate(zip(types, inputs, strict=True)):
        node = graph.node.add(name=f"input{i}", op="Placeholder" if value is None else "Const")
        node.attr["dtype"].type = kind
        if value is not None:
            given = value if value.dtype.kind in "OSU" else value.astype(decode_dtype(kind))
            proto = tf.make_tensor_proto(given, tf.dtypes.as_dtype(kind))
            node.attr["value"].tensor.CopyFrom(proto)
        elif shape is None:
            node.attr["shape"].shape.unknown_rank = True
        else:
            for size in shape:
                node.attr["shape"].shape.dim.add().size = -1 if size is None else size
    node = graph.node.add()
    node.ParseFromString(text)
    node.input.extend(f"input{i}" for i in range(len(types)))
    return graph


def ask(graph: TfObject) -> bytes:
    """Send a `GraphDef` to the child process; return its last node's answer.

    **Raises:** `KernelError`, `LimitError`.
    """
    try:
        reply = _child().ask(graph.SerializeToString(), seconds=_SECONDS)
    except ChildError as error:
        raise LimitError(str(error)) from error
    if reply[:1] != b"=":
        kind = LimitError if reply[:1] == b"!" else KernelError
        raise kind(reply[1:].decode("utf-8", "replace"))
    return reply[1:]
