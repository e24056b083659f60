"""The functions of tf2jax: conversion, and calls of converted functions."""

from __future__ import annotations

import concurrent.futures
import functools
import inspect
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from invert._api import convert as _convert
from invert._api import from_entry
from invert._errors import SignatureError, UnsupportedOpError, only_refusals
from invert._private.jax import is_tracer
from invert._private.tensorflow import TfObject
from invert.compat.tf2jax.config import conversion, get_config, narrows
from invert.frontends.closures import names_of_tensorflow
from invert.frontends.graph_entry import at_shapes
from invert.ir.avals import fits_shape
from invert.ir.sizes import DimSize
from invert.ir.types import Arguments, JaxFunction, Keywords, Tree, Value
from invert.modules.module import Module, on_first_devices
from invert.tf.ops.node import import_tensorflow

Shape: TypeAlias = tuple[DimSize, ...]
_SKIPS = "skip_variables_evaluation_inside_tf_tracing"


class MissingInputError(Exception):
    """A call lacks arrays that the function was traced with."""


class ConversionError(UnsupportedOpError, ValueError):
    """Some ops cannot be converted; `invert`'s error, and a `ValueError` as in tf2jax."""


class Variable(np.ndarray):
    """The value of a variable, with its name and whether it is trainable."""

    trainable: bool | None
    name: str | None

    def __new__(cls, arr: object, trainable: bool, name: str) -> Variable:
        variable = np.asarray(arr).view(cls)
        variable.trainable, variable.name = trainable, name
        return variable

    def __array_finalize__(self, obj: object) -> None:
        self.trainable = getattr(obj, "trainable", None)
        self.name = getattr(obj, "name", None)

    def assign(self, arr: object) -> Variable:
        """The same variable with another value."""
        return Variable(arr, bool(self.trainable), str(self.name))


class AnnotatedFunction:
    """A converted function, with the types of its arguments and results.

    **Attributes:**

    - `fn`: the function itself.
    - `structured_inputs`, `structured_outputs`: trees of `tf.TensorSpec`.
    - `signature`: the signature of the original.
    - `module`: the `invert.Module` it calls; `None` if each call has its own, since shapes depend
        on the values of its arguments.
    """

    def __init__(
        self,
        fn: JaxFunction,
        structured_inputs: object,
        structured_outputs: object,
        signature: inspect.Signature,
    ):
        self.fn = fn
        self.structured_inputs = structured_inputs
        self.structured_outputs = structured_outputs
        self.module: Module | None = getattr(fn, "module", None)
        self.__doc__ = fn.__doc__
        self.__name__ = fn.__name__
        self.__signature__ = signature

    def __call__(self, *args: object, **kwargs: object) -> Value:
        return self.fn(*args, **kwargs)

    @property
    def signature(self) -> inspect.Signature:
        return self.__signature__


def convert(
    tf_func: TfObject, *args: Value, **kwargs: Value
) -> tuple[AnnotatedFunction, Mapping[str, Value]]:
    """Convert a `tf.function` traced at these arguments.

    **Arguments:**

    - `tf_func`: a `tf.function` or a function of a restored SavedModel.
    - `args`, `kwargs`: arrays or `tf.TensorSpec` in any tree, and literal values.

    **Returns:** `(fn, params)`. `params` has the values of all variables by name. It is called as
    `outputs, params = fn(params, *args, rng=key, **kwargs)`; `rng` only where it draws random
    numbers.

    If shapes follow from the values of integers or booleans, as in `tf.zeros([n])`, the function is
    converted again for the values of each call. Such a call cannot be traced.

    **Raises:** `AttributeError` if `tf_func` is not a `tf.function`; `ValueError` where it has
    variables and TensorFlow is tracing; `ConversionError` where ops cannot be converted; the other
    errors of `invert.convert`.
    """
    tf = import_tensorflow()
    args, kwargs = jax.tree_util.tree_map(_without_tracers, (args, kwargs))
    concrete = tf_func.get_concrete_function(*args, **kwargs)
    inputs = concrete.structured_input_signature
    outputs = tf.nest.map_structure(
        lambda t: tf.TensorSpec.from_tensor(t) if tf.is_tensor(t) else t,
        concrete.structured_outputs,
    )
    tracing = tf.inside_function()
    if tracing and concrete.variables and not get_config(_SKIPS):
        raise ValueError(
            f"Unable to evaluate variables inside a TF tracing context: set the flag {_SKIPS!r} to "
            "leave them out, and pass their values in each call"
        )
    config = conversion()
    run = functools.partial(_convert_module, tf_func, *args, config=config, **kwargs)
    module = refused = None
    try:
        module = _outside_graphs(run) if tracing else run()
    except UnsupportedOpError as error:
        refused = ConversionError(error.problems)
        if tracing or not _depends_on_values(tf_func, args, kwargs, concrete, error):
            raise refused from error
    signature = _signature(tf_func, concrete)
    call = _Call(tf_func, module, signature, inputs, narrows(), refused)

    def jax_func(
        params: Mapping[str, Value], *args: object, rng: object = None, **kwargs: object
    ) -> Value:
        return call(params, args, kwargs, rng)

    jax_func.__name__ = _name(tf_func) if module is None else module._function.entry.name
    source = "a function of values" if module is None else module._function.entry.source
    jax_func.__doc__ = f"Converted from {source}."
    setattr(jax_func, "module", module)  # noqa: B010  functions have no such field by type
    return AnnotatedFunction(jax_func, inputs, outputs, signature), (
        {} if tracing or module is None else _params(module)
    )


def _outside_graphs(run: Callable[[], Module]) -> Module:
    """Call `run` in another thread: outside of graphs, where variables have values."""
    # `init_scope` would do the same, but it also stops gradient tapes from recording.
    with concurrent.futures.ThreadPoolExecutor(1) as other:
        return other.submit(run).result()


def convert_functional(tf_func: object, *args: object, **kwargs: object) -> AnnotatedFunction:
    """As `convert`, for a function without variables: `outputs = fn(*args, **kwargs)`.

    **Raises:** `ValueError` where it has variables; otherwise as `convert`.
    """
    return _without_params(*convert(tf_func, *args, **kwargs))


def convert_from_restored(tf_func: TfObject) -> tuple[AnnotatedFunction, Mapping[str, Value]]:
    """As `convert`, for a function of a SavedModel that was traced once.

    **Raises:** `ValueError` where it was traced more than once; otherwise as `convert`.
    """
    args, kwargs = tf_func.input_signature, {}
    if args is None:
        concrete = getattr(tf_func, "concrete_functions", ())
        if len(concrete) != 1:
            raise ValueError(
                f"Found {len(concrete)} concrete functions; pass the arguments that pick one to "
                "convert or convert_functional:\n"
                + "\n".join(f"  - {c.structured_input_signature}" for c in concrete)
            )
        args, kwargs = concrete[0].structured_input_signature
    return convert(tf_func, *args, **kwargs)


def convert_functional_from_restored(tf_func: object) -> AnnotatedFunction:
    """As `convert_from_restored`, for a function without variables."""
    return _without_params(*convert_from_restored(tf_func))


def _with_values(
    tf_func: TfObject, args: Arguments, kwargs: Keywords
) -> tuple[TfObject, list[Value]]:
    """The function with its integers and booleans as constants, and its other arrays.

    **Raises:** `jax.errors.ConcretizationTypeError` where one of them is traced.
    """
    tf = import_tensorflow()
    leaves, tree = jax.tree_util.tree_flatten((tuple(args), dict(kwargs)))
    rest = [v for v in leaves if hasattr(v, "dtype") and not _is_value(v)]

    @tf.function(autograph=False)
    def with_values(*tensors: TfObject) -> TfObject:
        given = iter(tensors)
        values = [
            tf.constant(np.asarray(v))
            if _is_value(v)
            else next(given)
            if hasattr(v, "dtype")
            else v
            for v in leaves
        ]
        all_args, all_kwargs = jax.tree_util.tree_unflatten(tree, values)
        return tf_func(*all_args, **all_kwargs)

    for value in filter(is_tracer, filter(_is_value, leaves)):
        raise jax.errors.ConcretizationTypeError(
            value, "Shapes must be 1D sequences of concrete values of integer type."
        )
    return with_values, rest


def _is_value(leaf: Value) -> bool:
    """Return whether sizes are computed from an argument."""
    return (
        hasattr(leaf, "dtype")
        and not isinstance(leaf, import_tensorflow().TensorSpec)
        and np.dtype(leaf.dtype).kind in "iub"
    )


def _depends_on_values(
    tf_func: TfObject,
    args: Arguments,
    kwargs: Keywords,
    concrete: TfObject,
    error: UnsupportedOpError,
) -> bool:
    """Return whether an error changes if the values of the example are known."""
    if concrete.variables or not any(map(_is_value, jax.tree_util.tree_leaves((args, kwargs)))):
        return False
    function, rest = _with_values(tf_func, args, kwargs)
    try:
        with only_refusals():
            _convert_module(function, *rest, config=conversion())
    except ValueError:  # TensorFlow rejects the example's values, such as a step of zero
        return True
    except UnsupportedOpError as other:
        return {(p.op, p.reason) for p in other.problems} != {
            (p.op, p.reason) for p in error.problems
        }
    return True


def _convert_module(function: TfObject, *args: Value, **kwargs: Value) -> Module:
    """The module of a function, with parameters by the names that tf2jax gives them."""
    with names_of_tensorflow():
        return _convert(function, *args, **kwargs)


def _name(tf_func: object) -> str:
    return str(getattr(tf_func, "__name__", "function"))


def _without_tracers(value: Value) -> Value:
    if not is_tracer(value):
        return value
    return import_tensorflow().TensorSpec(value.shape, value.dtype)


def _signature(tf_func: TfObject, concrete: TfObject) -> inspect.Signature:
    """The signature of the Python function, or else of the trace."""
    python_function = getattr(tf_func, "python_function", None)
    if python_function is not None and not hasattr(tf_func, "concrete_functions"):
        parameters = inspect.signature(python_function).parameters.values()
        # A method is traced with a placeholder for `self`.
        return inspect.Signature([p for p in parameters if p.name != "self"])
    # The Python function of a restored one takes any arguments.
    kind = concrete.function_type
    default = getattr(kind, "default_values", {})
    return inspect.Signature(
        [
            inspect.Parameter(n, p.kind, default=default.get(n, inspect.Parameter.empty))
            for n, p in kind.parameters.items()
        ]
    )


def _special(module: Module) -> tuple[str | None, str | None]:
    """Names of the state and key arguments."""
    parameters = inspect.signature(module).parameters.values()
    state = [p.name for p in parameters if p.annotation is eqx.nn.State]
    entry = module._function.entry
    key = [p.name for p in parameters][-1:] if entry.draws else []
    return (state or [None])[0], (key or [None])[0]


def _placed(
    module: Module, given: inspect.BoundArguments, wanted: inspect.BoundArguments
) -> tuple[list[Value], dict[str, Tree]]:
    """The module's arguments, picked from those of the original, which also has static values.

    Arguments correspond by position, not by name: a function of `jax2tf.convert` takes `*args_tf`,
    the module takes the arguments of the JAX function.
    """
    tensor_spec = import_tensorflow().TensorSpec

    def tensors(values: object, specs: object) -> list[Value]:
        pairs = zip(*map(jax.tree_util.tree_leaves, (values, specs)), strict=True)
        return [value for value, spec in pairs if isinstance(spec, tensor_spec)]

    def filled(tree: object, leaves: Sequence[object]) -> Value:
        return jax.tree_util.tree_unflatten(jax.tree_util.tree_structure(tree), leaves)

    entry = module._function.entry
    return list(filled(entry.args, tensors(given.args, wanted.args))), {
        name: filled(tree, tensors(given.kwargs[name], wanted.kwargs[name]))
        for name, tree in entry.kwargs.items()
    }


def _params(module: Module) -> dict[str, Value]:
    entry = module._function.entry
    return {p.name: Variable(p.value, p.trainable, p.name) for p in entry.params}


def _without_params(function: AnnotatedFunction, params: Mapping[str, Value]) -> AnnotatedFunction:
    if params:
        raise ValueError(f"the function has the variables {sorted(params)}; use tf2jax.convert")

    def jax_func(*args: Value, **kwargs: Value) -> Value:
        return function.fn({}, *args, **kwargs)[0]

    jax_func.__name__, jax_func.__doc__ = function.fn.__name__, function.fn.__doc__
    setattr(jax_func, "module", function.module)  # noqa: B010
    return AnnotatedFunction(
        jax_func, function.structured_inputs, function.structured_outputs, function.signature
    )


class _Call:
    """Calls a converted function, with the checks selected by the flags."""

    def __init__(
        self,
        tf_func: object,
        module: Module | None,
        signature: inspect.Signature,
        specs: tuple[Arguments, Keywords],
        narrow: bool,
        refused: ConversionError | None,
    ):
        self.tf_func = tf_func
        self.module = None if module is None else on_first_devices(module)
        self.refused = refused
        self.signature = signature
        self.specs = specs
        self.narrow = narrow
        # Modules for other shapes, by shape.
        self.others: dict[Hashable, Module] = {}

    def __call__(
        self, params: Mapping[str, Value], args: Arguments, kwargs: Keywords, rng: object
    ) -> tuple[Value, dict[str, Value]]:
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        wanted = self.signature.bind(*self.specs[0], **self.specs[1])
        given, dtypes, differs = self._checked(bound.arguments, wanted)
        if self.module is None:
            results, updated = self._run_with_values(params, given, wanted, rng)
        else:
            try:
                module = self._traced_again(given, wanted) if differs else self.module
                placed = _placed(module, given, wanted)
                results, updated = self._run(module, params, rng, placed)
            except (SignatureError, UnsupportedOpError) as error:
                if not differs:
                    raise
                raise ValueError(
                    "the function does not take these shapes. "
                    f"Expected shape={_shapes(wanted)}, got {_shapes(given)}: {error}"
                ) from error
            dtypes |= {jnp.asarray(params[n]).dtype for n in self.module.named_params()}
        if self.narrow and np.dtype(jnp.bfloat16) in dtypes:
            results = jax.tree_util.tree_map(_narrowed, results)
        # A module computes in the types of the original, regardless of x64.
        return jax.tree_util.tree_map(_canonical, results), updated

    def _run(
        self,
        module: Module,
        params: Mapping[str, Value],
        rng: object,
        placed: tuple[Arguments, Keywords],
    ) -> tuple[Value, dict[str, Value]]:
        """The results of a module at its arguments, and the variables after the call."""
        state_name, key_name = _special(module)
        if key_name is not None and rng is None:
            raise ValueError(
                "a PRNG key is required for the random ops: pass rng=jax.random.key(0)"
            )
        named = module.named_params()
        if missing := [n for n in named if n not in params]:
            raise ValueError(f"Some parameters are missing, {missing}.")
        state = eqx.nn.State(module) if state_name is not None else None
        plain = {n: v for n, v in named.items() if not isinstance(v, eqx.nn.StateIndex)}
        new = [jnp.asarray(params[n]).astype(v.dtype) for n, v in plain.items()]
        for name in named:
            if name not in plain:
                assert state is not None
                value = jnp.asarray(params[name]).astype(state.get(named[name]).dtype)
                state = state.set(named[name], value)
        if plain:
            module = eqx.tree_at(lambda m: [m.named_params()[n] for n in plain], module, new)
        positional, keywords = placed[0], dict(placed[1])
        if key_name is not None:
            keywords[key_name] = rng
        # The state is the last positional argument.
        results = module(*positional, *(() if state is None else (state,)), **keywords)
        updated = dict(params)
        if state_name is not None:
            results, state = results
            updated |= {n: state.get(v) for n, v in named.items() if n not in plain and n in params}
        return results, updated

    def _run_with_values(
        self,
        params: Mapping[str, Value],
        given: inspect.BoundArguments,
        wanted: inspect.BoundArguments,
        rng: Value,
    ) -> tuple[Value, dict[str, Value]]:
        """The results of the function converted for the values of a call."""
        assert self.refused is not None

        def declared(value: Value, spec: TfObject) -> Value:
            known = _is_value(value) and not is_tracer(value)
            return np.asarray(value, spec.dtype.as_numpy_dtype) if known else value

        args, kwargs = jax.tree_util.tree_map(
            declared, (given.args, given.kwargs), (wanted.args, wanted.kwargs)
        )
        try:
            function, rest = _with_values(self.tf_func, args, kwargs)
        except jax.errors.ConcretizationTypeError as error:
            raise error from self.refused
        arrays = [v for v in jax.tree_util.tree_leaves((args, kwargs)) if hasattr(v, "dtype")]
        key = tuple((v.shape, v.tobytes() if _is_value(v) else "") for v in arrays)
        if key not in self.others:
            try:
                self.others[key] = _convert_module(function, *rest, config=conversion())
            except UnsupportedOpError as error:
                raise ConversionError(error.problems) from error
        return self._run(self.others[key], params, rng, (rest, {}))

    def _traced_again(
        self, given: inspect.BoundArguments, wanted: inspect.BoundArguments
    ) -> Module:
        """The function traced at the shapes of a call.

        If it has no Python code, or the code refuses them, its graph recovered at them, also at
        other ranks.
        """
        tf = import_tensorflow()
        shapes: list[Shape] = []

        def spec(value: Value, declared: TfObject) -> TfObject:
            if not isinstance(declared, tf.TensorSpec):
                return declared
            shapes.append(tuple(value.shape))
            return tf.TensorSpec(value.shape, declared.dtype)

        args, kwargs = jax.tree_util.tree_map(
            spec, (given.args, given.kwargs), (wanted.args, wanted.kwargs)
        )
        key = tuple(shapes)
        if key not in self.others:
            try:
                with only_refusals():
                    self.others[key] = _convert_module(
                        self.tf_func, *args, config=conversion(), **kwargs
                    )
            except (SignatureError, ValueError):
                self.others[key] = self._at_ranks(shapes)
        return self.others[key]

    def _at_ranks(self, shapes: Sequence[tuple[int, ...]]) -> Module:
        """The module for these shapes of its arguments."""
        assert self.module is not None
        entry = self.module._function.entry
        ranks = [len(spec.shape) for spec in entry.specs]
        other = None if list(map(len, shapes)) == ranks else at_shapes(entry, shapes)
        return self.module if other is None else from_entry(other, conversion())

    def _checked(
        self, given: Mapping[str, object], wanted: inspect.BoundArguments
    ) -> tuple[inspect.BoundArguments, set[np.dtype], bool]:
        """The arguments in their declared types, their own types, and whether shapes differ."""
        tensor_spec = import_tensorflow().TensorSpec
        checked: dict[str, Tree] = {}
        dtypes: set[np.dtype] = set()
        differs = False
        for name, specs in wanted.arguments.items():
            leaves, tree = jax.tree_util.tree_flatten_with_path(specs)
            values = dict(jax.tree_util.tree_flatten_with_path(given[name])[0])
            found = []
            for path, spec in leaves:
                where = name + jax.tree_util.keystr(path)
                is_array = isinstance(spec, tensor_spec)
                if path not in values:
                    want = f"{spec.dtype.name}{spec.shape}" if is_array else repr(spec)
                    raise MissingInputError(f"an input is missing: {where} ({want})")
                value = values[path]
                if not is_array:
                    if is_tracer(value) or not _same(value, spec):
                        kind = "tracer" if is_tracer(value) else "literal value"
                        raise ValueError(
                            f"Found unexpected {kind}: {where} is {value!r}, and the function was "
                            f"traced with {spec!r}"
                        )
                    found.append(value)
                    continue
                value = value if hasattr(value, "dtype") else np.asarray(value)
                dtypes.add(np.dtype(value.dtype))
                if not _is_compatible(value.shape, spec.shape):
                    differs = True
                    self._refuse("shape", where, value.shape, spec.shape)
                want = np.dtype(spec.dtype.as_numpy_dtype)
                if not _fits(value.dtype, want):
                    self._refuse("dtype", where, value.dtype, want)
                    value = jnp.asarray(value).astype(jax.dtypes.canonicalize_dtype(want))
                found.append(value)
            checked[name] = jax.tree_util.tree_unflatten(tree, found)
        bound = inspect.BoundArguments(self.signature, OrderedDict(checked))
        return bound, dtypes, differs

    def _refuse(self, what: str, where: str, have: object, want: object) -> None:
        flag = f"strict_{what}_check"
        if get_config(flag):
            raise ValueError(
                f"incompatible input {what}: {where} has {have}, expected {want}; "
                f"tf2jax.override_config({flag!r}, False) allows it"
            )


def _shapes(arguments: inspect.BoundArguments) -> str:
    """The shapes of arrays or of their specs."""
    leaves = jax.tree_util.tree_leaves((arguments.args, arguments.kwargs))
    return ", ".join(str(v.shape) for v in leaves if hasattr(v, "shape"))


def _is_compatible(have: Sequence[DimSize], want: TfObject) -> bool:
    """Return whether an array, whose sizes may be symbolic, fits a `tf.TensorShape`."""
    return want.rank is None or fits_shape(have, want.as_list())


def _same(value: Value, spec: Value) -> bool:
    return bool(np.array_equal(value, spec)) if isinstance(spec, np.ndarray) else value == spec


def _fits(have: object, want: np.dtype) -> bool:
    return have == want or have == jax.dtypes.canonicalize_dtype(want)


def _canonical(x: Value) -> Value:
    dtype = jax.dtypes.canonicalize_dtype(x.dtype) if hasattr(x, "dtype") else None
    return x if dtype is None or dtype == x.dtype else x.astype(dtype)


def _narrowed(x: Value) -> Value:
    return x.astype(jnp.bfloat16) if x.dtype in (np.float32, np.float64) else x
