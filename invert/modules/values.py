"""The arrays of a module, by their names in the container."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TypeVar

import equinox as eqx
import jax
import numpy as np

from invert._errors import SignatureError
from invert._private.tensorflow import TfObject
from invert.emission import Origin, is_index, put_values
from invert.ir.types import Value
from invert.modules.methods import Methods
from invert.modules.module import Module
from invert.modules.params import nest

_M = TypeVar("_M", bound=eqx.Module)


def values(module: eqx.Module, state: eqx.nn.State | None = None) -> dict[str, Value]:
    """The arrays of a module, by the names of the container's variables.

    **Arguments:**

    - `module`: a recovered module or its `model`, trained or not, with its layers in any style.
    - `state`: the state of the module; its values replace the initial ones.

    **Returns:** arrays in the shapes of the container, without constants of the program.

    **Raises:** `SignatureError` if it is not a module that `invert` has recovered or written in
    this process.

    ??? example

        ```python
        import equinox as eqx
        import keras

        import invert

        model = keras.models.load_model("normalized.keras")
        training = invert.convert(model, training=True)
        state = eqx.nn.State(training)
        found = invert.values(training, state)
        print({name: array.shape for name, array in found.items()})
        ```
    """
    if isinstance(module, (Module, Methods)):
        return {name: _value(x, state) for name, x in module.named_params().items()}
    origin = _origin(module)
    leaves = jax.tree_util.tree_leaves(module, is_leaf=is_index)
    if len(leaves) != len(origin.names):
        raise SignatureError(
            f"{type(module).__name__} has {len(leaves)} arrays, but was written with "
            f"{len(origin.names)}: one of its layers was replaced by one of a different kind",
            remedy="Put a layer of the same class there.",
        )
    found = origin.values([_value(x, state) for x in leaves])
    return {name: found[name] for name in origin.shapes}


def with_values(module: _M, values: Mapping[str, Value], *, strict: bool = True) -> _M:
    """A module with other arrays, such as an inference model with trained weights.

    **Arguments:**

    - `module`: a recovered module or its `model`.
    - `values`: arrays by their names in the container, as from `invert.values`. Names that the
        module does not have are ignored.
    - `strict`: whether all of its variables must be given; otherwise the others are unchanged.

    **Returns:** a module of the same kind. If it has a state, create that again:
    `eqx.nn.State(module)`.

    **Raises:** `SignatureError` that lists everything missing or of another shape.

    ??? example

        ```python
        import equinox as eqx
        import keras

        import invert

        model = keras.models.load_model("normalized.keras")
        training = invert.convert(model, training=True)
        state = eqx.nn.State(training)  # ... train ...
        inference = invert.convert(model)
        inference = invert.with_values(inference, invert.values(training, state))
        ```
    """
    if isinstance(module, (Module, Methods)):
        old = module.named_params()
        shapes = {name: np.shape(_value(x, None)) for name, x in old.items()}
        new = _fitting(values, shapes, strict)
        new = {n: eqx.nn.StateIndex(x) if is_index(old.get(n)) else x for n, x in new.items()}
        leaves = [new.get(name, x) for name, x in old.items()]
        return eqx.tree_at(lambda m: m.params, module, nest(list(old), leaves))
    origin = _origin(module)
    new = _fitting(values, origin.shapes, strict)
    return put_values(module, origin.names, origin.layouts, new)


def assign(target: TfObject, values: Mapping[str, Value]) -> tuple[str, ...]:
    """Assign arrays to the variables of a Keras model or another TensorFlow object.

    **Arguments:**

    - `target`: an object with `variables`, matched by `path` or name. The leading name of the model
        may differ or be missing, as in a `.keras` file.
    - `values`: arrays by their names in the container, as from `invert.values`.

    **Returns:** the names of the variables without an array in `values`, which are unchanged.

    **Raises:** `SignatureError` that lists all arrays without a variable or of another shape;
    nothing is assigned then.

    ??? example

        ```python
        import keras

        import invert

        model = keras.models.load_model("model.keras")
        net = invert.convert(model).model  # ... train ...
        invert.assign(model, invert.values(net))
        ```
    """
    variables = {_name(v): v for v in target.variables}
    by_rest: dict[str, list[str]] = {}
    for name in variables:
        by_rest.setdefault(name.partition("/")[2], []).append(name)
    wrong, pairs = [], {}
    for name, array in values.items():
        found = [name] if name in variables else by_rest.get(name, [])
        found = found or by_rest.get(name.partition("/")[2], [])
        if len(found) != 1:
            wrong.append(f"there is {'no variable' if not found else 'more than one'} for {name!r}")
        elif found[0] in pairs:
            wrong.append(f"{name!r} and another array are both for {found[0]!r}")
        elif tuple(variables[found[0]].shape) != np.shape(array):
            shape = list(variables[found[0]].shape)
            wrong.append(f"{name!r} has the shape {list(np.shape(array))}, expected {shape}")
        else:
            pairs[found[0]] = array
    if wrong:
        raise SignatureError(
            f"{type(target).__name__}: {'; '.join(wrong)}",
            remedy="Build the target first; it needs the same variables as the container.",
        )
    for name, array in pairs.items():
        variables[name].assign(np.asarray(array))
    return tuple(name for name in variables if name not in pairs)


def _name(variable: TfObject) -> str:
    return str(getattr(variable, "path", variable.name)).removesuffix(":0")


def _fitting(
    values: Mapping[str, Value], shapes: Mapping[str, Sequence[int]], strict: bool
) -> dict[str, Value]:
    """The values of some variables.

    **Raises:** `SignatureError` that lists everything missing or of another shape.
    """
    wrong = [f"{name!r} is missing" for name in shapes if strict and name not in values]
    for name, shape in shapes.items():
        if name in values and np.shape(values[name]) != tuple(shape):
            got = list(np.shape(values[name]))
            wrong.append(f"{name!r} has the shape {got}, expected {list(shape)}")
    if shapes and not values.keys() & shapes.keys():
        wrong = [f"none of the names belongs to a variable, such as {next(iter(shapes))!r}"]
    if wrong:
        raise SignatureError(
            "values: " + "; ".join(wrong),
            remedy="Pass arrays by the names in `module.params`, in their shapes.",
        )
    return {name: values[name] for name in shapes if name in values}


def _origin(module: eqx.Module) -> Origin:
    origin = getattr(sys.modules.get(type(module).__module__), "__origin__", None)
    if not isinstance(origin, Origin):
        raise SignatureError(
            f"the names of {type(module).__name__} in a container are not known",
            remedy="Pass a module that invert has recovered in this process, or its `model`.",
        )
    return origin


def _value(x: Value, state: eqx.nn.State | None) -> Value:
    if not isinstance(x, eqx.nn.StateIndex):
        return x
    return x.init if state is None else state.get(x)
