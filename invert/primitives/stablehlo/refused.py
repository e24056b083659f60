"""Ops without a counterpart in a pure JAX program, with reason and remedy."""

from invert.stablehlo.ops.registry import refuse

_HOST = (
    "it communicates with the host at run time, and the file contains no host program",
    "Export the program without it, or split the program there.",
)
_QUANTIZED = (
    "quantized types have no JAX counterpart",
    "Export the program with its float weights, or dequantize before exporting.",
)
_ASYNC = (
    "asynchronous ops are internal to compilers and not part of a portable program",
    "Serialize the program before compilation.",
)

refuse(
    {
        "stablehlo.infeed": _HOST,
        "stablehlo.outfeed": _HOST,
        "stablehlo.send": _HOST,
        "stablehlo.recv": _HOST,
        "stablehlo.uniform_quantize": _QUANTIZED,
        "stablehlo.uniform_dequantize": _QUANTIZED,
        "stablehlo.async_start": _ASYNC,
        "stablehlo.async_done": _ASYNC,
    }
)
