"""Ops that have no counterpart in a pure JAX program, with the reason and the remedy."""

from invert.stablehlo.ops.interpreter import refuse

_HOST = "it talks to the host while the program runs, and the file holds no host program"
_REMEDY_HOST = "Export the program without it, or split the program there."
_QUANTIZED = "quantized types have no JAX counterpart"
_REMEDY_QUANTIZED = "Export the program with its float weights, or dequantize before exporting."
_ASYNC = "asynchronous ops are a compiler's own and not part of a portable program"
_REMEDY_ASYNC = "Serialize the program before compilation."

_TABLE = {
    "infeed": (_HOST, _REMEDY_HOST),
    "outfeed": (_HOST, _REMEDY_HOST),
    "send": (_HOST, _REMEDY_HOST),
    "recv": (_HOST, _REMEDY_HOST),
    "uniform_quantize": (_QUANTIZED, _REMEDY_QUANTIZED),
    "uniform_dequantize": (_QUANTIZED, _REMEDY_QUANTIZED),
    "async_start": (_ASYNC, _REMEDY_ASYNC),
    "async_done": (_ASYNC, _REMEDY_ASYNC),
}

for _name, (_reason, _remedy) in _TABLE.items():
    refuse(f"stablehlo.{_name}", _reason, _remedy)
