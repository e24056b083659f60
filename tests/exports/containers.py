"""Exports JAX and Keras models as their users do, and reads them again."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax.experimental import jax2tf

import invert
from tests.exports import measure


@dataclasses.dataclass(frozen=True)
class Input:
    """One array argument; sizes given as text may be left open."""

    name: str
    shape: tuple[int | str, ...]
    below: int | None = None

    def array(self, sizes: dict[str, int], rng: np.random.RandomState) -> np.ndarray:
        shape = self.sized(sizes)
        if self.below is not None:
            return rng.randint(0, self.below, shape).astype(np.int32)
        return rng.standard_normal(shape).astype(np.float32)

    def ties(self, sizes: dict[str, int], number: int) -> np.ndarray:
        """Zeros, or the three numbers -1, 0 and 1 in turn."""
        zeros = np.zeros(self.sized(sizes), np.int32 if self.below else np.float32)
        if not number or self.below:
            return zeros
        return zeros + (np.arange(zeros.size).reshape(zeros.shape) // 2 % 3 - 1).astype(np.float32)

    def sized(self, sizes: dict[str, int]) -> tuple[int, ...]:
        return tuple(sizes[n] if isinstance(n, str) else n for n in self.shape)

    @property
    def dtype(self) -> Any:
        return np.float32 if self.below is None else np.int32

    def spec(self, opened: str, sizes: dict[str, int]) -> tf.TensorSpec:
        shape = [n if isinstance(n, int) else None if n in opened else sizes[n] for n in self.shape]
        return tf.TensorSpec(shape, tf.as_dtype(self.dtype), name=self.name)

    def polymorphic(self, opened: str, sizes: dict[str, int]) -> str:
        names = [str(sizes[n]) if isinstance(n, str) and n not in opened else n for n in self.shape]
        return "(" + "".join(f"{n}, " for n in names) + ")"


@dataclasses.dataclass(frozen=True)
class Original:
    """A model in its own framework.

    - `measure`: measures it, see `measure.measure`.
    - `params`: its floating-point parameters, where they are exported; `trained`: which of them its
        author trains.
    - `inputs`: a pytree of `Input`.
    - `recover`: exports it and reads the export.
    """

    measure: Callable[[measure.Job], dict[str, Any]]
    results: Callable[[Any], list[Any]]
    params: list[np.ndarray]
    trained: list[bool]
    inputs: tuple[Any, ...]
    recover: Callable[[Path], Any]


@dataclasses.dataclass(frozen=True)
class Net:
    """A JAX model as its user has it: `apply(params, *inputs)`."""

    apply: Callable[..., Any]
    params: Any
    inputs: tuple[Any, ...]
    statistics: Callable[[str], bool] = lambda path: False


@dataclasses.dataclass(frozen=True)
class Setting:
    """The open sizes of an export (`"b"`, `"bl"` or none), and the values of the others."""

    opened: str
    sizes: dict[str, int]

    def specs(self, inputs: Any) -> Any:
        return jax.tree_util.tree_map(lambda i: i.spec(self.opened, self.sizes), inputs)

    def polymorphic(self, inputs: Any) -> list[Any]:
        return jax.tree_util.tree_map(
            lambda i: i.polymorphic(self.opened, self.sizes), list(inputs)
        )


Container = Callable[[Net, Setting, Path], Any]


def trained_like(params: Any, closed: bool) -> Any:
    """Distinct parameters, as after training.

    Where a program holds its arrays itself, biases stay zero, so that ties stay ties.
    """
    rng = np.random.RandomState(7)

    def moved(value: Any) -> np.ndarray:
        value = np.asarray(value)
        if not np.issubdtype(value.dtype, np.floating) or (closed and value.ndim < 2):
            return value
        return (value + 0.1 * rng.standard_normal(value.shape)).astype(value.dtype)

    return jax.tree_util.tree_map(moved, params)


def path_name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _tf_module(net: Net, setting: Setting, **kwargs: Any) -> tf.Module:
    """A `tf.Module` with variables and one function, as jax2tf's documentation has it."""
    module = tf.Module()
    module.params = jax.tree_util.tree_map_with_path(
        lambda path, value: tf.Variable(value, trainable=not net.statistics(path_name(path))),
        net.params,
    )
    params = module.params
    shapes = [None, *setting.polymorphic(net.inputs)] if setting.opened else None
    converted = jax2tf.convert(net.apply, polymorphic_shapes=shapes, **kwargs)
    module.__call__ = tf.function(
        lambda *inputs: converted(params, *inputs),
        autograph=False,
        jit_compile=True,
        input_signature=setting.specs(list(net.inputs)),
    )
    return module


def tf_function(**kwargs: Any) -> Container:
    """The `tf.function` itself; variables are parameters."""
    return lambda net, setting, path: invert.convert(_tf_module(net, setting, **kwargs).__call__)


def tf_function_closed(net: Net, setting: Setting, path: Path) -> Any:
    """`jax2tf.convert` of a function that closes over its weights."""
    converted = jax2tf.convert(
        lambda *inputs: net.apply(net.params, *inputs),
        polymorphic_shapes=setting.polymorphic(net.inputs) if setting.opened else None,
    )
    return invert.convert(tf.function(converted, autograph=False), *setting.specs(net.inputs))


def saved_model(**kwargs: Any) -> Container:
    def export(net: Net, setting: Setting, path: Path) -> Any:
        module = _tf_module(net, setting, **kwargs)
        options = tf.saved_model.SaveOptions(experimental_custom_gradients=True)
        tf.saved_model.save(module, str(path), options=options)
        return invert.load(path)

    return export


def orbax(*, trained: bool = False) -> Container:
    """`trained`: the variables that the author marks as trained; by default Orbax trains none."""

    def export(net: Net, setting: Setting, path: Path) -> Any:
        pytest.importorskip("orbax.export")
        from orbax.export import ExportManager, JaxModule, ServingConfig

        (x,) = net.inputs
        shape = setting.polymorphic(net.inputs)[0] if setting.opened else None
        trainable = jax.tree_util.tree_map_with_path(
            lambda path, _: trained and not net.statistics(path_name(path)), net.params
        )
        module = JaxModule(
            net.params, net.apply, input_polymorphic_shape=shape, trainable=trainable
        )
        serving = ServingConfig("serving_default", input_signature=[setting.specs(x)])
        ExportManager(module, [serving]).save(str(path))
        return invert.load(path)

    return export


def blob(closed: bool) -> Container:
    """A `jax.export` file; the parameters are an argument, or constants."""

    def export(net: Net, setting: Setting, path: Path) -> Any:
        args = net.inputs if closed else (net.params, *net.inputs)
        function = (lambda *xs: net.apply(net.params, *xs)) if closed else net.apply
        scope = jax.export.SymbolicScope()

        def spec(x: Any) -> Any:
            if not isinstance(x, Input):
                return jax.ShapeDtypeStruct(np.shape(x), x.dtype)
            text = x.polymorphic(setting.opened, setting.sizes)
            return jax.ShapeDtypeStruct(jax.export.symbolic_shape(text, scope=scope), x.dtype)

        specs = jax.tree_util.tree_map(spec, args)
        exported = jax.export.export(jax.jit(function))(*specs)
        path.write_bytes(bytes(exported.serialize(vjp_order=1)))
        return invert.load(path)

    return export


def of_jax(net: Net, container: Container, setting: Setting, *, params: str) -> Original:
    """A JAX model. `params`: whether the container has `"variables"`, holds them as constants
    (`"closed"`), or takes them as an `"argument"`.
    """
    net = dataclasses.replace(net, params=trained_like(net.params, params == "closed"))
    flat, tree = jax.tree_util.tree_flatten_with_path(net.params)
    arrays = [v for _, v in flat]
    floats = [i for i, v in enumerate(arrays) if np.issubdtype(v.dtype, np.floating)]
    names = [path_name(p) for p, _ in flat]

    def call(values: Sequence[Any], inputs: Any) -> Any:
        if params == "argument":
            return net.apply(*inputs)
        new = list(arrays)
        for i, value in zip(floats, values, strict=False):
            new[i] = jnp.asarray(value)  # NumPy arrays cannot be indexed by tracers
        return net.apply(jax.tree_util.tree_unflatten(tree, new), *inputs)

    held = [arrays[i] for i in floats] if params == "variables" else []
    return Original(
        measure=lambda job: measure.measure(call, job),
        results=lambda inputs: measure.leaves(call(held, inputs)),
        params=held,
        trained=[not net.statistics(names[i]) for i in floats] if held else [],
        inputs=(net.params, *net.inputs) if params == "argument" else net.inputs,
        recover=lambda path: container(net, setting, path),
    )


def perturb(model: Any) -> None:
    """Give a Keras model distinct weights, as after training."""
    rng = np.random.RandomState(7)
    for variable in model.variables:
        if variable.dtype == "float32":
            value = np.asarray(variable)
            variable.assign(value + 0.1 * rng.standard_normal(value.shape).astype(np.float32))


def keras_archive(model: Any, setting: Setting, inputs: Any, path: Path) -> Any:
    path = path.with_suffix(".keras")
    model.save(path)
    return invert.load(path)


def keras_export(model: Any, setting: Setting, inputs: Any, path: Path) -> Any:
    model.export(path, verbose=False, input_signature=list(setting.specs(inputs)))
    return invert.load(path)


def keras_convert(model: Any, setting: Setting, inputs: Any, path: Path) -> Any:
    return invert.convert(model, *setting.specs(inputs))


def of_keras(model: Any, inputs: tuple[Any, ...], container: Any, setting: Setting) -> Original:
    """A Keras model, differentiated by TensorFlow."""
    perturb(model)
    trained = {id(v) for v in model.trainable_variables}
    order = [*model.trainable_variables, *model.non_trainable_variables]
    floats = [i for i, v in enumerate(order) if v.dtype == "float32"]
    cut = len(model.trainable_variables)

    def call(values: Sequence[Any], inputs: Any) -> list[Any]:
        new = [v.value for v in order]
        for i, value in zip(floats, values, strict=True):
            new[i] = value
        out, _ = model.stateless_call(new[:cut], new[cut:], *inputs, training=False)
        return tf.nest.flatten(out)

    held = [np.asarray(order[i]) for i in floats]
    return Original(
        measure=lambda job: _measure_tf(call, job),
        results=lambda inputs: [np.asarray(v) for v in call(held, inputs)],
        params=held,
        trained=[id(order[i]) in trained for i in floats],
        inputs=inputs,
        recover=lambda path: container(model, setting, inputs, path),
    )


def _measure_tf(call: Callable[..., Any], job: measure.Job) -> dict[str, Any]:
    """As `measure.measure`, in TensorFlow."""
    inputs, joined = measure.split(job.point)
    count = len(job.params)

    def loss(values: Sequence[Any], joined: Any = joined, which: int = 0) -> Any:
        results = call(values[:count], joined(values[count:]))
        pairs = zip(job.weights[which], results, strict=True)
        return tf.add_n([tf.reduce_sum(w * r) for w, r in pairs])

    def gradients(point: Any, of: Callable[..., Any] = loss) -> list[np.ndarray]:
        point = [tf.constant(v) for v in point]
        with tf.GradientTape() as tape:
            tape.watch(point)
            value = of(point)
        zero = tf.UnconnectedGradients.ZERO
        found = tape.gradient(value, point, unconnected_gradients=zero)
        return [np.asarray(tf.convert_to_tensor(g)) for g in found]

    def along(steps: tf.Tensor) -> tf.Tensor:
        moved = [tf.constant(v) for v in (*job.params, *inputs)]
        for k, (params, arrays) in enumerate(job.directions):
            moved = [v + steps[k] * d for v, d in zip(moved, (*params, *arrays), strict=True)]
        return loss(moved)

    @tf.function
    def hessian() -> tf.Tensor:
        steps = tf.zeros(len(job.directions))
        with tf.GradientTape() as outer:
            outer.watch(steps)
            with tf.GradientTape() as inner:
                inner.watch(steps)
                value = along(steps)
            gradient = inner.gradient(value, steps)
        # No `pfor`: it has no rule for some ops of a recurrent layer.
        return outer.jacobian(gradient, steps, experimental_use_pfor=False)

    def jvp() -> list[np.ndarray]:
        primals = [tf.constant(v) for v in (*job.params, *inputs)]
        tangents = [tf.constant(d) for part in job.directions[0] for d in part]
        with tf.autodiff.ForwardAccumulator(primals, tangents) as accumulator:
            results = call(primals[:count], joined(primals[count:]))
        return [np.asarray(accumulator.jvp(r, tf.UnconnectedGradients.ZERO)) for r in results]

    at_point = gradients([*job.params, *inputs])
    ties: list[np.ndarray] = []
    for i, point in enumerate(job.ties):
        arrays, back = measure.split(point)
        ties += gradients(
            [*job.tie_params, *arrays], lambda v, back=back, i=i: loss(v, back, i + 1)
        )
    return {
        "values": [[np.asarray(r) for r in call(job.params, point)] for point in job.points],
        "gradients of parameters": at_point[:count],
        "gradients of inputs": at_point[count:],
        "jvp": jvp(),
        "hessian": [np.asarray(hessian())],
        "ties": ties,
    }
