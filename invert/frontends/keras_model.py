"""Keras models in this process, and errors of tracing models and functions."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeGuard

import equinox as eqx
import jax
import numpy as np

from invert._errors import SignatureError
from invert._private.tensorflow import TfObject, imported
from invert.tf.ops.node import import_tensorflow

# Names that Keras generates for unnamed inputs.
_GENERATED = re.compile(r"(input|input_layer|keras_tensor)(_\d+)?")


def is_layer(x: object) -> bool:
    """Return whether `x` is a layer or model of Keras 2 or 3; imports neither."""
    modules = map(imported, ("keras", "tf_keras"))
    return any(m is not None and isinstance(x, m.layers.Layer) for m in modules)


def own_class(layer: object) -> str:
    """The class name of a layer or model from outside Keras."""
    cls = type(layer)
    library = cls.__module__.partition(".")[0] in ("keras", "tf_keras", "tensorflow")
    return "" if library else cls.__name__


def input_specs(model: TfObject) -> TfObject:
    """The inputs of a model as a pytree of `tf.TensorSpec`.

    `None` if the model does not know them, e.g. a subclass of `Model`.
    """
    inputs = _inputs_of(model)
    if inputs is None:
        return None
    tf = import_tensorflow()

    def spec(tensor: TfObject) -> TfObject:
        name = tensor.name
        generated = name is None or _GENERATED.fullmatch(name)
        return tf.TensorSpec(tensor.shape, tensor.dtype, None if generated else name)

    # Keras accepts lists, tuples and dictionaries.
    return jax.tree_util.tree_map(spec, inputs)


def with_names(
    model: object, in_tree: jax.tree_util.PyTreeDef, specs: Sequence[TfObject]
) -> Sequence[TfObject]:
    """The argument types of a call, under the model's input names.

    **Arguments:**

    - `in_tree`: the structure of the arguments and keyword arguments.
    - `specs`: their leaves.
    """
    tf = import_tensorflow()
    known, tree = jax.tree_util.tree_flatten(((input_specs(model),), {}))
    if tree != in_tree:
        return specs
    return [
        tf.TensorSpec(spec.shape, spec.dtype, spec.name or own.name)
        if isinstance(spec, tf.TensorSpec)
        else spec
        for spec, own in zip(specs, known, strict=True)
    ]


def with_open_batch(
    model: object, args: Sequence[object], kwargs: Mapping[str, object]
) -> tuple[tuple[object, ...], dict[str, object]] | None:
    """The arguments of a call as types that leave the batch open.

    Keras's first axis is the batch. Types that the caller states are kept.

    **Returns:** `None` without such an axis. Then there are only types, arrays of unequal first
    sizes, or inputs that the model declares for one batch.
    """
    leaves, tree = jax.tree_util.tree_flatten((tuple(args), dict(kwargs)))
    sizes = {x.shape[0] for x in leaves if _is_array(x) and x.shape}
    declared = [s.shape for s in jax.tree_util.tree_leaves(input_specs(model))]
    if len(sizes) != 1 or any(s.rank and s[0] is not None for s in declared):
        return None
    tf = import_tensorflow()
    return jax.tree_util.tree_unflatten(
        tree,
        [
            tf.TensorSpec((None, *x.shape[1:]), tf.as_dtype(x.dtype))
            if _is_array(x) and x.shape
            else x
            for x in leaves
        ],
    )


def _is_array(x: object) -> TypeGuard[np.ndarray]:
    return isinstance(x, np.ndarray | jax.Array | import_tensorflow().Tensor)


def _inputs_of(model: object) -> TfObject:
    for name in ("input", "inputs"):
        # A Sequential read from a file has no `input`, nor does a subclass of Model.
        try:
            inputs = getattr(model, name)
        except (AttributeError, ValueError):
            continue
        # The inputs of a Sequential without a shape are an empty list.
        if jax.tree_util.tree_leaves(inputs):
            alone = isinstance(inputs, list) and len(inputs) == 1
            return inputs[0] if alone else inputs
    return None


def attributes(model: object) -> dict[str, str]:
    """The attributes that hold a layer's inner layers, by Keras's names for them.

    `self.query = Dense(8)` is the layer `dense_3`. Names that the author chose, and layers held
    twice, are left out.
    """
    held: dict[str, set[str]] = {}
    seen: set[int] = set()
    pending = [model]
    while pending:
        layer = pending.pop()
        if id(layer) in seen:
            continue
        seen.add(id(layer))
        for attribute, value in getattr(layer, "__dict__", {}).items():
            several = isinstance(value, (list, tuple))
            layers = [x for x in (value if several else [value]) if is_layer(x)]
            pending += layers
            if attribute.startswith("_"):
                continue
            for i, x in enumerate(layers):
                if _counted(x):
                    name = f"{attribute}_{i}" if several else attribute
                    held.setdefault(str(x.name), set()).add(name)
    return {name: next(iter(found)) for name, found in held.items() if len(found) == 1}


def _counted(layer: TfObject) -> bool:
    """Return whether a layer has Keras's default name: its class, perhaps with a number."""
    name = re.sub(r"_\d+$", "", str(layer.name))
    return name.replace("_", "") == type(layer).__name__.replace("_", "").lower()


@contextlib.contextmanager
def tracing(fn: object, name: str) -> Iterator[None]:
    """Explain typical errors while `fn` is traced.

    **Raises:** `SignatureError`.
    """
    tf = import_tensorflow()
    try:
        yield
    except tf.errors.OperatorNotAllowedInGraphError as error:
        raise SignatureError(
            f"{name} uses a tensor where Python needs a value: {_short(error)}",
            remedy=(
                "Pass the value itself (a bool, a number), which is then fixed; or decorate the "
                "function with tf.function, which turns `if` into tf.cond."
            ),
        ) from error
    except NotImplementedError as error:
        if "to a numpy array" not in str(error):
            raise
        raise SignatureError(
            f"{name} uses NumPy on a tensor: {_short(error)}",
            remedy="Use TensorFlow's functions. invert.rewrite takes functions of JAX.",
        ) from error
    except (TypeError, ValueError) as error:
        # JAX has no error class for this; a layer of Equinox may call TensorFlow's operators.
        of_jax = any(t in str(error) for t in ("abstract array", "as a JAX value"))
        if isinstance(fn, eqx.Module) or ("SymbolicTensor" in str(error) and of_jax):
            raise SignatureError(
                f"{name} is a JAX function: it calls JAX on a TensorFlow tensor. There is nothing "
                "to convert",
                remedy=(
                    "invert.rewrite applies patterns to it; jax2tf.convert makes it a TensorFlow "
                    "function, which invert.roundtrip takes."
                ),
            ) from error
        if not is_layer(fn) and not str(error).startswith("Binding inputs to tf.function failed"):
            raise
        raise SignatureError(
            f"{name} cannot be called like this: {_short(error)}",
            remedy="Pass arguments that it takes in TensorFlow.",
        ) from error


def _short(error: Exception) -> str:
    """The message of a Keras error, without colors and the list of arguments."""
    text = re.sub(r"\x1b\[\d+m", "", str(error))
    text = re.split("Arguments received by|You can attempt|Received args", text)[0]
    return " ".join(text.split()).rstrip(".")
