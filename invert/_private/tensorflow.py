"""Private parts of TensorFlow and Keras."""

from __future__ import annotations

import contextlib
import gc
import re
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

import jax.dlpack
import numpy as np

# An object of TensorFlow or Keras, which are imported only where they are needed.
TfObject: TypeAlias = Any


def imported(name: str) -> TfObject | None:
    """A module if it is imported; `None` while another thread still imports it.

    The module is listed already then, and lacks names, but nobody holds an object of it.
    """
    module = sys.modules.get(name)
    return None if getattr(getattr(module, "__spec__", None), "_initializing", False) else module


@contextlib.contextmanager
def kept_name_scopes() -> Iterator[None]:
    """Leave Keras's name scopes as they are.

    Where TensorFlow refuses a name, Keras does not leave the scope around it, and all variables
    that it makes afterwards have that in their paths.
    """
    from keras.src.backend.common import global_state

    before = list(global_state.get_global_attribute("name_scope_stack") or ())
    try:
        yield
    finally:
        if (scopes := global_state.get_global_attribute("name_scope_stack")) is not None:
            scopes[:] = before


def tf_variable_dtype(handle: object) -> int | None:
    """The `DataType` of the variable behind an eager handle; `None` for other handles."""
    data = getattr(handle, "_handle_data", None)
    if data is None or not data.is_set or len(data.shape_and_type) != 1:
        return None
    return data.shape_and_type[0].dtype


def tf_variable_number(variable: object) -> int | None:
    """The serial number of a variable in this process, if known."""
    match = re.search(r"_(\d+)$", str(getattr(variable, "_unique_id", "")))
    return int(match[1]) if match else None


def tf_concrete_functions(fn: TfObject) -> list[TfObject]:
    """The concrete functions that a `tf.function` has so far, without tracing it.

    If a function created variables in its first call, the trace of that call contains their
    conditional initialization. TensorFlow itself never returns that trace, nor does this.
    """
    if hasattr(fn, "concrete_functions"):  # restored from a SavedModel
        return list(fn.concrete_functions)
    first = fn._concrete_variable_creation_fn if fn._created_variables else None
    return [c for c in fn._list_all_concrete_functions() if c is not first]


def keras_variables(variables: Iterable[TfObject]) -> tuple[dict[int, str], dict[int, bool]]:
    """Keras's paths of TensorFlow variables, and whether it trains them, by `id`.

    Both are on Keras objects that hold the variables. Variables do not refer to their holders, and
    a traced function does not refer to its model. So all objects of the process are searched, once
    for each variable of Keras 3.
    """
    wanted = {id(v): v for v in variables}
    new, old = map(imported, ("keras", "tf_keras"))
    layers = _instances(old.layers.Layer) if wanted and old is not None else []
    if new is not None and any(_holder(v) is None for v in wanted.values()):
        _holders.update((id(h._value), h) for h in _instances(new.Variable))
    names: dict[int, str] = {}
    flags: dict[int, bool] = {}
    for layer in layers:
        flags |= {id(v): False for v in ([] if layer.trainable else layer.weights)}
    for key, variable in wanted.items():
        if (held := _holder(variable)) is not None:
            names[key], flags[key] = str(held.path), bool(held.trainable)
    return names, {k: flag for k, flag in flags.items() if k in wanted and wanted[k].trainable}


# Keras variables by the `id` of the TensorFlow variable that each holds.
_holders: weakref.WeakValueDictionary[int, TfObject] = weakref.WeakValueDictionary()


def _holder(variable: object) -> TfObject | None:
    """The Keras variable that holds a TensorFlow variable, if one was found."""
    held = _holders.get(id(variable))
    return held if held is not None and held._value is variable else None


def _instances(cls: type) -> list[TfObject]:
    """All objects of a class and its subclasses, found by their references to it."""
    kinds = _subclasses(cls)
    return [x for x in gc.get_referrers(*kinds) if type(x) in kinds]


def _subclasses(cls: type) -> set[type]:
    """A class and its subclasses."""
    return {cls}.union(*map(_subclasses, cls.__subclasses__()))


def tf_load_errors() -> tuple[type[Exception], ...]:
    """Exceptions of TensorFlow's loader besides built-in ones and those of ops."""
    from google.protobuf.message import DecodeError
    from tensorflow.python.saved_model import nested_structure_coder

    return (DecodeError, nested_structure_coder.NotEncodableError)


def tf_restored_class(kind: str) -> type:
    """The class of an object that TensorFlow's loader restores, by its kind of `SavedObject`."""
    from tensorflow.python.eager import function
    from tensorflow.python.ops import resource_variable_ops
    from tensorflow.python.saved_model import function_deserialization
    from tensorflow.python.trackable import autotrackable, resource
    from tensorflow.python.trackable.asset import Asset

    return {
        "asset": Asset,
        "bare_concrete_function": function.ConcreteFunction,
        "function": function_deserialization.RestoredFunction,
        "resource": resource.RestoredResource,
        "variable": resource_variable_ops.UninitializedVariable,
    }.get(kind, autotrackable.AutoTrackable)


def tf_read(variable: TfObject) -> TfObject:
    """Read a variable; the op alone takes a quarter of the time of `read_value`."""
    from tensorflow.python.ops import gen_resource_variable_ops, resource_variable_ops

    if not isinstance(variable, resource_variable_ops.BaseResourceVariable):
        return variable.read_value()
    return gen_resource_variable_ops.read_variable_op(variable.handle, variable.dtype)


def tf_values(tensor: TfObject) -> np.ndarray:
    """The values of an eager tensor, read-only, in its memory where NumPy can view it.

    Texts are objects.
    """
    if tensor.dtype.name == "string":
        return np.asarray(tensor.numpy(), object)
    with contextlib.suppress(TypeError, ValueError):  # types without a Python buffer format
        found = np.asarray(memoryview(tensor))
        # The type of a C type such as `long long` may differ from the sized type.
        return found.view(np.dtype(found.dtype.str))
    if tensor.dtype.name == "bfloat16":
        return np.asarray(jax.dlpack.from_dlpack(tensor))
    return np.asarray(tensor.numpy())


def tf_gradient_function(op: TfObject) -> Callable[..., TfObject] | None:
    """The gradient function that an op names in `_gradient_op_type`, if registered."""
    from tensorflow.python.framework import ops

    try:
        return ops.gradient_registry.lookup(op.get_attr("_gradient_op_type"))
    except LookupError:
        return None


def tf_scratch_graph(name: str) -> TfObject:
    """A new function graph, which captures values of other graphs as inputs."""
    from tensorflow.python.framework import func_graph

    return func_graph.FuncGraph(name)


def tf_graph_bytes(graph: TfObject, *, add_shapes: bool = False) -> bytes:
    """The `GraphDef` of a graph, serialized.

    TensorFlow makes its message from these bytes, which would hold every constant again.
    """
    if add_shapes:
        return graph.as_graph_def(add_shapes=True).SerializeToString()
    from tensorflow.python.client import pywrap_tf_session
    from tensorflow.python.framework import c_api_util

    with c_api_util.tf_buffer() as buffer, graph._c_graph.get() as c_graph:
        pywrap_tf_session.TF_GraphToGraphDef(c_graph, buffer)
        data: TfObject = pywrap_tf_session.TF_GetBuffer(buffer)
        return data


def tf_function_graph(graph: TfObject, function: str) -> TfObject | None:
    """The graph of a function in another's library, if it is there."""
    return getattr(graph._functions.get(function), "graph", None)
