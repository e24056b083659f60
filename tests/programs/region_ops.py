"""Modules of ops with regions: op -> variants of (text, arguments).

Loops and branches, reductions with any body, sorts with any comparator, scatters.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.programs.stablehlo_text import main, tensor, type_of

RNG = np.random.RandomState(1)
F32 = np.float32
I32 = np.int32
X34 = RNG.standard_normal((3, 4)).astype(F32)
X46 = RNG.standard_normal((4, 6)).astype(F32)
TIES = np.array([[3, 1, 2, 1], [0, 0, 5, -1], [2, 2, 2, 2]], I32)
SCALAR = "tensor<f32>"

Variants = list[tuple[str, list[np.ndarray]]]


def module(
    body: str, args: list[Any], results: list[str], rest: str = ""
) -> tuple[str, list[np.ndarray]]:
    """`body` assigns `%r0` or, for several results, `%r:n`."""
    args = [np.asarray(x) for x in args]
    text = main(body, args, results, rest)
    if "%r:" in body:
        n = len(results)
        text = text.replace(
            "return " + ", ".join(f"%r{i}" for i in range(n)),
            "return " + ", ".join(f"%r#{i}" for i in range(n)),
        )
    return text, args


# ---- branches and loops


def _case(index: str) -> str:
    return f"""
%c = stablehlo.constant dense<2.0> : tensor<3x4xf32>
%r0 = "stablehlo.case"({index}) ({{
  %s = stablehlo.sine %a1 : tensor<3x4xf32>
  stablehlo.return %s : tensor<3x4xf32>
}}, {{
  %m = stablehlo.multiply %a1, %c : tensor<3x4xf32>
  stablehlo.return %m : tensor<3x4xf32>
}}, {{
  stablehlo.return %c : tensor<3x4xf32>
}}) : (tensor<i32>) -> tensor<3x4xf32>"""


_IF = """
%r:2 = "stablehlo.if"(%a0) ({
  %s = stablehlo.sine %a1 : tensor<3x4xf32>
  stablehlo.return %s, %a1 : tensor<3x4xf32>, tensor<3x4xf32>
}, {
  stablehlo.return %a1, %a1 : tensor<3x4xf32>, tensor<3x4xf32>
}) : (tensor<i1>) -> (tensor<3x4xf32>, tensor<3x4xf32>)"""

# The condition depends on a captured value and the body on another.
_WHILE = """
%zero = stablehlo.constant dense<0> : tensor<i32>
%one = stablehlo.constant dense<1> : tensor<i32>
%half = stablehlo.constant dense<5.000000e-01> : tensor<3x4xf32>
%r:2 = stablehlo.while(%i = %zero, %x = %a1) : tensor<i32>, tensor<3x4xf32>
cond {
  %p = stablehlo.compare LT, %i, %a0 : (tensor<i32>, tensor<i32>) -> tensor<i1>
  stablehlo.return %p : tensor<i1>
} do {
  %j = stablehlo.add %i, %one : tensor<i32>
  %y = stablehlo.multiply %x, %half : tensor<3x4xf32>
  %z = stablehlo.add %y, %a1 : tensor<3x4xf32>
  stablehlo.return %j, %z : tensor<i32>, tensor<3x4xf32>
}"""

# ---- reductions


def _body(op: str, t: str = SCALAR) -> str:
    return (
        f"({{\n^bb0(%x: {t}, %y: {t}):\n%z = stablehlo.{op} %x, %y : {t}\n"
        f"stablehlo.return %z : {t}\n}})"
    )


# x + y + x * y, which is associative and commutative and no reducer that JAX has a name for.
_ODD = """({
^bb0(%x: tensor<f32>, %y: tensor<f32>):
%s = stablehlo.add %x, %y : tensor<f32>
%m = stablehlo.multiply %x, %y : tensor<f32>
%z = stablehlo.add %s, %m : tensor<f32>
stablehlo.return %z : tensor<f32>
})"""

_ARG_BODY = """({
^bb0(%x: tensor<f32>, %i: tensor<i32>, %y: tensor<f32>, %j: tensor<i32>):
%gt = stablehlo.compare GT, %x, %y : (tensor<f32>, tensor<f32>) -> tensor<i1>
%v = stablehlo.select %gt, %x, %y : tensor<i1>, tensor<f32>
%k = stablehlo.select %gt, %i, %j : tensor<i1>, tensor<i32>
stablehlo.return %v, %k : tensor<f32>, tensor<i32>
})"""


def _reduce(body: str, init: Any, x: np.ndarray = X34, dims: str = "1") -> Any:
    t = type_of(np.asarray(init))
    kept = tuple(n for i, n in enumerate(x.shape) if str(i) not in dims.split(", "))
    out = tensor(x.dtype, kept)
    return module(
        f'%r0 = "stablehlo.reduce"(%a0, %a1) {body} {{dimensions = array<i64: {dims}>}} : '
        f"({type_of(x)}, {t}) -> {out}",
        [x, init],
        [out],
    )


_BOOLS = X34 > 0
_IOTA = np.arange(12, dtype=I32).reshape(3, 4)
_REDUCES = [
    _reduce(_body("add"), F32(0.5)),
    _reduce(_body("maximum"), F32(-np.inf), dims="0, 1"),
    _reduce(_body("minimum"), F32(0.1)),
    _reduce(_body("multiply"), F32(2)),
    _reduce(_body("and", "tensor<i1>"), np.array(True), _BOOLS),
    _reduce(_body("or", "tensor<i1>"), np.array(False), _BOOLS, "0"),
    _reduce(_body("xor", "tensor<i32>"), I32(0), TIES),
    _reduce(_ODD, F32(0)),
    _reduce(_ODD, F32(0.25), np.zeros((3, 0), F32)),
    module(
        f'%r:2 = "stablehlo.reduce"(%a0, %a1, %a2, %a3) {_ARG_BODY} '
        "{dimensions = array<i64: 1>} : (tensor<3x4xf32>, tensor<3x4xi32>, tensor<f32>, "
        "tensor<i32>) -> (tensor<3xf32>, tensor<3xi32>)",
        [X34, _IOTA, F32(-np.inf), I32(-1)],
        ["tensor<3xf32>", "tensor<3xi32>"],
    ),
]


def _window(body: str, init: Any, attributes: str, out: str) -> Any:
    return module(
        f'%r0 = "stablehlo.reduce_window"(%a0, %a1) {body} {{{attributes}}} : '
        f"(tensor<4x6xf32>, tensor<f32>) -> {out}",
        [X46, init],
        [out],
    )


_DILATED = (
    "window_dimensions = array<i64: 2, 2>, window_strides = array<i64: 1, 2>, "
    "base_dilations = array<i64: 2, 1>, window_dilations = array<i64: 1, 2>, "
    "padding = dense<[[1, 0], [0, 1]]> : tensor<2x2xi64>"
)
_PLAIN = "window_dimensions = array<i64: 2, 3>, window_strides = array<i64: 2, 1>"
_WINDOWS = [
    _window(_body("add"), F32(0), _DILATED, "tensor<7x3xf32>"),
    _window(_body("maximum"), F32(-np.inf), _PLAIN, "tensor<2x4xf32>"),
    _window(_body("minimum"), F32(np.inf), _PLAIN, "tensor<2x4xf32>"),
    _window(_body("add"), F32(1.5), _PLAIN, "tensor<2x4xf32>"),
    _window(_ODD, F32(0), _DILATED, "tensor<7x3xf32>"),
]

_SELECT_AND_SCATTER = """
%zero = stablehlo.constant dense<0.000000e+00> : tensor<f32>
%r0 = "stablehlo.select_and_scatter"(%a0, %a1, %zero) ({
^bb0(%x: tensor<f32>, %y: tensor<f32>):
  %p = stablehlo.compare GE, %x, %y : (tensor<f32>, tensor<f32>) -> tensor<i1>
  stablehlo.return %p : tensor<i1>
}, {
^bb0(%x: tensor<f32>, %y: tensor<f32>):
  %z = stablehlo.add %x, %y : tensor<f32>
  stablehlo.return %z : tensor<f32>
}) {window_dimensions = array<i64: 2, 3>, window_strides = array<i64: 2, 3>} :
  (tensor<4x6xf32>, tensor<2x2xf32>, tensor<f32>) -> tensor<4x6xf32>"""

# ---- sorts


def _sort(comparator: str, args: list[np.ndarray], dimension: int = 1, stable: str = "true") -> Any:
    names = [f"%{side}{i}: {tensor(x.dtype)}" for i, x in enumerate(args) for side in "xy"]
    types = [type_of(x) for x in args]
    operands = ", ".join(f"%a{i}" for i in range(len(args)))
    n = f":{len(args)}" if len(args) > 1 else "0"
    body = (
        f'%r{n} = "stablehlo.sort"({operands}) ({{\n^bb0({", ".join(names)}):\n{comparator}\n'
        f"stablehlo.return %p : tensor<i1>\n}}) {{dimension = {dimension} : i64, "
        f"is_stable = {stable}}} : ({', '.join(types)}) -> ({', '.join(types)})"
    )
    return module(body, args, types)


def _by(i: int, direction: str, kind: str, name: str = "p", order: str = "") -> str:
    t = f"tensor<{kind}>"
    order = order and f", {order}"
    return (
        f"%{name} = stablehlo.compare {direction}, %x{i}, %y{i}{order} : ({t}, {t}) -> tensor<i1>"
    )


# By the first ascending, then by the second descending.
_MIXED = "\n".join(
    [
        _by(0, "LT", "i32", "lt"),
        _by(0, "EQ", "i32", "eq"),
        _by(1, "GT", "f32", "gt"),
        "%both = stablehlo.and %eq, %gt : tensor<i1>",
        "%p = stablehlo.or %lt, %both : tensor<i1>",
    ]
)
_ABSOLUTE = """
%ax = stablehlo.abs %x0 : tensor<f32>
%ay = stablehlo.abs %y0 : tensor<f32>
%p = stablehlo.compare LT, %ax, %ay : (tensor<f32>, tensor<f32>) -> tensor<i1>"""
_SWAPPED = _ABSOLUTE.replace("%ax, %ay", "%ay, %ax")
# Zeros and infinities of both signs, a subnormal number and NaN.
_SIGNED = np.array([[0.0, -0.0, np.nan, 1e-42, -np.inf, 0.0, -1.5, -np.nan, np.inf, -0.0]] * 2, F32)
_SORTS = [
    *(
        _sort(
            _by(0, d, "f32", order="TOTALORDER"), [_SIGNED, np.arange(20, dtype=I32).reshape(2, 10)]
        )
        for d in ("LT", "GT")
    ),
    _sort(_by(0, "GT", "ui32"), [np.array([[3, 0, 2**32 - 1, 7, 3]], np.uint32)]),
    _sort(_by(0, "GT", "i32"), [np.array([[3, -(2**31), 2**31 - 1, 7, 3]], I32)]),
    _sort(_by(0, "GT", "i1"), [TIES > 1, X34]),
    _sort(_SWAPPED, [X34, TIES], 0),
    _sort(_by(0, "LT", "f32"), [X34]),
    _sort(_by(0, "GT", "f32"), [X34], 0),
    _sort(_by(0, "GT", "i32"), [TIES, _IOTA]),
    _sort(_by(1, "LT", "f32"), [TIES, X34]),
    _sort(_MIXED, [TIES, X34]),
    _sort(_ABSOLUTE, [X34], 0, "false"),
]

# ---- scatters


def _scatter(body: str, x: Any, indices: Any, updates: Any, numbers: str, unique: str) -> Any:
    return module(
        f'%r0 = "stablehlo.scatter"(%a0, %a1, %a2) {body} {{scatter_dimension_numbers = '
        f"#stablehlo.scatter<{numbers}>, unique_indices = {unique}}} : "
        f"({type_of(x)}, {type_of(indices)}, {type_of(updates)}) -> {type_of(x)}",
        [x, indices, updates],
        [type_of(x)],
    )


_REPLACE = "({\n^bb0(%x: tensor<f32>, %y: tensor<f32>):\nstablehlo.return %y : tensor<f32>\n})"
_KEEP = "({\n^bb0(%x: tensor<f32>, %y: tensor<f32>):\nstablehlo.return %x : tensor<f32>\n})"
# Not commutative; the indices are unique, so the order of updates does not matter.
_SUBTRACT = _body("subtract")
_ROWS = (
    "update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], "
    "index_vector_dim = 1"
)
_UPDATES = RNG.standard_normal((3, 4)).astype(F32)
_UNIQUE = np.array([[2], [0], [9]], I32)  # an update out of bounds is dropped
_REPEATED = np.array([[1], [1], [0]], I32)
_BATCHED = (
    "input_batching_dims = [0], scatter_indices_batching_dims = [0], "
    "inserted_window_dims = [1], scatter_dims_to_operand_dims = [1], index_vector_dim = 2"
)
_SCATTERS = [
    _scatter(_REPLACE, X34, _UNIQUE, _UPDATES, _ROWS, "true"),
    _scatter(_KEEP, X34, _UNIQUE, _UPDATES, _ROWS, "true"),
    _scatter(_SUBTRACT, X34, _UNIQUE, _UPDATES, _ROWS, "true"),
    *(
        _scatter(_body(op), X34, _REPEATED, _UPDATES, _ROWS, "false")
        for op in ("add", "multiply", "minimum", "maximum")
    ),
    _scatter(_ODD, X34, _REPEATED, _UPDATES, _ROWS, "false"),
    _scatter(
        _body("add"),
        X34,
        np.array([[[1], [3]], [[0], [0]], [[2], [5]]], I32),
        _UPDATES[:, :2],
        _BATCHED,
        "false",
    ),
]

_MAP = """
%r0 = "stablehlo.map"(%a0, %a1) ({
^bb0(%x: tensor<f32>, %y: tensor<f32>):
  %m = stablehlo.multiply %x, %y : tensor<f32>
  %s = stablehlo.sine %m : tensor<f32>
  stablehlo.return %s : tensor<f32>
}) {dimensions = array<i64: 0, 1>} : (tensor<3x4xf32>, tensor<3x4xf32>) -> tensor<3x4xf32>"""

_INNER = """
func.func private @twice(%x: tensor<3x4xf32>) -> tensor<3x4xf32> {
  %y = stablehlo.add %x, %x : tensor<3x4xf32>
  return %y : tensor<3x4xf32>
}"""

MODULES: dict[str, Variants] = {
    "func.call": [
        module(
            "%h = func.call @twice(%a0) : (tensor<3x4xf32>) -> tensor<3x4xf32>\n"
            "%r0 = func.call @twice(%h) : (tensor<3x4xf32>) -> tensor<3x4xf32>",
            [X34],
            [type_of(X34)],
            _INNER,
        )
    ],
    # An index out of range takes the last branch.
    "stablehlo.case": [
        module(_case("%a0"), [I32(i), X34], [type_of(X34)]) for i in (-1, 0, 1, 2, 3)
    ],
    "stablehlo.composite": [
        module(
            '%r0 = stablehlo.composite "author.twice" %a0 {composite_attributes = '
            "{n = 2 : i64, scale = 1.5 : f32}, decomposition = @twice, version = 3 : i32} : "
            "(tensor<3x4xf32>) -> tensor<3x4xf32>",
            [X34],
            [type_of(X34)],
            _INNER,
        ),
        module(
            '%r0 = stablehlo.composite "author.twice" %a0 {composite_attributes = '
            "{sizes = array<i32: 1, 2>, exact = array<i1: true>, scales = array<f32: 1.5>}, "
            "decomposition = @twice} : (tensor<3x4xf32>) -> tensor<3x4xf32>",
            [X34],
            [type_of(X34)],
            _INNER,
        ),
    ],
    "stablehlo.if": [
        module(_IF, [np.array(p), X34], [type_of(X34), type_of(X34)]) for p in (True, False)
    ],
    "stablehlo.map": [module(_MAP, [X34, X34[::-1]], [type_of(X34)])],
    "stablehlo.reduce": _REDUCES,
    "stablehlo.reduce_window": _WINDOWS,
    "stablehlo.scatter": _SCATTERS,
    "stablehlo.select_and_scatter": [
        module(
            _SELECT_AND_SCATTER,
            [X46, RNG.standard_normal((2, 2)).astype(F32)],
            [type_of(X46)],
        )
    ],
    "stablehlo.sort": _SORTS,
    "stablehlo.while": [
        module(_WHILE, [I32(n), X34], ["tensor<i32>", type_of(X34)]) for n in (0, 5)
    ],
}
