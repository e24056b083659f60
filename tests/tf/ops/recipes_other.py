"""Inputs of ops on variables, lists and functions, and of the `Xla…` ops."""

# One row for each op, however long.
# ruff: noqa: E501

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tests.tf.ops.cases import FLOATS, Recipe, Variables, ids, op_def, p, r, x

R = tf.raw_ops


def _apply(op: str, **attrs: Any) -> list[Recipe]:
    """An optimizer's update: all slots are read afterwards."""
    definition = op_def(op)
    slots = [a.name for a in definition.input_arg if a.type == tf.resource.as_datatype_enum]
    scalars = {"beta1": 0.9, "beta2": 0.99, "beta1_power": 0.81, "beta2_power": 0.98, "epsilon": 1e-3,
               "lr_power": -0.5, "rho": 0.9, "momentum": 0.8, "l1": 0.1, "l2": 0.2, "global_step": 3,
               "logbase": 1.0, "l2_shrinkage": 0.1, "alpha": 0.3, "lr": 0.1, "sign_decay": 0.7, "beta": 0.9}  # fmt: skip

    def program(variables: list[Any], grad: Any) -> Any:
        given: dict[str, Any] = {n: v.handle for n, v in zip(slots, variables, strict=True)}
        for arg in definition.input_arg:
            if arg.name in ("grad", "delta"):
                given[arg.name] = grad
            elif arg.name not in slots:
                dtype = tf.dtypes.as_dtype(arg.type) if arg.type else grad.dtype
                given[arg.name] = tf.constant(scalars[arg.name], dtype)
        getattr(R, op)(**given, **attrs)
        return [v.read_value() for v in variables]

    g = np.random.default_rng(3)
    return [
        p(Variables(program, *(g.uniform(0.5, 1.5, (2, 3)) for _ in slots)), x(2, 3), grad=False)
    ]


def _scatter(op: str, name: str = "resource") -> list[Recipe]:
    nd = "Nd" in op
    indices = [[2], [0]] if nd else [2, 0]

    def program(variables: list[Any], updates: Any) -> Any:
        (v,) = variables
        getattr(R, op)(**{"ref" if nd else name: v.handle}, indices=indices, updates=updates)
        return v.read_value()

    dtypes = (*FLOATS, "int32")
    return [p(Variables(program, np.arange(1, 13).reshape(4, 3)), x(2, 3, low=1, high=4), dtypes=dtypes, grad=False)]  # fmt: skip


def _assign(op: str) -> list[Recipe]:
    def program(variables: list[Any], value: Any) -> Any:
        (v,) = variables
        getattr(R, op)(resource=v.handle, value=value)
        return v.read_value()

    return [p(Variables(program, np.ones((2, 3))), x(2, 3), dtypes=(*FLOATS, "int32"), grad=False)]


def _on(program: Callable[..., Any], *inputs: Any, **rest: Any) -> list[Recipe]:
    return [p(Variables(program, np.arange(6.0).reshape(2, 3)), *inputs, **rest)]


def _strided_assign(variables: list[Any], value: Any) -> Any:
    (v,) = variables
    R.ResourceStridedSliceAssign(
        ref=v.handle, begin=[0, 1], end=[2, 3], strides=[1, 1], value=value
    )
    return v.read_value()


def _list_of(t: Any) -> Any:
    return R.TensorListFromTensor(tensor=t, element_shape=tf.constant([3]))


def _list_get(t: Any) -> Any:
    return R.TensorListGetItem(
        input_handle=_list_of(t), index=1, element_shape=[3], element_dtype=t.dtype
    )


def _stack(handle: Any, t: Any, n: int = -1) -> Any:
    return R.TensorListStack(
        input_handle=handle, element_shape=[3], element_dtype=t.dtype, num_elements=n
    )


def _list_push(t: Any) -> Any:
    empty = R.EmptyTensorList(
        element_shape=tf.constant([3]), max_num_elements=4, element_dtype=t.dtype
    )
    return _stack(R.TensorListPushBack(input_handle=R.TensorListPushBack(input_handle=empty, tensor=t[0]), tensor=t[1]), t, 2)  # fmt: skip


def _list_pop(t: Any) -> Any:
    rest, last = R.TensorListPopBack(
        input_handle=_list_of(t), element_shape=[3], element_dtype=t.dtype
    )
    return [_stack(rest, t, 1), last]


def _list_set(t: Any) -> Any:
    made = R.TensorListReserve(
        element_shape=tf.constant([3]), num_elements=2, element_dtype=t.dtype
    )
    made = R.TensorListSetItem(input_handle=made, index=1, item=t[0])
    return _stack(R.TensorListSetItem(input_handle=made, index=0, item=t[1]), t, 2)


def _list_split(t: Any) -> Any:
    made = R.TensorListSplit(
        tensor=t, element_shape=tf.constant([-1, 3]), lengths=tf.constant([1, 1], tf.int64)
    )
    return R.TensorListGetItem(
        input_handle=made, index=1, element_shape=[1, 3], element_dtype=t.dtype
    )


def _list_concat(t: Any) -> Any:
    made = R.TensorListFromTensor(tensor=t[:, :, None], element_shape=tf.constant([3, 1]))
    return R.TensorListConcatV2(input_handle=made, element_shape=tf.constant([3, 1]), leading_dims=tf.constant([], tf.int64), element_dtype=t.dtype)  # fmt: skip


def _array(t: Any, n: int = 2) -> tuple[Any, Any]:
    handle, flow = R.TensorArrayV3(size=n, dtype=t.dtype, element_shape=[3], clear_after_read=False)
    return handle, R.TensorArrayScatterV3(
        handle=handle, indices=list(range(n)), value=t, flow_in=flow
    )


def _array_write(t: Any) -> Any:
    handle, flow = R.TensorArrayV3(size=2, dtype=t.dtype, element_shape=[3], clear_after_read=False)
    flow = R.TensorArrayWriteV3(handle=handle, index=1, value=t[0], flow_in=flow)
    flow = R.TensorArrayWriteV3(handle=handle, index=0, value=t[1], flow_in=flow)
    return R.TensorArrayGatherV3(
        handle=handle, indices=[0, 1], flow_in=flow, dtype=t.dtype, element_shape=[3]
    )


def _array_read(t: Any) -> Any:
    handle, flow = _array(t)
    return R.TensorArrayReadV3(handle=handle, index=1, flow_in=flow, dtype=t.dtype)


def _array_concat(t: Any) -> Any:
    handle, flow = _array(t)
    return R.TensorArrayConcatV3(handle=handle, flow_in=flow, dtype=t.dtype)


def _array_split(t: Any) -> Any:
    handle, flow = R.TensorArrayV3(size=2, dtype=t.dtype)
    flow = R.TensorArraySplitV3(
        handle=handle, value=t, lengths=tf.constant([1, 1], tf.int64), flow_in=flow
    )
    return R.TensorArrayReadV3(handle=handle, index=1, flow_in=flow, dtype=t.dtype)


def _array_close(t: Any) -> Any:
    handle, flow = _array(t)
    y = R.TensorArrayReadV3(handle=handle, index=1, flow_in=flow, dtype=t.dtype)
    with tf.control_dependencies([y]):
        R.TensorArrayCloseV3(handle=handle)
    return y


def _array_grad(t: Any) -> Any:
    handle, flow = _array(t)
    handle, flow = R.TensorArrayGradV3(handle=handle, flow_in=flow, source="gradients")
    for i, value in ((0, t[0] * 2), (1, t[1]), (0, t[1] * 3)):  # which adds up what is written
        flow = R.TensorArrayWriteV3(handle=handle, index=i, value=value, flow_in=flow)
    return R.TensorArrayGatherV3(handle=handle, indices=[0, 1], flow_in=flow, dtype=t.dtype, element_shape=[3])  # fmt: skip


def _stack_v2(t: Any) -> Any:
    handle = R.StackV2(max_size=2, elem_type=t.dtype)
    with tf.control_dependencies([R.StackPushV2(handle=handle, elem=t)]):
        y = R.StackPopV2(handle=handle, elem_type=t.dtype)
    with tf.control_dependencies([y]):
        R.StackCloseV2(handle=handle)
    return y * 2


def _if(op: str) -> Callable[..., Any]:
    def program(c: Any, t: Any) -> Any:
        shape = tf.TensorSpec(t.shape, t.dtype)
        then = tf.function(lambda a: a * 2, autograph=False).get_concrete_function(shape)
        other = tf.function(lambda a: a - 1, autograph=False).get_concrete_function(shape)
        return getattr(R, op)(
            cond=c, input=[t], Tout=[t.dtype], then_branch=then, else_branch=other
        )

    return program


def _case(op: str) -> Callable[..., Any]:
    def program(i: Any, t: Any) -> Any:
        shape = tf.TensorSpec(t.shape, t.dtype)
        fns = [lambda a: a * 2, lambda a: a - 1, lambda a: -a]
        made = [tf.function(f, autograph=False).get_concrete_function(shape) for f in fns]
        return getattr(R, op)(branch_index=i, input=[t], Tout=[t.dtype], branches=made)

    return program


def _while(op: str) -> Callable[..., Any]:
    def program(t: Any) -> Any:
        specs = [tf.TensorSpec([], tf.int32), tf.TensorSpec(t.shape, t.dtype)]
        cond = tf.function(lambda i, a: i < 3, autograph=False).get_concrete_function(*specs)
        body = tf.function(lambda i, a: (i + 1, a * 2), autograph=False).get_concrete_function(
            *specs
        )
        return getattr(R, op)(input=[tf.constant(0), t], cond=cond, body=body)[1]

    return program


def _call(op: str) -> Callable[..., Any]:
    def program(t: Any) -> Any:
        spec = tf.TensorSpec(t.shape, t.dtype)
        f = tf.function(lambda a: a * 2 + 1, autograph=False).get_concrete_function(spec)
        return getattr(R, op)(args=[t], Tout=[t.dtype], f=f)

    return program


def _symbolic_gradient(t: Any, cotangent: Any) -> Any:
    specs = [tf.TensorSpec(t.shape, t.dtype)] * 2
    f = tf.function(lambda a, b: tf.sin(a) * b, autograph=False).get_concrete_function(*specs)
    return R.SymbolicGradient(input=[t, t + 1, cotangent], Tout=[t.dtype] * 2, f=f)


def _assign_concat(variables: list[Any], *parts: Any) -> Any:
    (v,) = variables
    R.AssignVariableXlaConcatND(
        resource=v.handle, inputs=parts, num_concats=[2, 2], paddings=[0, 1]
    )
    return v.read_value()


_VARIABLES: dict[str, list[Recipe]] = {
    **{op: _apply(op) for op in """
        ResourceApplyAdaMax ResourceApplyAdadelta ResourceApplyAdagrad ResourceApplyAdagradDA
        ResourceApplyAdagradV2 ResourceApplyAddSign ResourceApplyCenteredRMSProp ResourceApplyFtrl
        ResourceApplyFtrlV2 ResourceApplyGradientDescent ResourceApplyPowerSign
        ResourceApplyProximalAdagrad ResourceApplyProximalGradientDescent ResourceApplyRMSProp
    """.split()},
    **{op: [*_apply(op), *_apply(op, use_nesterov=True)]
       for op in ("ResourceApplyAdam", "ResourceApplyKerasMomentum", "ResourceApplyMomentum")},
    **{f"ResourceScatter{k}": _scatter(f"ResourceScatter{k}")
       for k in "Add Div Max Min Mul NdAdd NdSub NdUpdate Sub Update".split()},
    **{op: _assign(op) for op in ("AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp")},
    "ResourceStridedSliceAssign": _on(_strided_assign, x(2, 2), grad=False),
    "ResourceGather": _on(lambda v, i: R.ResourceGather(resource=v[0].handle, indices=i, dtype=v[0].dtype), ids(4, high=2), grad=False),
    "ReadVariableOp": _on(lambda v, t: R.ReadVariableOp(resource=v[0].handle, dtype=v[0].dtype) + t, x(2, 3)),
    "VariableShape": _on(lambda v, t: R.VariableShape(input=v[0].handle), x(2), grad=False),
    "ReadVariableXlaSplitND": _on(lambda v, t: R.ReadVariableXlaSplitND(resource=v[0].handle, T=v[0].dtype, N=4, num_splits=[2, 2], paddings=[0, 1]), x(2), grad=False),
    "AssignVariableXlaConcatND": _on(_assign_concat, *[x(1, 2)] * 4, grad=False),
    "VarIsInitializedOp": _on(lambda v, t: R.VarIsInitializedOp(resource=v[0].handle), x(2), grad=False),
}  # fmt: skip

_T = x(2, 3)
_LISTS: dict[str, list[Recipe]] = {
    "TensorListFromTensor": [p(lambda t: _stack(_list_of(t), t), _T)],
    "TensorListGetItem": [p(_list_get, _T)],
    "TensorListStack": [p(lambda t: _stack(_list_of(t), t, 2), _T)],
    "EmptyTensorList": [p(_list_push, _T)],
    "TensorListPushBack": [p(_list_push, _T)],
    "TensorListPopBack": [p(_list_pop, _T)],
    "TensorListReserve": [p(_list_set, _T)],
    "TensorListSetItem": [p(_list_set, _T)],
    "TensorListLength": [p(lambda t: R.TensorListLength(input_handle=_list_of(t)), _T, grad=False)],
    "TensorListElementShape": [p(lambda t: R.TensorListElementShape(input_handle=_list_of(t), shape_type=tf.int32), _T, grad=False)],
    "TensorListGather": [p(lambda t: R.TensorListGather(input_handle=_list_of(t), indices=[1, 0], element_shape=[3], element_dtype=t.dtype), _T)],
    "TensorListSplit": [p(_list_split, _T)],
    "TensorListConcatV2": [p(_list_concat, _T)],
    "TensorArrayV3": [p(_array_write, _T)],
    "TensorArrayWriteV3": [p(_array_write, _T)],
    "TensorArrayGatherV3": [p(_array_write, _T)],
    "TensorArrayScatterV3": [p(_array_read, _T)],
    "TensorArrayReadV3": [p(_array_read, _T)],
    "TensorArraySizeV3": [p(lambda t: R.TensorArraySizeV3(handle=_array(t)[0], flow_in=_array(t)[1]), _T, grad=False)],
    "TensorArrayConcatV3": [p(_array_concat, _T, grad=False)],
    "TensorArraySplitV3": [p(_array_split, _T)],
    "TensorArrayGradV3": [p(_array_grad, _T, grad=False)],
    "TensorArrayCloseV3": [p(_array_close, _T, grad=False)],
    "StackV2": [p(_stack_v2, _T, grad=False)],
    "StackPushV2": [p(_stack_v2, _T, grad=False)],
    "StackPopV2": [p(_stack_v2, _T, grad=False)],
    "StackCloseV2": [p(_stack_v2, _T, grad=False)],
}  # fmt: skip

_FUNCTIONS: dict[str, list[Recipe]] = {
    **{op: [p(_if(op), x(dtype="bool"), _T)] for op in ("If", "StatelessIf")},
    **{
        op: [p(_case(op), x(dtype="int32", low=-1, high=4), _T)] for op in ("Case", "StatelessCase")
    },
    **{op: [p(_while(op), _T)] for op in ("While", "StatelessWhile")},
    **{op: [p(_call(op), _T)] for op in ("PartitionedCall", "StatefulPartitionedCall")},
    "IdentityN": [p(lambda a, b: R.IdentityN(input=[a, b]), _T, x(4))],
    "Const": [p(lambda a: a + tf.constant([1, 2, 3], a.dtype), _T)],
    "SymbolicGradient": [p(_symbolic_gradient, _T, _T, dtypes=("float32", "float64"), grad=False)],
    "ControlTrigger": [p(lambda a: (R.ControlTrigger(), a * 2)[1], _T)],
    "NoOp": [p(lambda a: (R.NoOp(), a * 2)[1], _T)],
    "Assert": [p(lambda a: (R.Assert(condition=tf.reduce_all(a < 9), data=[a]), a * 2)[1], _T)],
    "CheckNumerics": [p(lambda a: R.CheckNumerics(tensor=a, message="bad"), _T)],
    "FakeParam": [p(lambda a: tf.zeros_like(R.FakeParam(dtype=a.dtype, shape=[2, 3])) + a, _T)],
}

OTHER: dict[str, list[Recipe]] = {
    **_VARIABLES,
    **_LISTS,
    **_FUNCTIONS,
    "DeviceIndex": [r(device_names=["CPU", "GPU"])],
}
