"""The arrays of a module, by their names in the container."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from invert._errors import SignatureError
from invert._private.tensorflow import TfObject
from invert.emission import Origin, is_index, put_values
from invert.frontends.closures import UNNAMED, paths_of
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

    - `target`: a Keras model, a `tf.Module` or a loaded SavedModel. Its variables are matched by
        `path` or name, and by where it holds them. The leading name of the model may differ or be
        missing, as in a `.keras` file.
    - `values`: arrays by their names in the container, as from `invert.values`.

    **Returns:** the names of the variables without an array in `values`, which are unchanged.

    **Raises:** `SignatureError` that lists all arrays without a variable, or of another shape or
    kind of numbers; nothing is assigned then.

    ??? example

        ```python
        import keras

        import invert

        model = keras.models.load_model("model.keras")
        net = invert.convert(model).model  # ... train ...
        invert.assign(model, invert.values(net))
        ```
    """
    _check_mapping(values)
    variables = _Variables(target)
    wrong: list[str] = []
    pairs: dict[int, tuple[TfObject, np.ndarray]] = {}
    for name, value in values.items():
        found, array = variables.named(name), np.asarray(value)
        if len(found) != 1:
            wrong.append(f"there is {'no variable' if not found else 'more than one'} for {name!r}")
        elif id(found[0]) in pairs:
            other = variables.name(found[0])
            wrong.append(f"{name!r} and another array are both for {other!r}")
        elif tuple(found[0].shape) != array.shape:
            shape = list(found[0].shape)
            wrong.append(f"{name!r} has the shape {list(array.shape)}, expected {shape}")
        elif not _keeps(array.dtype, found[0]):
            wrong.append(f"{name!r} has the dtype {array.dtype}, expected {_dtype(found[0])}")
        else:
            pairs[id(found[0])] = found[0], array
    if wrong:
        raise SignatureError(
            f"{type(target).__name__}: {'; '.join(wrong)}",
            remedy="Build the target first; it needs the same variables as the container.",
        )
    for variable, array in pairs.values():
        variable.assign(array)
    return tuple(variables.name(v) for v in variables.all if id(v) not in pairs)


class _Variables:
    """The variables of an object of TensorFlow or Keras, by their names and where it holds them."""

    def __init__(self, target: TfObject) -> None:
        held = getattr(target, "variables", ())
        paths = [] if held and _all_named(held) else [*paths_of(target)]
        self.all = [*{id(v): v for v in (*held, *(v for _, v in paths))}.values()]
        if not self.all:
            raise SignatureError(
                f"{type(target).__name__} holds no variables",
                remedy="Pass a Keras model that is built, a tf.Module or a loaded SavedModel.",
            )
        own = [(_name(v), v) for v in self.all]
        self._paths = {id(v): path for path, v in reversed(paths)}
        # The leading name of a model may be missing, here or there.
        short = [(rest, v) for name, v in own if (rest := name.partition("/")[2])]
        self._tables = [_by_name(pairs) for pairs in (own, paths)]
        self._short = _by_name(short)

    def name(self, variable: TfObject) -> str:
        own = _name(variable)
        return self._paths.get(id(variable), own) if own == UNNAMED else own

    def named(self, name: str) -> list[TfObject]:
        """The variables that a name of the container may mean."""
        key = _key(name)
        for table in (*self._tables, self._short):
            if key in table:
                return table[key]
        return self._short.get(key.partition("/")[2], [])


def _check_mapping(values: object) -> None:
    if not isinstance(values, Mapping):
        raise SignatureError(
            f"values is a {type(values).__name__}, not a mapping from names to arrays",
            remedy="Pass arrays by name, as invert.values returns them.",
        )


def _all_named(variables: Iterable[TfObject]) -> bool:
    """Return whether the names of variables differ, so that they need no paths."""
    names = [_name(v) for v in variables]
    return len(set(names)) == len(names) and UNNAMED not in names


def _by_name(pairs: Iterable[tuple[str, TfObject]]) -> dict[str, list[TfObject]]:
    table: dict[str, dict[int, TfObject]] = {}
    for name, variable in pairs:
        table.setdefault(_key(name), {})[id(variable)] = variable
    return {name: [*found.values()] for name, found in table.items()}


def _key(name: str) -> str:
    """A name as containers agree on it: a SavedModel writes `layers.0` for `_layers/0`."""
    return "/".join(part.lstrip("_") for part in re.split(r"[/.]", name))


def _name(variable: TfObject) -> str:
    return str(getattr(variable, "path", variable.name)).removesuffix(":0")


def _dtype(variable: TfObject) -> np.dtype:
    return np.dtype(getattr(variable.dtype, "as_numpy_dtype", variable.dtype))


def _keeps(dtype: np.dtype, variable: TfObject) -> bool:
    """Return whether a variable can hold numbers of a type without loss of more than digits."""
    kinds = (jnp.complexfloating, jnp.inexact)
    return not any(
        jnp.issubdtype(dtype, k) and not jnp.issubdtype(_dtype(variable), k) for k in kinds
    )


def _fitting(
    values: Mapping[str, Value], shapes: Mapping[str, Sequence[int]], strict: bool
) -> dict[str, Value]:
    """The values of some variables.

    **Raises:** `SignatureError` that lists everything missing or of another shape.
    """
    _check_mapping(values)
    given = {_key(name): _array(value) for name, value in values.items()}
    given = {name: given[_key(name)] for name in shapes if _key(name) in given}
    wrong = [f"{name!r} is missing" for name in shapes if strict and name not in given]
    for name, value in given.items():
        if value.dtype.kind in "OSU":
            wrong.append(f"{name!r} holds no numbers")
        elif value.shape != tuple(shapes[name]):
            got = list(value.shape)
            wrong.append(f"{name!r} has the shape {got}, expected {list(shapes[name])}")
    if shapes and not given:
        wrong = [f"none of the names belongs to a variable, such as {next(iter(shapes))!r}"]
    if wrong:
        raise SignatureError(
            "values: " + "; ".join(wrong),
            remedy="Pass arrays by the names in `module.params`, in their shapes.",
        )
    return given


def _array(value: Value) -> Value:
    """An array of JAX or NumPy, from one of another library too."""
    return value if isinstance(value, (jax.Array, jax.ShapeDtypeStruct)) else np.asarray(value)


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
