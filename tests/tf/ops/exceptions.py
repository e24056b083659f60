"""Public ops with an XLA kernel that are not tested here, and the reason."""

from __future__ import annotations

_HOST = "it communicates with the host or another process"
_CODE = "it calls compiled code of the process that made the model"

EXCEPTIONS: dict[str, str] = {
    **dict.fromkeys("XlaRecv XlaSend".split(), _HOST),
    **dict.fromkeys("XlaCustomCall XlaCustomCallV2".split(), _CODE),
    "XlaIf": "TensorFlow 2.21 cannot run it: shape inference asks for an attribute it lacks",
    "XlaReduceScatter": "TensorFlow 2.21 cannot run it on one device: it asks for an assignment of "
    "devices that it does not give",
    "XlaReplicaId": "TensorFlow 2.21 ends its process where it runs on one device",
}

# What differs from TensorFlow on purpose, by op: reasons for "values", "values <dtype>", the values
# of the recipe "number <i>", and "gradients".
DIFFERENCES: dict[str, dict[str, str]] = {
    "Round": {
        f"values {dtype}": "TensorFlow 2.21 gives zeros for integers on the CPU"
        for dtype in ("int8", "int16", "int32", "int64")
    },
    "ClipByValue": {
        f"values {dtype}": "complex numbers have no order, and TensorFlow compares otherwise"
        for dtype in ("complex64", "complex128")
    },
    "Cast": {
        "number 5": "floats out of range are undefined in C++, wrapped by TensorFlow's kernels and "
        "clamped where it compiles by XLA; ours are clamped",
    },
    "FloorDiv": {
        f"values {dtype}": "complex numbers have no floor, and TensorFlow has no kernel but XLA's"
        for dtype in ("complex64", "complex128")
    },
    "Svd": {"values float16": "TensorFlow has no kernel but XLA's, which gives wrong numbers"},
    "Cholesky": {"gradients": "TensorFlow's is symmetric, JAX's lower triangular, for one matrix"},
    "NonMaxSuppressionV3": {
        "values": "has a result whose size depends on data, which is refused or padded",
        "gradients": "has none, and a result whose size depends on data",
    },
}
