"""Modules of the remaining ops: op -> variants of (text, arguments, results or `None`).

Expected results are given where XLA does not run the text on one CPU.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tests.programs.stablehlo_text import main, one_op, tensor, type_of

RNG = np.random.RandomState(2)
F32 = np.float32
X34 = RNG.standard_normal((3, 4)).astype(F32)
T = type_of(X34)
MESH = 'sdy.mesh @mesh = <["a"=1, "b"=1]>'

Variant = tuple[str, list[np.ndarray], list[np.ndarray] | None]


def module(
    body: str, args: list[Any], results: list[str], rest: str = "", expected: Any = None
) -> Variant:
    args = [np.asarray(x) for x in args]
    return main(body, args, results, rest), args, expected


def same(body: str, rest: str = "") -> list[Variant]:
    """A module that returns its argument."""
    return [module(body, [X34], [T], rest, [X34])]


def collective(name: str, attributes: str, region: str = "") -> list[Variant]:
    """A collective on one device, in groups of one."""
    return same(f'%r0 = "stablehlo.{name}"(%a0) {region} {{{attributes}}} : ({T}) -> {T}')


_ADD = (
    "({\n^bb0(%x: tensor<f32>, %y: tensor<f32>):\n%z = stablehlo.add %x, %y : tensor<f32>\n"
    '"stablehlo.return"(%z) : (tensor<f32>) -> ()\n})'
)
_GROUPS = "replica_groups = dense<0> : tensor<1x1xi64>"


def resharding(op: str, attributes: str) -> list[Variant]:
    constrain = f'%x = sdy.sharding_constraint %a0 <@mesh, [{{"a"}}, {{}}]> : {T}'
    return same(f"{constrain}\n%r0 = sdy.{op} {attributes} : {T}", MESH)


_LHS = RNG.standard_normal((5, 3)).astype(F32)
_RHS = RNG.standard_normal((2, 3, 4)).astype(F32)
_RAGGED = np.concatenate([_LHS[:2] @ _RHS[0], _LHS[2:] @ _RHS[1]])
_TOP = np.array([[3, 1, 2, 7], [0, 9, 5, -1]], F32)

_STATE = np.array([1, 2], np.uint64)
_CONST = "stablehlo.constant dense"
_IMAGE = RNG.standard_normal((1, 4, 1)).astype(F32)
_KERNEL = RNG.standard_normal((2, 1, 1)).astype(F32)

_ERF = np.array([[math.erf(x) for x in row] for row in X34.tolist()], F32)

_ROWS = RNG.standard_normal((5, 3)).astype(F32)


def scan(prefix: str) -> list[Variant]:
    """Sums along either axis, from either end, with a second output, and without an input."""
    end = "mhlo" if prefix == "mhlo" else "stablehlo"

    def sums(axis: int, reverse: bool) -> Variant:
        kept = _ROWS.shape[1 - axis]
        row, rows = f"tensor<{kept}xf32>", type_of(_ROWS)
        seen = np.flip(_ROWS, axis) if reverse else _ROWS
        total = np.cumsum(seen, axis, dtype=F32)
        total = np.flip(total, axis) if reverse else total
        return module(
            f'''%r0, %r1, %r2 = "{prefix}.scan"(%a0, %a1) ({{
              ^bb0(%x: {row}, %sum: {row}):
                %s = stablehlo.add %sum, %x : {row}
                %n = stablehlo.negate %x : {row}
                "{end}.return"(%s, %n, %s) : ({row}, {row}, {row}) -> () }})
            {{dimension = {axis} : i64, is_reverse = {str(reverse).lower()}, is_associative = true,
              operandSegmentSizes = array<i32: 1, 1>, resultSegmentSizes = array<i32: 2, 1>}}
            : ({rows}, {row}) -> ({rows}, {rows}, {row})''',
            [_ROWS, np.zeros(kept, F32)],
            [rows, rows, row],
            expected=[total, -_ROWS, np.take(total, 0 if reverse else -1, axis)],
        )

    alone = module(
        f'''%r0, %r1 = "{prefix}.scan"(%a0) ({{
          ^bb0(%c: tensor<i32>):
            %d = stablehlo.add %c, %c : tensor<i32>
            "{end}.return"(%c, %d) : (tensor<i32>, tensor<i32>) -> () }})
        {{dimension = 0 : i64, scan_dim_size = 4 : i64, operandSegmentSizes = array<i32: 0, 1>,
          resultSegmentSizes = array<i32: 1, 1>}} : (tensor<i32>) ->
          (tensor<4xi32>, tensor<i32>)''',
        [np.int32(3)],
        ["tensor<4xi32>", "tensor<i32>"],
        expected=[np.array([3, 6, 12, 24], np.int32), np.int32(48)],
    )
    return [*(sums(a, r) for a in (0, 1) for r in (False, True)), alone]


def layouts(source: str, result: str) -> str:
    kind = "tensor<2xindex>"
    return f"{{source_layout = dense<{source}> : {kind}, result_layout = dense<{result}> : {kind}}}"


_INVERSE = {
    "acos": np.arccos, "acosh": np.arccosh, "asin": np.arcsin, "asinh": np.arcsinh,
    "atanh": np.arctanh, "cosh": np.cosh, "sinh": np.sinh,
}  # fmt: skip
_INSIDE = np.array([[0.1, -0.5], [0.9, 0]], F32)

MODULES: dict[str, list[Variant]] = {
    "chlo.scan": scan("chlo"),
    "mhlo.scan": scan("mhlo"),
    **{
        f"mhlo.{name}": [
            module(
                f'%r0 = "mhlo.{name}"(%a0) : (tensor<2x2xf32>) -> tensor<2x2xf32>',
                [x := _INSIDE + F32(2 * (name == "acosh"))],
                ["tensor<2x2xf32>"],
                expected=[function(x)],
            )
        ]
        for name, function in _INVERSE.items()
    },
    "mhlo.copy": same(f'%r0 = "mhlo.copy"(%a0) : ({T}) -> {T}'),
    "mhlo.add_dependency": same(
        f"%t = stablehlo.create_token : !stablehlo.token\n"
        f'%r0 = "mhlo.add_dependency"(%a0, %t) : ({T}, !stablehlo.token) -> {T}'
    ),
    "mhlo.fusion": [
        module(
            f"""%r0, %r1 = "mhlo.fusion"(%a0) ({{
              ^bb0(%x: {T}):
                %y = stablehlo.negate %x : {T}
                "mhlo.return"(%y, %x) : ({T}, {T}) -> () }})
            {{fusion_kind = #mhlo<fusion_kind kLoop>}} : ({T}) -> ({T}, {T})""",
            [X34],
            [T, T],
            expected=[-X34, X34],
        )
    ],
    "mhlo.bitcast": [
        module(
            f'%r0 = "mhlo.bitcast"(%a0) {layouts("[1, 0]", "[0, 1]")} : ({T}) -> tensor<4x3xf32>',
            [X34],
            ["tensor<4x3xf32>"],
            expected=[X34.T],
        ),
        module(
            f'%r0 = "mhlo.bitcast"(%a0) {layouts("[0, 1]", "[1, 0]")} : ({T}) -> tensor<2x6xi32>',
            [X34],
            ["tensor<2x6xi32>"],
            expected=[np.ascontiguousarray(X34.T).view(np.int32).reshape(2, 6)],
        ),
        module(f'%r0 = "mhlo.bitcast"(%a0) : ({T}) -> {T}', [X34], [T], "", [X34]),
    ],
    "mhlo.topk": [
        module(
            '%r0, %r1 = "mhlo.topk"(%a0) {k = 2 : i64, largest = true} : (tensor<2x4xf32>) -> '
            "(tensor<2x2xf32>, tensor<2x2xi32>)",
            [_TOP],
            ["tensor<2x2xf32>", "tensor<2x2xi32>"],
            expected=[np.array([[7, 3], [9, 5]], F32), np.array([[3, 0], [1, 2]], np.int32)],
        )
    ],
    "mhlo.erf": [module(f'%r0 = "mhlo.erf"(%a0) : ({T}) -> {T}', [X34], [T], "", [_ERF])],
    "chlo.ragged_dot": [
        module(
            '%r0 = "chlo.ragged_dot"(%a0, %a1, %a2) {ragged_dot_dimension_numbers = '
            "#chlo.ragged_dot<lhs_batching_dimensions = [], rhs_batching_dimensions = [], "
            "lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [1], "
            "lhs_ragged_dimensions = [0], rhs_group_dimensions = [0]>} : "
            "(tensor<5x3xf32>, tensor<2x3x4xf32>, tensor<2xi32>) -> tensor<5x4xf32>",
            [_LHS, _RHS, np.array([2, 3], np.int32)],
            ["tensor<5x4xf32>"],
            expected=[_RAGGED],
        )
    ],
    "chlo.top_k": [
        module(
            "%r0, %r1 = chlo.top_k(%a0, k = 2) : tensor<2x4xf32> -> "
            "(tensor<2x2xf32>, tensor<2x2xi32>)",
            [_TOP],
            ["tensor<2x2xf32>", "tensor<2x2xi32>"],
            expected=[
                np.array([[7, 3], [9, 5]], F32),
                np.array([[3, 0], [1, 2]], np.int32),
            ],
        )
    ],
    "sdy.all_gather": resharding("all_gather", '[{"a"}, {}] %x out_sharding=<@mesh, [{}, {}]>'),
    "sdy.all_reduce": resharding("all_reduce", '{"a"} %a0 out_sharding=<@mesh, [{}, {}]>'),
    "sdy.all_slice": resharding("all_slice", '[{"a"}, {}] %a0 out_sharding=<@mesh, [{"a"}, {}]>'),
    "sdy.all_to_all": resharding(
        "all_to_all", '[{"a"}: 0->1] %x out_sharding=<@mesh, [{}, {"a"}]>'
    ),
    "sdy.manual_computation": [
        module(
            '%r0 = sdy.manual_computation(%a0) in_shardings=[<@mesh, [{"a"}, {}]>] '
            'out_shardings=[<@mesh, [{"a"}, {}]>] manual_axes={"a"} '
            f"(%x: {T}) {{\n%y = stablehlo.add %x, %x : {T}\nsdy.return %y : {T}\n}} "
            f": ({T}) -> {T}",
            [X34],
            [T],
            MESH,
            [X34 + X34],
        )
    ],
    "sdy.mesh": same(f'%r0 = sdy.sharding_constraint %a0 <@mesh, [{{"a"}}, {{"b"}}]> : {T}', MESH),
    "sdy.named_computation": [
        module(
            f'%r0 = sdy.named_computation<"layer">(%a0) (%x: {T}) {{\n'
            f"%y = stablehlo.sine %x : {T}\nsdy.return %y : {T}\n}} : ({T}) -> {T}",
            [X34],
            [T],
            expected=[np.sin(X34)],
        )
    ],
    "sdy.propagation_barrier": same(
        f"%r0 = sdy.propagation_barrier %a0 allowed_direction=NONE : {T}"
    ),
    "sdy.reshard": same(f'%r0 = sdy.reshard %a0 <@mesh, [{{"a"}}, {{?}}]> : {T}', MESH),
    "sdy.sharding_constraint": same(
        f"%r0 = sdy.sharding_constraint %a0 <@mesh, [{{}}, {{}}]> : {T}", MESH
    ),
    "sdy.sharding_group": [
        module(
            f"sdy.sharding_group %a0 group_id=3 : {T}\n%r0 = stablehlo.negate %a0 : {T}",
            [X34],
            [T],
            expected=[-X34],
        )
    ],
    "stablehlo.after_all": same(
        "%t = stablehlo.create_token : !stablehlo.token\n"
        "%u = stablehlo.after_all %t, %t : !stablehlo.token\n"
        f"%r0 = stablehlo.reshape %a0 : ({T}) -> {T}"
    ),
    "stablehlo.create_token": same(
        "%t = stablehlo.create_token : !stablehlo.token\n"
        f"%r0 = stablehlo.reshape %a0 : ({T}) -> {T}"
    ),
    "stablehlo.all_gather": collective("all_gather", f"all_gather_dim = 0 : i64, {_GROUPS}"),
    "stablehlo.all_reduce": collective("all_reduce", _GROUPS, _ADD),
    "stablehlo.all_to_all": collective(
        "all_to_all",
        "split_dimension = 0 : i64, concat_dimension = 1 : i64, split_count = 1 : i64, " + _GROUPS,
    ),
    "stablehlo.collective_broadcast": collective("collective_broadcast", _GROUPS),
    "stablehlo.collective_permute": [
        *collective("collective_permute", "source_target_pairs = dense<0> : tensor<1x2xi64>"),
        module(
            '%r0 = "stablehlo.collective_permute"(%a0) {source_target_pairs = dense<> : '
            f"tensor<0x2xi64>}} : ({T}) -> {T}",
            [X34],
            [T],
            expected=[np.zeros_like(X34)],
        ),
    ],
    "stablehlo.cross-replica-sum": collective("cross-replica-sum", _GROUPS),
    "stablehlo.reduce_scatter": collective(
        "reduce_scatter", f"scatter_dimension = 0 : i64, {_GROUPS}", _ADD
    ),
    "stablehlo.partition_id": [
        module('%r0 = "stablehlo.partition_id"() : () -> tensor<ui32>', [], ["tensor<ui32>"])
    ],
    "stablehlo.replica_id": [
        module("%r0 = stablehlo.replica_id : tensor<ui32>", [], ["tensor<ui32>"])
    ],
    "stablehlo.custom_call": same(
        f'%r0 = stablehlo.custom_call @Sharding(%a0) {{mhlo.sharding = "{{replicated}}"}} '
        f": ({T}) -> {T}"
    ),
    "stablehlo.dynamic_broadcast_in_dim": [
        module(
            f"%s = {_CONST}<[2, 3, 4]> : tensor<3xi32>\n"
            f"%r0 = stablehlo.dynamic_broadcast_in_dim %a0, %s, dims = [1, 2] : "
            f"({T}, tensor<3xi32>) -> tensor<2x3x4xf32>",
            [X34],
            ["tensor<2x3x4xf32>"],
            expected=[np.stack([X34, X34])],
        )
    ],
    "stablehlo.dynamic_conv": [
        module(
            f"%p = {_CONST}<[[1, 0]]> : tensor<1x2xi32>\n"
            '%r0 = "stablehlo.dynamic_conv"(%a0, %a1, %p) {dimension_numbers = '
            "#stablehlo.conv<[b, 0, f]x[0, i, o]->[b, 0, f]>, batch_group_count = 1 : i64, "
            "feature_group_count = 1 : i64} : (tensor<1x4x1xf32>, tensor<2x1x1xf32>, "
            "tensor<1x2xi32>) -> tensor<1x4x1xf32>",
            [_IMAGE, _KERNEL],
            ["tensor<1x4x1xf32>"],
            expected=[
                np.correlate(np.r_[F32(0), _IMAGE[0, :, 0]], _KERNEL[:, 0, 0]).reshape(1, 4, 1)
            ],
        )
    ],
    "stablehlo.dynamic_gather": [
        module(
            f"%s = {_CONST}<[1, 4]> : tensor<2xi32>\n"
            '%r0 = "stablehlo.dynamic_gather"(%a0, %a1, %s) {dimension_numbers = '
            "#stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], "
            "start_index_map = [0], index_vector_dim = 1>} : "
            f"({T}, tensor<2x1xi32>, tensor<2xi32>) -> tensor<2x4xf32>",
            [X34, np.array([[2], [0]], np.int32)],
            ["tensor<2x4xf32>"],
            expected=[X34[[2, 0]]],
        )
    ],
    "stablehlo.dynamic_iota": [
        module(
            f"%s = {_CONST}<[2, 3]> : tensor<2xi32>\n"
            "%r0 = stablehlo.dynamic_iota %s, dim = 1 : (tensor<2xi32>) -> tensor<2x3xf32>",
            [],
            ["tensor<2x3xf32>"],
            expected=[np.array([[0, 1, 2]] * 2, F32)],
        )
    ],
    "stablehlo.dynamic_pad": [
        module(
            f"%l = {_CONST}<[0, 1]> : tensor<2xi32>\n%i = {_CONST}<0> : tensor<2xi32>\n"
            f"%v = {_CONST}<2.0> : tensor<f32>\n"
            "%r0 = stablehlo.dynamic_pad %a0, %v, %l, %l, %i : "
            f"({T}, tensor<f32>, tensor<2xi32>, tensor<2xi32>, tensor<2xi32>) -> tensor<3x6xf32>",
            [X34],
            ["tensor<3x6xf32>"],
            expected=[np.pad(X34, ((0, 0), (1, 1)), constant_values=2)],
        )
    ],
    "stablehlo.dynamic_reshape": [
        module(
            f"%s = {_CONST}<[2, 6]> : tensor<2xi32>\n"
            f"%r0 = stablehlo.dynamic_reshape %a0, %s : ({T}, tensor<2xi32>) -> tensor<2x6xf32>",
            [X34],
            ["tensor<2x6xf32>"],
            expected=[X34.reshape(2, 6)],
        )
    ],
    "stablehlo.get_dimension_size": [
        module(
            f"%r0 = stablehlo.get_dimension_size %a0, dim = 1 : ({T}) -> tensor<i32>",
            [X34],
            ["tensor<i32>"],
            expected=[np.int32(4)],
        )
    ],
    "stablehlo.get_tuple_element": [
        module(
            f"%t = stablehlo.tuple %a0, %a1 : tuple<{T}, tensor<i32>>\n"
            f"%r0 = stablehlo.get_tuple_element %t[1] : (tuple<{T}, tensor<i32>>) -> tensor<i32>",
            [X34, np.int32(5)],
            ["tensor<i32>"],
            expected=[np.int32(5)],
        )
    ],
    "stablehlo.tuple": [
        module(
            f"%t = stablehlo.tuple %a0, %a1 : tuple<{T}, tensor<i32>>\n"
            f"%r0 = stablehlo.get_tuple_element %t[0] : (tuple<{T}, tensor<i32>>) -> {T}",
            [X34, np.int32(5)],
            [T],
            expected=[X34],
        )
    ],
    "stablehlo.optimization_barrier": [
        module(
            f"%r0, %r1 = stablehlo.optimization_barrier %a0, %a1 : {T}, tensor<i32>",
            [X34, np.int32(5)],
            [T, "tensor<i32>"],
        )
    ],
    "stablehlo.real_dynamic_slice": [
        module(
            f"%s = {_CONST}<[1, 0]> : tensor<2xi32>\n%e = {_CONST}<[3, 4]> : tensor<2xi32>\n"
            f"%d = {_CONST}<[1, 2]> : tensor<2xi32>\n"
            f"%r0 = stablehlo.real_dynamic_slice %a0, %s, %e, %d : ({T}, tensor<2xi32>, "
            "tensor<2xi32>, tensor<2xi32>) -> tensor<2x2xf32>",
            [X34],
            ["tensor<2x2xf32>"],
            expected=[X34[1:, ::2]],
        )
    ],
    "stablehlo.rng_bit_generator": [
        module(
            f"%r0, %r1 = stablehlo.rng_bit_generator %a0, algorithm = {algorithm} : "
            f"(tensor<2xui64>) -> (tensor<2xui64>, {tensor(dtype, (5,))})",
            [_STATE],
            ["tensor<2xui64>", tensor(dtype, (5,))],
        )
        for algorithm in ("THREE_FRY", "DEFAULT")
        for dtype in (np.uint32, np.uint64, np.uint8)
    ],
    "stablehlo.set_dimension_size": [
        # The result has the bounded size; the sizes agree here, so nothing is cut off.
        (
            one_op("stablehlo.set_dimension_size", [X34, np.int32(4)], T, "{dimension = 1 : i64}")
            .replace(", %a1: tensor<i32>", "")
            .replace("%r0 =", f"%a1 = {_CONST}<4> : tensor<i32>\n%r0 =", 1),
            [X34],
            [X34],
        )
    ],
    "stablehlo.unary_einsum": [
        module(
            '%r0 = "stablehlo.unary_einsum"(%a0) {einsum_config = "ij->j"} : '
            f"({T}) -> tensor<4xf32>",
            [X34],
            ["tensor<4xf32>"],
            expected=[X34.sum(0)],
        )
    ],
}
