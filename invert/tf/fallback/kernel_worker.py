"""The child process that runs TensorFlow kernels on untrusted inputs; see `kernels_in_child.py`.

Run by path in a bare interpreter: it must not import `invert`, and so not JAX, which takes seconds.
A request is a `GraphDef`. Its last node is the op; the others are its inputs: constants, or
placeholders to infer only the types of the results. The answer is `=` and the results as
`TensorProto` messages, each preceded by its length; `-` and TensorFlow's reason for refusing the
inputs; or `!` and the limit of this process that the op exceeds.
"""

from __future__ import annotations

import os
import struct
import sys
from types import ModuleType
from typing import Any

_LENGTH = struct.Struct("<Q")
_TOO_LARGE = b"!the results are too large"
# The memory that a text takes besides its bytes; as in `eager.py`.
_PER_TEXT = 64


def _declared_bytes(tensor: Any) -> int:
    """The bytes of a result, as far as its declared shape tells."""
    each = _PER_TEXT if tensor.dtype.name == "string" else tensor.dtype.size
    return (tensor.shape.num_elements() or 0) * each


def _bytes(value: Any) -> int:
    """The bytes of a result: an array, or a single text."""
    if isinstance(value, bytes):
        return _PER_TEXT + len(value)
    if value.dtype == object:
        return sum(_PER_TEXT + len(text) for text in value.ravel().tolist())
    return value.nbytes


def answer(tf: ModuleType, request: bytes, most: int) -> bytes:
    """The answer to one request."""
    graph_def = tf.compat.v1.GraphDef()
    graph_def.ParseFromString(request)
    cpu = tf.compat.v1.ConfigProto(
        device_count={"GPU": 0}, intra_op_parallelism_threads=1, inter_op_parallelism_threads=1
    )
    # Folding constants would compute the op, of which all inputs are constants, once more.
    cpu.graph_options.rewrite_options.disable_meta_optimizer = True
    cpu.graph_options.optimizer_options.opt_level = -1
    run = not any(node.op == "Placeholder" for node in graph_def.node)
    try:
        with tf.Graph().as_default() as graph:
            tf.graph_util.import_graph_def(graph_def, name="")
            outputs = graph.get_operation_by_name(graph_def.node[-1].name).outputs
            if not run or not outputs:
                return b"="
            if sum(_declared_bytes(y) for y in outputs) > most:
                return _TOO_LARGE
            with tf.compat.v1.Session(graph=graph, config=cpu) as session:
                results = session.run(list(outputs))
        if sum(map(_bytes, results)) > most:
            return _TOO_LARGE
        parts = [b"="]
        for value, tensor in zip(results, outputs, strict=True):
            proto = tf.make_tensor_proto(value, tensor.dtype).SerializeToString()
            parts += [_LENGTH.pack(len(proto)), proto]
    except (ValueError, TypeError, NotImplementedError, MemoryError, tf.errors.OpError) as error:
        text = getattr(error, "message", None) or str(error) or type(error).__name__
        limited = isinstance(error, MemoryError | tf.errors.ResourceExhaustedError)
        return (b"!" if limited else b"-") + text.encode("utf-8", "replace")
    return b"".join(parts)


def serve(most: int, memory: int) -> None:
    """Answer requests until standard input ends."""
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # keep TensorFlow's own output off the channel for answers
    import tensorflow as tf

    tf.constant(0).numpy()  # let TensorFlow allocate what it keeps before memory is limited
    _limit_memory(memory)

    def write(content: bytes) -> None:
        output.write(_LENGTH.pack(len(content)) + content)
        output.flush()

    write(b"")
    while len(head := sys.stdin.buffer.read(_LENGTH.size)) == _LENGTH.size:
        write(answer(tf, sys.stdin.buffer.read(*_LENGTH.unpack(head)), most))


def _limit_memory(more: int) -> None:
    """Limit the memory of the process to its current size plus `more` bytes (Linux)."""
    try:
        import resource

        with open("/proc/self/statm") as file:
            pages = int(file.read().split()[0])
    except (ImportError, OSError):
        return
    limit = pages * resource.getpagesize() + more
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard == resource.RLIM_INFINITY or limit < hard:
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


if __name__ == "__main__":
    serve(int(sys.argv[1]), int(sys.argv[2]))
