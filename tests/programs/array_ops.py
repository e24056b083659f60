"""Modules of ops on shapes, indices and matrices: op -> variants of (text, arguments)."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from tests.programs.stablehlo_text import main, one_op, tensor, type_of

RNG = np.random.RandomState(0)


def normal(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


def i32(*values: Any) -> np.ndarray:
    return np.array(values, np.int32)


X34 = normal(3, 4)
X245 = normal(2, 4, 5)
SQUARE = normal(3, 3)
POSITIVE = (SQUARE @ SQUARE.T + 3 * np.eye(3)).astype(np.float32)
BOOLS = np.array([[True, False, False, True]] * 3)
F32 = np.float32

Variants = list[tuple[str, list[np.ndarray]]]


def op(name: str, args: list[Any], result: str, attributes: str = "") -> tuple[str, list[Any]]:
    return one_op(name, args, result, attributes), args


# Every type to every other; 0 and 1 exist in all of them.
_ALL = [
    *(np.dtype(t) for t in ("bool", "float16", "float32", "float64", "complex64", "complex128")),
    *(np.dtype(f"{s}int{n}") for s in ("", "u") for n in (8, 16, 32, 64)),
    *(np.dtype(getattr(ml_dtypes, t)) for t in ("bfloat16", "int4", "uint4")),
    *(
        np.dtype(getattr(ml_dtypes, f"float8_{t}"))
        for t in ("e4m3b11fnuz", "e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz")
    ),
]


def _convert(source: np.dtype) -> tuple[str, list[np.ndarray]]:
    x = np.array([0, 1, 1, 0]).astype(source)
    if source.kind == "c":
        x = (x + np.array([1j, 0, 1j, 0])).astype(source)
    lines = [
        f"%r{i} = stablehlo.convert %a0 : ({type_of(x)}) -> {tensor(t, (4,))}"
        for i, t in enumerate(_ALL)
    ]
    return main("\n".join(lines), [x], [tensor(t, (4,)) for t in _ALL]), [x]


CONVERSIONS = [_convert(t) for t in _ALL]


def _constants() -> tuple[str, list[np.ndarray]]:
    rows = {
        "tensor<2xi1>": "[true, false]",
        "tensor<2xi4>": "[-8, 7]",
        "tensor<2xui4>": "[0, 15]",
        "tensor<2xi8>": '"0x80FF"',
        "tensor<2xui64>": "[18446744073709551615, 3]",
        "tensor<2xbf16>": "[1.5, 0xFF80]",
        "tensor<2xf16>": "[1.5, 0x7E00]",
        "tensor<2xf8E5M2>": "[1.5, -2.0]",
        "tensor<2xf64>": "[0.1, 0x7FF0000000000000]",
        "tensor<2xcomplex<f32>>": "[(1.0, -2.0), (0.0, 3.5)]",
        "tensor<3x2xcomplex<f64>>": "(0.25, -1.0)",
        "tensor<0x3xf32>": "",
        "tensor<i32>": "7",
    }
    lines = [
        f"%r{i} = stablehlo.constant dense<{value}> : {t}"
        for i, (t, value) in enumerate(rows.items())
    ]
    return main("\n".join(lines), [], list(rows)), []


def _iota() -> tuple[str, list[np.ndarray]]:
    types = [tensor(t, (3, 2)) for t in (F32, np.int8, np.uint64, np.complex64, ml_dtypes.bfloat16)]
    lines = [f"%r{i} = stablehlo.iota dim = {i % 2} : {t}" for i, t in enumerate(types)]
    return main("\n".join(lines), [], types), []


def _convolution(
    lhs: np.ndarray, rhs: np.ndarray, result: str, numbers: str, window: str, groups: str
) -> tuple[str, list[np.ndarray]]:
    body = (
        f"%r0 = stablehlo.convolution(%a0, %a1) dim_numbers = {numbers}, window = {{{window}}} "
        f"{{{groups}}} : ({type_of(lhs)}, {type_of(rhs)}) -> {result}"
    )
    return main(body, [lhs, rhs], [result]), [lhs, rhs]


_ONE_GROUP = "batch_group_count = 1 : i64, feature_group_count = 1 : i64"
_CONVOLUTIONS = [
    _convolution(
        normal(2, 6, 5, 3),
        normal(3, 2, 3, 4),
        "tensor<2x4x5x4xf32>",
        "[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]",
        "stride = [1, 1], pad = [[0, 0], [1, 0]], lhs_dilate = [1, 1], rhs_dilate = [1, 1]",
        _ONE_GROUP,
    ),
    _convolution(
        normal(4, 6, 2),
        normal(3, 2, 4),
        "tensor<2x4x5xf32>",
        "[f, 0, b]x[0, i, o]->[b, f, 0]",
        "stride = [2], pad = [[1, 1]], lhs_dilate = [2], rhs_dilate = [2], reverse = [true]",
        "batch_group_count = 1 : i64, feature_group_count = 2 : i64",
    ),
    _convolution(
        normal(4, 6, 3),
        normal(3, 3, 4),
        "tensor<2x4x4xf32>",
        "[b, 0, f]x[0, i, o]->[b, 0, f]",
        "",
        "batch_group_count = 2 : i64, feature_group_count = 1 : i64",
    ),
]


def _gather(
    x: np.ndarray, indices: np.ndarray, result: str, numbers: str, sizes: str
) -> tuple[str, list[np.ndarray]]:
    attributes = (
        f"{{dimension_numbers = #stablehlo.gather<{numbers}>, slice_sizes = array<i64: {sizes}>, "
        "indices_are_sorted = false}"
    )
    return op("stablehlo.gather", [x, indices], result, attributes)


_GATHERS = [
    _gather(
        X34,
        i32([2], [0], [7], [-1]),  # indices out of bounds are clamped
        "tensor<4x4xf32>",
        "offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], "
        "index_vector_dim = 1",
        "1, 4",
    ),
    _gather(
        X245,
        i32([[1, 0], [3, 2]], [[0, 4], [2, 1]]),
        "tensor<2x2x1x2xf32>",
        "offset_dims = [2, 3], operand_batching_dims = [0], start_indices_batching_dims = [0], "
        "start_index_map = [1, 2], index_vector_dim = 2",
        "1, 1, 2",
    ),
]


def _dot_general(lhs: Any, rhs: Any, result: str, rest: str) -> tuple[str, list[np.ndarray]]:
    types = f"({type_of(lhs)}, {type_of(rhs)}) -> {result}"
    body = f"%r0 = stablehlo.dot_general %a0, %a1, {rest} : {types}"
    return main(body, [lhs, rhs], [result]), [lhs, rhs]


def _f16(*shape: int) -> np.ndarray:
    return normal(*shape, dtype=np.float16)


def _clamp() -> Variants:
    low, high = np.float32(-0.5), np.float32(0.75)
    return [
        op("stablehlo.clamp", [low, X34, high], type_of(X34)),
        op("stablehlo.clamp", [X34 - 1, X34 * 2, X34 + 1], type_of(X34)),
    ]


def _fft(kind: str, x: np.ndarray, length: str, result: str) -> tuple[str, list[np.ndarray]]:
    return op(
        "stablehlo.fft",
        [x],
        result,
        f"{{fft_type = #stablehlo<fft_type {kind}>, fft_length = array<i64: {length}>}}",
    )


_COMPLEX = (normal(2, 4) + 1j * normal(2, 4)).astype(np.complex64)


def _triangular(a: Any, b: Any, left: str, lower: str, unit: str, transpose: str) -> Any:
    attributes = (
        f"{{left_side = {left}, lower = {lower}, unit_diagonal = {unit}, "
        f"transpose_a = #stablehlo<transpose {transpose}>}}"
    )
    return op("stablehlo.triangular_solve", [a, b], type_of(b), attributes)


_A = (normal(2, 3, 3) + 4 * np.eye(3)).astype(F32)
_AC = (_A + 1j * normal(2, 3, 3)).astype(np.complex64)
_INDEX = np.int32


def _batch_norm(name: str, extra: list[Any], results: list[str]) -> tuple[str, list[Any]]:
    x = normal(2, 3, 4)
    args = [x, *extra]
    operands = ", ".join(f"%a{i}" for i in range(len(args)))
    body = (
        f'%r:{len(results)} = "stablehlo.{name}"({operands}) '
        "{epsilon = 0.001 : f32, feature_index = 1 : i64} : "
        f"({', '.join(map(type_of, args))}) -> ({', '.join(results)})"
    ).replace("%r:1", "%r")
    if len(results) == 1:
        return main(body.replace("%r =", "%r0 ="), args, results), args
    text = main("BODY", args, results).replace(
        ", ".join(f"%r{i}" for i in range(len(results))),
        ", ".join(f"%r#{i}" for i in range(len(results))),
    )
    return text.replace("BODY", body), args


_V3 = [np.abs(normal(3)) + 0.5 for _ in range(4)]

MODULES: dict[str, Variants] = {
    "chlo.broadcast_select": [
        op("chlo.broadcast_select", [np.array(True), X34, -X34], type_of(X34)),
        op("chlo.broadcast_select", [BOOLS, X34, -X34], type_of(X34)),
    ],
    "chlo.constant": [
        (
            main(
                '%r0 = "chlo.constant"() {value = dense<[1.5, 2.0]> : tensor<2xf32>} '
                ": () -> tensor<2xf32>",
                [],
                ["tensor<2xf32>"],
            ),
            [],
        )
    ],
    "chlo.constant_like": [
        op("chlo.constant_like", [X34], type_of(X34), "{value = 2.5 : f32}"),
        op("chlo.constant_like", [i32(1, 2)], "tensor<2xi32>", "{value = -3 : i32}"),
    ],
    "stablehlo.batch_norm_grad": [
        _batch_norm(
            "batch_norm_grad",
            [*_V3[:3], normal(2, 3, 4)],
            ["tensor<2x3x4xf32>", "tensor<3xf32>", "tensor<3xf32>"],
        )
    ],
    "stablehlo.batch_norm_inference": [
        _batch_norm("batch_norm_inference", _V3, ["tensor<2x3x4xf32>"])
    ],
    "stablehlo.batch_norm_training": [
        _batch_norm(
            "batch_norm_training",
            _V3[:2],
            ["tensor<2x3x4xf32>", "tensor<3xf32>", "tensor<3xf32>"],
        )
    ],
    "stablehlo.bitcast_convert": [
        op("stablehlo.bitcast_convert", [X34], "tensor<3x4xi32>"),
        op("stablehlo.bitcast_convert", [X34], "tensor<3x4x4xui8>"),
        op("stablehlo.bitcast_convert", [X34.view(np.int16).reshape(3, 4, 2)], "tensor<3x4xf32>"),
    ],
    "stablehlo.broadcast": [
        op("stablehlo.broadcast", [X34], "tensor<2x3x4xf32>", "{broadcast_sizes = array<i64: 2>}")
    ],
    "stablehlo.broadcast_in_dim": [
        op(
            "stablehlo.broadcast_in_dim",
            [X34],
            "tensor<3x2x4xf32>",
            "{broadcast_dimensions = array<i64: 0, 2>}",
        ),
        op(
            "stablehlo.broadcast_in_dim",
            [normal(1, 4)],
            "tensor<4x3xf32>",
            "{broadcast_dimensions = array<i64: 1, 0>}",
        ),
    ],
    "stablehlo.cholesky": [
        # The other triangle is unspecified, so it is masked off.
        (
            main(
                f'%l = "stablehlo.cholesky"(%a0) {{lower = {lower}}} : '
                "(tensor<3x3xf32>) -> tensor<3x3xf32>\n"
                "%i = stablehlo.iota dim = 0 : tensor<3x3xi32>\n"
                "%j = stablehlo.iota dim = 1 : tensor<3x3xi32>\n"
                f"%m = stablehlo.compare {direction}, %i, %j : "
                "(tensor<3x3xi32>, tensor<3x3xi32>) -> tensor<3x3xi1>\n"
                "%z = stablehlo.constant dense<0.0> : tensor<3x3xf32>\n"
                "%r0 = stablehlo.select %m, %l, %z : tensor<3x3xi1>, tensor<3x3xf32>",
                [POSITIVE],
                ["tensor<3x3xf32>"],
            ),
            [POSITIVE],
        )
        for lower, direction in (("true", "GE"), ("false", "LE"))
    ],
    "stablehlo.clamp": _clamp(),
    "stablehlo.concatenate": [
        op(
            "stablehlo.concatenate",
            [X34, normal(3, 2), normal(3, 0)],
            "tensor<3x6xf32>",
            "{dimension = 1 : i64}",
        )
    ],
    "stablehlo.constant": [_constants()],
    "stablehlo.convert": CONVERSIONS[::4],
    "stablehlo.convolution": _CONVOLUTIONS,
    "stablehlo.dot": [
        op("stablehlo.dot", [X34, normal(4, 2)], "tensor<3x2xf32>"),
        op("stablehlo.dot", [X34[0], X34[1]], "tensor<f32>"),
    ],
    "stablehlo.dot_general": [
        _dot_general(
            X245,
            normal(2, 5, 3),
            "tensor<2x4x3xf32>",
            "batching_dims = [0] x [0], contracting_dims = [2] x [1], "
            "precision = [HIGHEST, DEFAULT]",
        ),
        _dot_general(_f16(2, 3), _f16(2, 4), "tensor<3x4xf32>", "contracting_dims = [0] x [0]"),
        _dot_general(
            np.arange(6, dtype=np.int8).reshape(2, 3),
            np.arange(6, dtype=np.int8).reshape(3, 2),
            "tensor<2x2xi32>",
            "contracting_dims = [1] x [0]",
        ),
    ],
    "stablehlo.dynamic_slice": [
        op(
            "stablehlo.dynamic_slice",
            [X34, _INDEX(1), _INDEX(9)],
            "tensor<2x2xf32>",
            "{slice_sizes = array<i64: 2, 2>}",
        )
    ],
    "stablehlo.dynamic_update_slice": [
        op(
            "stablehlo.dynamic_update_slice",
            [X34, normal(2, 2), _INDEX(-4), _INDEX(1)],
            "tensor<3x4xf32>",
        )
    ],
    "stablehlo.einsum": [
        op(
            "stablehlo.einsum",
            [X245, normal(2, 5, 3)],
            "tensor<2x4x3xf32>",
            '{einsum_config = "bij,bjk->bik"}',
        )
    ],
    "stablehlo.fft": [
        _fft("FFT", _COMPLEX, "4", "tensor<2x4xcomplex<f32>>"),
        _fft("IFFT", _COMPLEX, "2, 4", "tensor<2x4xcomplex<f32>>"),
        _fft("RFFT", X34, "4", "tensor<3x3xcomplex<f32>>"),
        _fft("IRFFT", _COMPLEX[:, :3], "4", "tensor<2x4xf32>"),
        _fft("IRFFT", _COMPLEX[:, :3], "5", "tensor<2x5xf32>"),
    ],
    "stablehlo.gather": _GATHERS,
    "stablehlo.iota": [_iota()],
    "stablehlo.pad": [
        op(
            "stablehlo.pad",
            [X34, np.float32(0.5)],
            "tensor<7x3xf32>",
            "{edge_padding_low = array<i64: 2, -1>, edge_padding_high = array<i64: 0, 0>, "
            "interior_padding = array<i64: 1, 0>}",
        )
    ],
    "stablehlo.reduce_precision": [
        op(
            "stablehlo.reduce_precision",
            [X34],
            type_of(X34),
            "{exponent_bits = 5 : i32, mantissa_bits = 3 : i32}",
        )
    ],
    "stablehlo.reshape": [
        op("stablehlo.reshape", [X34], "tensor<2x6xf32>"),
        op("stablehlo.reshape", [normal(1, 1)], "tensor<f32>"),
    ],
    "stablehlo.reverse": [
        op("stablehlo.reverse", [X245], type_of(X245), "{dimensions = array<i64: 0, 2>}")
    ],
    "stablehlo.select": [
        op("stablehlo.select", [BOOLS, X34, -X34], type_of(X34)),
        op("stablehlo.select", [np.array(False), X34, -X34], type_of(X34)),
    ],
    "stablehlo.slice": [
        op(
            "stablehlo.slice",
            [X245],
            "tensor<1x2x5xf32>",
            "{start_indices = array<i64: 1, 0, 0>, limit_indices = array<i64: 2, 4, 5>, "
            "strides = array<i64: 1, 2, 1>}",
        )
    ],
    "stablehlo.torch_index_select": [
        op(
            "stablehlo.torch_index_select",
            [X34, i32(2, 0)],
            "tensor<2x4xf32>",
            "{dim = 0 : i64, batch_dims = 0 : i64}",
        )
    ],
    "stablehlo.transpose": [
        op(
            "stablehlo.transpose",
            [X245],
            "tensor<5x2x4xf32>",
            "{permutation = array<i64: 2, 0, 1>}",
        )
    ],
    "stablehlo.triangular_solve": [
        _triangular(_A, normal(2, 3, 2), "true", "true", "false", "NO_TRANSPOSE"),
        _triangular(_A, normal(2, 2, 3), "false", "false", "false", "TRANSPOSE"),
        _triangular(_AC, normal(2, 3, 2, dtype=np.complex64), "true", "true", "false", "ADJOINT"),
        _triangular(_A, normal(2, 3, 2), "true", "false", "true", "NO_TRANSPOSE"),
    ],
}
