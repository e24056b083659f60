"""Calls of functions in `tf` itself that are in no other namespace."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tests.tf.api.calls import (
    BOOL,
    DISTINCT,
    B,
    F,
    I,
    Table,
    U,
    V,
    Z,
    call,
    each,
    left_out,
    of,
)  # fmt: skip

ALL = "float32 float64 int32 complex64"
_NO_OP = "is no op of a graph"
_CODE = "runs Python code"
_NO_RULE = "without a rule"
_COMPILED = "compiled by XLA at the sizes of the call"
_REFINED = "StableHLO does not refine its shapes"


@tf.custom_gradient
def _doubled(x: Any) -> Any:
    return tf.sin(x), lambda dy: dy * 2.0


def _loop(x: Any) -> Any:
    return tf.while_loop(
        lambda i, y: i < 3, lambda i, y: (i + 1, y * tf.sin(y)), [tf.constant(0), x]
    )[1]


TOP: Table = {
    **left_out(
        _NO_OP,
        "AggregationMethod CriticalSection DType DeviceSpec GradientTape Graph IndexedSlices IndexedSlicesSpec Module NoneTensorSpec Operation OptionalSpec "
        "RaggedTensorSpec RegisterGradient SparseTensorSpec Tensor TensorArraySpec TensorShape TensorSpec TypeSpec UnconnectedGradients "
        "VariableAggregation VariableSynchronization as_dtype broadcast_static_shape check_pinned constant_initializer control_dependencies device "
        "executing_eagerly function get_current_name_scope get_logger get_static_value import_graph_def init_scope inside_function is_symbolic_tensor is_tensor "
        "load_library load_op_library make_ndarray make_tensor_proto name_scope no_gradient no_op ones_initializer random_normal_initializer "
        "random_uniform_initializer zeros_initializer register_tensor_conversion_function type_spec_from_value variable_creator_scope timestamp print group "
        "assert_rank required_space_to_batch_paddings nondifferentiable_batch_function",
    ),
    **left_out(_CODE, "numpy_function py_function"),
    **left_out("tested with state", "Variable"),
    **left_out("tested with control flow and the options for assertions", "Assert assert_equal assert_greater assert_less TensorArray"),
    "RaggedTensor": "tested with its methods",
    **left_out("works on text", "as_string edit_distance fingerprint"),
    "approx_top_k": (call(DISTINCT(B, 8), 3).of("float32").but(open=_COMPILED),),
    "argsort": (call(F(B, 5)).of("float32 float64 int32"), call(I(0, 3, B, 5), direction="DESCENDING", stable=True), call(F(3, 5), axis=0), call(V([1.0, -1.0, float("inf")]))),
    "sort": (call(F(B, 5)).of("float32 float64 int32"), call(F(B, 5), direction="DESCENDING"), call(F(3, 5), axis=0), call(V([1.0, -1.0, float("inf"), -0.0, 0.0]))),
    "batch_to_space": (call(F(4, 2, 3, 1), [2, 2], [[0, 1], [1, 0]]),),
    "space_to_batch_nd": (call(F(B, 4, 6, 1), [2, 3], [[0, 0], [0, 0]]), call(F(2, 5), [2], [[1, 2]])),
    "bitcast": (call(F(B, 4), tf.int32).of("float32"), call(I(0, 99, B, 2), tf.uint8).but(open=_REFINED), call(I(0, 256, B, 4, dtype="uint8"), tf.int32).but(open=_REFINED)),
    "boolean_mask": (call(F(3, 2), V([True, False, True])).refused("a result whose size depends on data, which is a result"), of(lambda x, m: tf.reduce_mean(tf.boolean_mask(x, m), axis=0), F(3, 2), V([True, False, True])), of(lambda x: tf.boolean_mask(x, [True, False, True]), F(3, 2)), of(lambda x: tf.boolean_mask(x, [True, False, True], axis=1), F(B, 3))),
    "broadcast_dynamic_shape": (of(lambda x, y: tf.broadcast_dynamic_shape(tf.shape(x), tf.shape(y)), F(B, 1), F(4)),),
    "broadcast_to": (call(F(3), [2, 3]).of(ALL), of(lambda x: tf.broadcast_to(x[:1], tf.shape(x)), F(B, 3))),
    "case": (of(lambda x: tf.case([(tf.reduce_sum(x) > 0, lambda: x * 2)], default=lambda: -x), F(B)),),
    "cast": (call(F(B, 4), tf.int32), call(F(B, 4), tf.float64), call(V([3.7, -3.7, 0.0]), tf.int32), call(Z(B, 2), tf.float32), call(BOOL(B), tf.float32), call(F(B), tf.complex64), call(I(-5, 300, B), tf.uint8), call(F(B, 4), tf.bool)),
    "saturate_cast": (call(U(-400, 400, B, 9), tf.uint8), call(U(-400, 400, B, 9), tf.int8), call(I(-999, 999, B, 4), tf.int8), call(V([float("inf"), -1e30, 1e30]), tf.int32)),
    "clip_by_global_norm": (call([F(B, 3), F(2)], 0.5), call([F(B, 3), F(2)], 50.0)),
    "clip_by_norm": (call(F(B, 3), 0.5), call(F(B, 3), 0.5, axes=[1])),
    "clip_by_value": (call(F(B, 3), -0.5, 0.5), call(F(B, 3), F(3), U(3, 4, 3)), call(V([0.5, -0.5, 1.0, float("nan")]), -0.5, 0.5)),
    "complex": (call(F(B, 3), F(B, 3)),),
    "concat": (call([F(B, 3), F(B, 2)], 1).of(ALL), call([F(B, 3), F(B, 3)], 0), call([F(0, 3), F(2, 3)], axis=0)),
    "cond": (of(lambda x: tf.cond(tf.reduce_sum(x) > 0, lambda: tf.sin(x), lambda: x * 3), F(B, 2)),),
    "switch_case": (of(lambda x, i: tf.switch_case(i, [lambda: x, lambda: tf.sin(x), lambda: -x]), F(B, 2), V(1, "int32")),),
    "while_loop": (of(_loop, F(B, 2)), of(lambda x: tf.while_loop(lambda y: tf.reduce_sum(y) < 9, lambda y: [y * 2], [x])[0], U(0.1, 1, 3)).but(gradient="of a loop whose number of steps depends on data"), of(lambda x: tf.while_loop(lambda i, y: i < tf.reduce_max(tf.minimum(x, 7.0)), lambda i, y: (i + 1.0, tf.sin(y)), [tf.zeros([], x.dtype), x])[1], U(0, 5, 3))),
    "constant": (of(lambda x: x + tf.constant([1.0, 2.0], x.dtype), F(B, 2)),),
    "convert_to_tensor": (call(F(B, 2)).of(ALL),),
    "conv": (call(F(B, 5, 6, 2), F(3, 2, 2, 4), [1, 1, 2, 1], "SAME").of("float32"),),
    **left_out("TensorFlow has no kernel for it", "conv2d_backprop_filter_v2 conv2d_backprop_input_v2"),
    "custom_gradient": (of(_doubled, F(B, 2)),),
    "dynamic_partition": (call(F(3, 2), V([1, 0, 1], "int32"), 2).refused("the sizes of its results depend on data"), of(lambda x: tf.dynamic_partition(x, [1, 0, 1, 2], 3), F(4, 2)),),
    "dynamic_stitch": (of(lambda x, y: tf.dynamic_stitch([[0, 2], [1, 3]], [x, y]), F(2, 3), F(2, 3)), of(lambda x, y: tf.dynamic_stitch([[0, 1], [1, 2]], [x, y]), F(2, 3), F(2, 3)).but(gradient="TensorFlow gives rows that are written over theirs as well")),
    "ensure_shape": (call(F(B, 3), [None, 3]),),
    "expand_dims": (call(F(B, 3), 1).of(ALL), call(F(B, 3), -1)),
    "extract_volume_patches": (call(F(B, 4, 4, 4, 2), [1, 2, 2, 2, 1], [1, 2, 1, 2, 1], "VALID"), call(F(B, 3, 4, 4, 1), [1, 2, 2, 2, 1], [1, 1, 1, 1, 1], "SAME")),
    **left_out("TensorFlow has no kernel for the CPU; tested with the ops", "fftnd ifftnd rfftnd irfftnd"),
    "fill": (call([2, 3], F()).of(ALL), of(lambda x: tf.fill(tf.shape(x), 2.5), F(B, 2))),
    **each("foldl foldr", of(lambda x: tf.foldl(lambda a, y: a * 0.5 + tf.sin(y), x), F(4, 2)), of(lambda x: tf.foldl(lambda a, y: a + y, x, tf.zeros([2], x.dtype)), F(3, 2))),
    "foldr": (of(lambda x: tf.foldr(lambda a, y: a * 0.5 + tf.sin(y), x), F(4, 2)),),
    "scan": (of(lambda x: tf.scan(lambda a, y: a * 0.5 + tf.sin(y), x), F(4, 2)), of(lambda x: tf.scan(lambda a, y: (a[0] + y, a[1] * y), x, (x[0], x[1]), reverse=True), F(3, 2))),
    "map_fn": (of(lambda x: tf.map_fn(tf.sin, x), F(B, 2)), of(lambda x, y: tf.map_fn(lambda t: t[0] * tf.reduce_sum(t[1]), (x, y), fn_output_signature=x.dtype), F(B, 2), F(B, 3))),
    "vectorized_map": (of(lambda x: tf.vectorized_map(lambda y: tf.sin(y) * tf.reduce_sum(y), x), F(B, 2)), of(lambda x: tf.vectorized_map(lambda y: tf.linalg.matvec(tf.ones([4, 2], x.dtype), y), x), F(3, 2))),
    "gather": (
        call(F(5, 3), I(0, 5, B, 2)).of(ALL), call(F(B, 5), I(0, 5, 4), axis=1), call(F(B, 5, 2), I(0, 5, B, 3), axis=1, batch_dims=1), call(F(2, 3, 5), I(0, 5, 2, 3, 2), batch_dims=2), call(F(B, 3), V([2, 0, 0], "int64"), axis=-1),
    ),
    "gather_nd": (call(F(4, 3), V([[0, 1], [3, 2]], "int32")).of(ALL), call(F(B, 4, 3), I(0, 4, B, 2, 1), batch_dims=1), call(F(4, 3), I(0, 4, B, 1))),
    "grad_pass_through": (of(lambda x: tf.grad_pass_through(tf.round)(x), F(B, 2)),),
    "gradients": (of(lambda x: tf.function(lambda x: tf.gradients(tf.sin(x) * x, x)[0])(x), F(B, 2)),),
    "hessians": (of(lambda x: tf.function(lambda x: tf.hessians(tf.reduce_sum(tf.sin(x) * x[::-1]), x)[0])(x), F(3)),),
    "guarantee_const": (call(F(B)),),
    "histogram_fixed_width": (call(U(-1, 6, 9), V([0.0, 5.0]), nbins=5), call(U(-1, 6, B), [0.0, 5.0], nbins=4, dtype=tf.int64).of("float32")),
    "histogram_fixed_width_bins": (call(U(-1, 6, B, 4), V([0.0, 5.0]), nbins=5), call(V([0.0, 5.0, 1.0, -0.0]), [0.0, 5.0], nbins=5).of("float32")),
    "identity": (call(F(B)).of(ALL),),
    "identity_n": (call([F(B), F(2)]),),
    "linspace": (call(F(), F(), 5), call(F(B), F(B), 4), call(F(B, 2), F(B, 2), 3, axis=-1), of(lambda x: tf.linspace(x[0, 0], x[0, 1], tf.shape(x)[0]), F(B, 2)), call(V(2, "int32"), V(9, "int32"), 3).of("int32")),
    "meshgrid": (call(F(B), F(3)), call(F(2), F(3), F(4), indexing="ij")),
    "norm": (call(F(B, 3), axis=1),),
    "one_hot": (call(I(-1, 5, B, 2), 4), call(I(0, 4, B), 4, on_value=2.5, off_value=-1.0, axis=0), call(I(0, 4, B, 2), 4, axis=1, dtype=tf.int32), call(I(0, 4, 3), 4, on_value=True, off_value=False, dtype=tf.bool)),
    **each("ones_like zeros_like", call(F(B, 2)).of(ALL), call(F(B, 2), dtype=tf.int32), call(BOOL(B))),
    **each("ones zeros", of(lambda x: x + tf.ones([2], x.dtype), F(B, 2)), of(lambda x: tf.ones(tf.shape(x)), F(B, 2))),
    "zeros": (of(lambda x: x + tf.zeros([2], x.dtype), F(B, 2)), of(lambda x: tf.zeros(tf.shape(x)), F(B, 2))),
    "pad": (call(F(B, 3), [[0, 0], [1, 2]]).of(ALL), call(F(B, 3), [[1, 0], [1, 2]], constant_values=2.5), call(F(B, 4), [[0, 0], [1, 2]], "REFLECT"), call(F(B, 4), [[0, 1], [1, 2]], "SYMMETRIC")),
    "parallel_stack": (of(lambda x, y: tf.function(tf.parallel_stack)([x, y]), F(2), F(2)).but(gradient="TensorFlow has none"),),
    **left_out(_NO_RULE, "ragged_fill_empty_rows ragged_fill_empty_rows_grad"),
    "random_index_shuffle": "the op behind tf.random.experimental.index_shuffle",
    "range": (of(lambda x: tf.cast(tf.range(5), x.dtype) * x, F()), of(lambda x: tf.range(2.0, 9.0, 1.5) + tf.cast(x, tf.float32), F()), of(lambda x: tf.range(tf.shape(x)[0]), F(B, 2)), of(lambda x: tf.range(tf.shape(x)[0], 0, -1), F(B, 2))),
    "rank": (call(F(B, 2)),),
    **each("realdiv", call(F(B, 3), U(0.5, 2, B, 3)).of("float32 float64 complex64")),
    "recompute_grad": (of(lambda x: tf.recompute_grad(lambda y: tf.sin(y) * y)(x), F(B, 2)),),
    "repeat": (
        call(F(B, 3), 2, axis=0), call(F(B, 3), 2, axis=1), of(lambda x: tf.repeat(x, [2, 0, 3], axis=1), F(B, 3)), of(lambda x: tf.repeat(x, [2, 0, 3], axis=0), F(3, B)),
        of(lambda x: tf.repeat(x, [1, 2], axis=2), F(B, 3, 2)), call(F(2, 3), 2), call(F(3, 2), V([1, 0, 2], "int32"), axis=0).refused("tf.Tile: input 1 must be a constant"),
    ),
    "reshape": (call(F(B, 6), [-1, 2, 3]).of(ALL), of(lambda x: tf.reshape(x, [tf.shape(x)[0] * 2, 3]), F(B, 6)), call(F(B, 6), [-1])),
    "reverse": (call(F(B, 3), [1]).of(ALL), call(F(B, 3), [0, -1])),
    "reverse_sequence": (call(F(B, 5, 2), I(0, 6, B), seq_axis=1, batch_axis=0), call(F(5, B), I(0, 6, B), seq_axis=0, batch_axis=1)),
    "roll": (call(F(B, 3), 1, 1).of(ALL), call(F(B, 3), [2, -1], [0, 1]), call(F(B, 3), V(-4, "int32"), 1)),
    "scatter_nd": (call(V([[0], [2], [0]], "int32"), F(3, 2), [4, 2]).of(ALL), call(I(0, 4, B, 1), F(B), [4])),
    **each(
        "tensor_scatter_nd_add tensor_scatter_nd_sub tensor_scatter_nd_max tensor_scatter_nd_min",
        call(F(4, 2), V([[0], [2], [0]], "int32"), F(3, 2)).of("float32 float64 int32"), call(F(B, 4), V([[0, 1], [1, 3], [0, 1]], "int32"), F(3)), call(F(4), I(0, 4, B, 1), F(B)),
        call(V([1.0, 2.0, 3.0]), V([[0], [0], [2]], "int32"), V([1.0, 1.0, 3.0])),
    ),
    "tensor_scatter_nd_update": (call(F(4, 2), V([[0], [2]], "int32"), F(2, 2)).of(ALL), call(F(B, 4), V([[0, 1], [1, 3]], "int32"), F(2))),
    "searchsorted": (call(V([1.0, 2.0, 2.0, 5.0]), F(B)), call(V([[1.0, 2.0, 2.0, 5.0]]), U(0, 6, 1, 5), side="right"), call(V([1, 3, 3, 7], "int32"), I(0, 9, B), out_type=tf.int64)),
    "sequence_mask": (call(I(0, 5, B), 5), call(I(0, 5, B, 2), maxlen=4, dtype=tf.float32)),
    "shape": (call(F(B, 3)), call(F(B, 3), out_type=tf.int64)),
    "shape_n": (call([F(B, 3), F(2)]),),
    "size": (call(F(B, 3)),),
    "slice": (call(F(B, 4), [1, 0], [1, 2]).of(ALL), call(F(B, 4), [0, 1], [-1, 2]), call(F(B, 4), V([0, 1], "int32"), [1, 2])),
    "strided_slice": (call(F(B, 6), [0, 1], [2, 6], [1, 2]), of(lambda x: x[:, ::-2], F(B, 6)), of(lambda x: x[1:, tf.newaxis, ..., 0], F(B, 6)), of(lambda x: x[..., -1:], F(B, 6, 2)), call(F(B, 6), [0, 1], [0, 6], begin_mask=1, end_mask=1, shrink_axis_mask=2)),
    "split": (call(F(B, 6), 3, axis=1).of(ALL), call(F(B, 6), [1, 2, 3], axis=1), call(F(B, 6), [1, -1, 3], axis=1)),
    "squeeze": (call(F(B, 1, 3, 1)), call(F(B, 1, 3, 1), [1])),
    "stack": (call([F(B, 3), F(B, 3)]).of(ALL), call([F(B, 3), F(B, 3)], axis=-1)),
    "unstack": (call(F(B, 3), axis=1).of(ALL), call(F(3, 2))),
    "stop_gradient": (of(lambda x: tf.stop_gradient(x) * x, F(B)),),
    "tile": (call(F(B, 3), [1, 2]).of(ALL), of(lambda x: tf.tile(x, [tf.shape(x)[0], 1]), F(B, 3)), call(F(B, 3), [2, 0])),
    "transpose": (call(F(B, 3)).of(ALL), call(F(B, 3, 2), [2, 0, 1]), call(F(B, 3), conjugate=True).of("complex64")),
    **each("truncatediv truncatemod", call(I(-9, 9, B, 4), I(1, 4, B, 4)), call(I(-9, 9, B, 4, dtype="int64"), V([-3, 2, -1, 4], "int64"))),
    "truncatemod": (call(I(-9, 9, B, 4), I(1, 4, B, 4)), call(F(B, 4), U(0.5, 2, B, 4))),
    "tuple": (call([F(B), F(2)]),),
    **left_out("sizes depend on data; compared with the ops of that kind", "unique unique_with_counts"),
    "unravel_index": (call(I(0, 12, B), [3, 4]),),
    "where": (call(BOOL(B, 3), F(B, 3), F(B, 3)).of(ALL), call(BOOL(B, 1), F(3), 0.0), of(lambda x: tf.where(tf.constant([True, False, True])), F()), call(V([True, False, True])).refused("a result whose size depends on data, which is a result")),
}  # fmt: skip
