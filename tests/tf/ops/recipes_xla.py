"""Inputs of the `Xla…` ops, which jax2tf used to write."""

# One row for each op, however long.
# ruff: noqa: E501, C408

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf
from tensorflow.compiler.xla import xla_data_pb2 as xla

from tests.tf.ops.cases import Recipe, ids, p, r, raw_op, spd, x

_SOME = ("float32", "float64", "int32", "bfloat16")


def _computation(fn: Callable[..., Any], dtype: Any, count: int = 2) -> Any:
    specs = [tf.TensorSpec([], dtype)] * count
    return tf.function(fn, autograph=False).get_concrete_function(*specs)


def _reduce(t: Any) -> Any:
    reducer = _computation(tf.maximum, t.dtype)
    return raw_op("XlaReduce")(input=t, init_value=tf.constant(-9, t.dtype), dimensions_to_reduce=[1], reducer=reducer)  # fmt: skip


def _variadic(op: str) -> Callable[..., Any]:
    def program(a: Any, b: Any) -> Any:
        reducer = _computation(lambda x0, y0, x1, y1: (x0 + x1, tf.maximum(y0, y1)), a.dtype, 4)
        init = [tf.constant(0, a.dtype), tf.constant(-9, a.dtype)]
        if op == "XlaVariadicReduce":
            return raw_op("XlaVariadicReduce")(input=[a, b], init_value=init, dimensions_to_reduce=[0], reducer=reducer)  # fmt: skip
        return raw_op("XlaVariadicReduceV2")(inputs=[a, b], init_values=init, dimensions_to_reduce=[0], reducer=reducer)  # fmt: skip

    return program


def _window(t: Any) -> Any:
    return raw_op("XlaReduceWindow")(
        input=t, init_value=tf.constant(0, t.dtype), computation=_computation(tf.add, t.dtype),
        window_dimensions=[1, 2], window_strides=[1, 2], base_dilations=[1, 1],
        window_dilations=[1, 1], padding=[[0, 0], [1, 1]],
    )  # fmt: skip


def _select_and_scatter(t: Any, source: Any) -> Any:
    return raw_op("XlaSelectAndScatter")(
        operand=t, window_dimensions=[1, 2], window_strides=[1, 2], padding=[[0, 0], [0, 0]],
        source=source, init_value=tf.constant(0, t.dtype),
        select=_computation(lambda a, b: a >= b, t.dtype), scatter=_computation(tf.add, t.dtype),
    )  # fmt: skip


def _sort(keys: Any, other: Any) -> Any:
    comparator = _computation(lambda a, b, c, d: a < b, keys.dtype, 4)
    return raw_op("XlaVariadicSort")(
        inputs=[keys, other], dimension=1, comparator=comparator, is_stable=True
    )


def _scatter(t: Any, updates: Any) -> Any:
    numbers = xla.ScatterDimensionNumbers(
        update_window_dims=[1], inserted_window_dims=[0], scatter_dims_to_operand_dims=[0], index_vector_dim=1
    )  # fmt: skip
    return raw_op("XlaScatter")(
        operand=t, scatter_indices=tf.constant([[1], [3]]), updates=updates,
        update_computation=_computation(tf.add, t.dtype),
        dimension_numbers=numbers.SerializeToString(), indices_are_sorted=False,
    )  # fmt: skip


def _while(t: Any) -> Any:
    specs = [tf.TensorSpec([], tf.int32), tf.TensorSpec(t.shape, t.dtype)]
    cond = tf.function(lambda i, a: i < 3, autograph=False).get_concrete_function(*specs)
    body = tf.function(lambda i, a: (i + 1, a * 2), autograph=False).get_concrete_function(*specs)
    return raw_op("XlaWhile")(input=[tf.constant(0), t], cond=cond, body=body)[1]


_DOT = xla.DotDimensionNumbers(
    lhs_contracting_dimensions=[2], rhs_contracting_dimensions=[1], lhs_batch_dimensions=[0], rhs_batch_dimensions=[0]
).SerializeToString()  # fmt: skip
_CONV = xla.ConvolutionDimensionNumbers(
    input_batch_dimension=0, input_feature_dimension=3, input_spatial_dimensions=[1, 2],
    kernel_input_feature_dimension=2, kernel_output_feature_dimension=3, kernel_spatial_dimensions=[0, 1],
    output_batch_dimension=0, output_feature_dimension=3, output_spatial_dimensions=[1, 2],
).SerializeToString()  # fmt: skip
_GATHER = xla.GatherDimensionNumbers(
    offset_dims=[1], collapsed_slice_dims=[0], start_index_map=[0], index_vector_dim=1
).SerializeToString()
_CONV_ARGS = dict(
    lhs=x(1, 5, 6, 2), rhs=x(3, 3, 2, 3), window_strides=[1, 2], padding=[[1, 0], [0, 1]],
    lhs_dilation=[1, 1], rhs_dilation=[1, 1], feature_group_count=1, dimension_numbers=_CONV,
    precision_config="",
)  # fmt: skip
_DOT_ARGS = dict(lhs=x(2, 3, 4), rhs=x(2, 4, 2), dimension_numbers=_DOT, precision_config="")


def _reconstruct(s: Any, u: Any, v: Any) -> list[Any]:
    return [s, tf.matmul(u[..., :3] * s[..., None, :], v, adjoint_b=True)]


def _sharding(**fields: Any) -> bytes:
    return xla.OpSharding(**fields).SerializeToString()


# None of them divides an array.
_SHARDINGS = (
    b"",
    _sharding(type=xla.OpSharding.REPLICATED),
    _sharding(type=xla.OpSharding.OTHER, tile_assignment_dimensions=[1, 1], tile_assignment_devices=[0]),
    _sharding(type=xla.OpSharding.MAXIMAL, tile_assignment_dimensions=[1], tile_assignment_devices=[0]),
)  # fmt: skip


def _shards(op: str, **given: Any) -> Callable[..., Any]:
    return lambda t: [raw_op(op)(input=t, manual_sharding=s, **given) * 2 for s in _SHARDINGS]


# TensorFlow distinguishes the collectives of a process by this number.
_INSTANCES = itertools.count(1000)


def _group_of_one(t: Any) -> Any:
    reduce = tf.raw_ops.CollectiveReduceV2
    kinds = [(m, f) for m in ("Add", "Mul", "Min", "Max") for f in ("Id", "Div")]
    return [
        reduce(input=t, group_size=1, group_key=77, instance_key=next(_INSTANCES), ordering_token=[], merge_op=m, final_op=f)
        for m, f in kinds
    ]  # fmt: skip


def _all_reduce(t: Any) -> Any:
    reduce = raw_op("XlaAllReduce")
    return [reduce(input=t, group_assignment=[[0]], reduce_op=op, mode="CrossReplica") for op in ("Add", "Mul", "Min", "Max", "Mean")]  # fmt: skip


def _first_rows(t: Any, n: Any) -> Any:
    rows = raw_op("XlaSetDynamicDimensionSize")(input=t, dim_index=0, size=n)
    whole = raw_op("XlaRemoveDynamicDimensionSize")(input=rows * 2, dim_index=0)
    fixed = raw_op("XlaSetDynamicDimensionSize")(input=t, dim_index=1, size=2)
    return [tf.reduce_sum(rows, 0), tf.reduce_mean(rows), tf.shape(rows), whole, fixed]


_EXPORTED = jax.export.export(jax.jit(lambda a, b: (jnp.tanh(a) @ b, a + 1)))(
    jax.ShapeDtypeStruct((2, 3), np.float32), jax.ShapeDtypeStruct((3, 4), np.float32)
)


def _call_module(a: Any, b: Any) -> Any:
    types = {"Tout": [tf.float32] * 2, "Sout": [[2, 4], [2, 3]], "platforms": ["CPU"]}
    version, module = _EXPORTED.calling_convention_version, _EXPORTED.mlir_module_serialized
    return raw_op("XlaCallModule")(args=[a, b], version=version, module=module, **types)


XLA: dict[str, list[Recipe]] = {
    "XlaSpmdFullToShardShape": [p(_shards("XlaSpmdFullToShardShape"), x(2, 3), dtypes=_SOME, grad=False)],
    "XlaSpmdShardToFullShape": [p(_shards("XlaSpmdShardToFullShape", full_shape=[2, 3]), x(2, 3), dtypes=_SOME, grad=False)],
    "XlaAllReduce": [p(_all_reduce, x(2, 3), dtypes=("float32", "int32", "bfloat16"), grad=False)],
    "CollectiveReduceV2": [p(_group_of_one, x(2, 3), dtypes=("float32", "float64", "int32", "int64"), grad=False)],
    "CollectiveAssignGroupV2": [p(lambda t: [*tf.raw_ops.CollectiveAssignGroupV2(group_assignment=[[0, 2], [3, 1]], device_index=3, base_key=5), t], x(2), grad=False)],
    "XlaSetBound": [p(lambda n: raw_op("XlaSetBound")(input=n, bound=3) + 1, x(low=0, high=9), dtypes=("int32",))],
    "XlaSetDynamicDimensionSize": [p(_first_rows, x(4, 3), x(low=2, high=3, dtype="int32"), dtypes=("float32", "float64"), grad=False)],
    "XlaRemoveDynamicDimensionSize": [r(input=x(2, 3), dim_index=0)],
    "XlaCallModule": [p(_call_module, x(2, 3), x(3, 4), dtypes=("float32",))],
    "XlaReduce": [p(_reduce, x(2, 3), dtypes=_SOME, grad=False)],
    "XlaVariadicReduce": [p(_variadic("XlaVariadicReduce"), x(2, 3), x(2, 3), dtypes=_SOME, grad=False)],
    "XlaVariadicReduceV2": [p(_variadic("XlaVariadicReduceV2"), x(2, 3), x(2, 3), dtypes=_SOME, grad=False)],
    "XlaReduceWindow": [p(_window, x(2, 4), dtypes=_SOME, grad=False)],
    "XlaSelectAndScatter": [p(_select_and_scatter, x(2, 4, make=lambda g: g.permutation(8).reshape(2, 4)), x(2, 2), dtypes=_SOME, grad=False)],
    "XlaVariadicSort": [p(_sort, x(2, 5), x(2, 5), dtypes=_SOME, grad=False)],
    "XlaScatter": [p(_scatter, x(4, 3), x(2, 3), dtypes=_SOME, grad=False)],
    "XlaWhile": [p(_while, x(2, 3), dtypes=_SOME, grad=False)],
    "XlaBroadcastHelper": [r(lhs=x(2, 3), rhs=x(3), broadcast_dims=[1])],
    "XlaConcatND": [r(inputs=[x(2, 3), x(2, 3)], num_concats=[1, 2], paddings=[0, 1])],
    "XlaSplitND": [r(input=x(4, 3), N=4, num_splits=[2, 2], paddings=[0, 1])],
    "XlaConv": [r(**_CONV_ARGS, _dtypes=("float32", "float64", "bfloat16"))],
    "XlaConvV2": [r(**_CONV_ARGS, preferred_element_type="float32", _dtypes=("float32", "bfloat16"))],
    "XlaDot": [r(**_DOT_ARGS)],
    "XlaDotV2": [r(**_DOT_ARGS, preferred_element_type="float32", _dtypes=("float32", "bfloat16"))],
    "XlaDynamicSlice": [r(input=x(4, 5), start_indices=ids(2, high=5), size_indices=[2, 3]), r(input=x(4, 5), start_indices=np.array([-2, 3]), size_indices=[2, 3], _dtypes=("float32",))],
    "XlaDynamicUpdateSlice": [r(input=x(4, 5), update=x(2, 3), indices=ids(2, high=5)), r(input=x(4, 5), update=x(2, 3), indices=np.array([-2, 3]), _dtypes=("float32",))],
    "XlaEinsum": [r(a=x(2, 3), b=x(3, 4), equation="ij,jk->ik")],
    "XlaGather": [r(operand=x(4, 3), start_indices=ids(2, 1, high=4), slice_sizes=[1, 3], dimension_numbers=_GATHER, indices_are_sorted=False)],
    "XlaKeyValueSort": [r(keys=x(6, make=lambda g: g.permutation(6)), values=x(6, dtype="float32"))],
    "XlaOptimizationBarrier": [p(lambda a, b: raw_op("XlaOptimizationBarrier")(input=[a, b]), x(2, 3), x(4), dtypes=_SOME, grad=False)],
    "XlaPad": [r(input=x(2, 3), padding_value=x(), padding_low=[1, -1], padding_high=[0, 2], padding_interior=[1, 0])],
    "XlaReducePrecision": [r(operand=x(2, 3), exponent_bits=5, mantissa_bits=3)],
    "XlaRngBitGenerator": [r(algorithm=a, initial_state=np.array(s), shape=[2, 3], dtype="uint32", _dtypes=("uint64",)) for a, s in ((1, [1, 2]), (2, [1, 2]))],
    "XlaSelfAdjointEig": [r(a=spd(3), lower=True, max_iter=50, epsilon=1e-6, _dtypes=("float32", "float64"), _post=lambda w, v: [w, tf.matmul(v * w[..., None, :], v, adjoint_b=True)], _tolerance=10)],
    "XlaSvd": [r(a=x(4, 3), max_iter=50, epsilon=1e-6, precision_config="", _dtypes=("float32", "float64"), _post=_reconstruct, _tolerance=10)],
    "XlaSharding": [r(input=x(2, 3))],
    "XlaSort": [r(input=x(2, 6))],
    "XlaDequantize": [r(input=x(2, 3, dtype="uint32", low=0, high=2**31), min_range=-1.0, max_range=1.0, mode="MIN_COMBINED", transpose_output=False)],
}  # fmt: skip
