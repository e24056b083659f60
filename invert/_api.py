"""The public functions: open a container, build a module of its entry points."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import jax
import jax.export
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from invert import _containers, patterns
from invert._config import Config
from invert._entry import EntryPoint, Param
from invert._errors import InvertError, MalformedModelError, MeshError, SignatureError
from invert._pipeline import recover
from invert._private.tensorflow import TfObject
from invert.ir.types import Arguments, CallArguments, Keywords
from invert.modules import placement, save
from invert.modules.dimensions import opened_sizes, with_sizes
from invert.modules.function import Function
from invert.modules.methods import Methods, build_methods
from invert.modules.module import Module, build
from invert.modules.specializations import Recover, Specializations
from invert.patterns.explain import explain as explain
from invert.patterns.rewrite import rewrite as rewrite
from invert.patterns.short import pattern as pattern

_DEFAULT = Config()

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


def _public(function: Callable[_Given, _Result]) -> Callable[_Given, _Result]:
    """A function whose `config` is checked before anything is read."""

    @functools.wraps(function)
    def call(*args: _Given.args, **kwargs: _Given.kwargs) -> _Result:
        if not isinstance(config := kwargs.get("config", _DEFAULT), Config):
            raise SignatureError(
                f"config is a {type(config).__name__}",
                remedy="Pass invert.Config(...) with the options that you need.",
            )
        return function(*args, **kwargs)

    return call


def _recovering(config: Config) -> Recover:
    patterns.check_names(config)
    return functools.partial(recover, config=config)


def from_entry(
    entry: EntryPoint,
    config: Config,
    args: Sequence[object] | None = None,
    kwargs: Keywords | None = None,
) -> Module:
    """Build the module of an entry point, recovered at the types of an example."""
    return build(_function(entry, config, args, kwargs))


def _function(
    entry: EntryPoint,
    config: Config,
    args: Sequence[object] | None = None,
    kwargs: Mapping[str, object] | None = None,
) -> Function:
    entry = with_sizes(entry, config.sizes)
    function = Function(Specializations(entry, _recovering(config)), config)
    if function.is_static:
        function.begin([_Shape(spec.shape) for spec in function.specs])
    elif args or kwargs:
        values = function.flatten(args or (), kwargs or {})
        # A `tf.TensorSpec` may leave sizes open.
        if all(isinstance(n, int) for value in values for n in value.shape):
            function.begin(values)
    if function.home is None:
        function.begin_whole()
    return function


def _build_methods(
    name: str, entries: Mapping[str, EntryPoint], names: Sequence[str], config: Config
) -> Methods:
    """A module of several functions; those that cannot be converted fail when called."""
    failed: dict[str, InvertError] = {}
    read: dict[str, EntryPoint] = {}
    for key in names:
        try:
            read[key] = with_sizes(entries[key], config.sizes)
        except InvertError as error:
            failed[key] = error
    assigned = {e.params[i].name for e in read.values() for i in e.assigned}
    functions: dict[str, Function] = {}
    for key, entry in read.items():
        stateful = any(p.name in assigned for p in entry.params)
        programs = Specializations(entry, _recovering(config))
        function = Function(programs, config, stateful=stateful)
        try:
            if function.is_static:
                function.begin([_Shape(spec.shape) for spec in function.specs])
            else:
                function.begin_whole()
            functions[key] = function
        except InvertError as error:
            failed[key] = error
    if not functions:
        raise next(iter(failed.values()))
    return build_methods(name, functions, failed)


class _Shape:
    """Placeholder for an array; only its shape matters."""

    def __init__(self, shape: Sequence[object]):
        self.shape = tuple(shape)


@_public
def roundtrip(tf_fn: object, *args: object, config: Config = _DEFAULT, **kwargs: object) -> Module:
    """Recover a JAX function from the TensorFlow function that `jax2tf.convert` made of it.

    **Arguments:**

    - `tf_fn`: a `tf.function`, a `ConcreteFunction`, a function of a restored SavedModel, or the
        bare result of `jax2tf.convert`.
    - `args`, `kwargs`: example arguments (arrays, `jax.ShapeDtypeStruct` or `tf.TensorSpec`, in any
        pytree). Only their shapes and dtypes matter; `None` in a `tf.TensorSpec` leaves a size
        open. Python values, as in `training=True`, are static, as in TensorFlow. The examples may
        be omitted if the function has one signature, and for a Keras model that knows its inputs.
        The batch of a Keras model, the first axis of all example arrays, stays open where that
        converts. Types are taken as they are.
    - `config`: see `Config`.

    **Returns:** a `Module`.

    **Raises:** `UnsupportedOpError`, `SignatureError`, `MalformedModelError`,
        `MissingDependencyError`.

    ??? example

        ```python
        import jax.numpy as jnp
        import tensorflow as tf
        from jax.experimental import jax2tf

        import invert

        served = tf.function(jax2tf.convert(jnp.cumsum), autograph=False)
        module = invert.roundtrip(served, jnp.ones(4))
        print(module.jaxpr)  # ... cumsum ...
        ```
    """
    from invert.frontends import tf_function
    from invert.frontends.signature import arrays_of, is_open

    if not config.sizes and (module := _for_every_batch(tf_fn, args, kwargs, config)) is not None:
        return module
    entry = tf_function.entry_point(tf_fn, args, kwargs or None, config=config)
    if config.sizes and (opened := _opened(entry, args, kwargs, config.sizes)) is not None:
        args, kwargs = opened
        entry = tf_function.entry_point(tf_fn, args, kwargs, config=config)
    # A program with open sizes is recovered when it is called.
    if is_open((args, kwargs)):
        return from_entry(entry, config)
    return from_entry(entry, config, *arrays_of(args, kwargs, entry))


def _for_every_batch(
    tf_fn: object, args: Sequence[object], kwargs: Mapping[str, object], config: Config
) -> Module | None:
    """The module of a Keras model for every batch size, if there is one."""
    from invert.frontends import keras_model, tf_function
    from invert.frontends.signature import arrays_of

    if not keras_model.is_layer(tf_fn):
        return None
    if (types := keras_model.with_open_batch(tf_fn, args, kwargs)) is None:
        return None
    try:
        entry = tf_function.entry_point(tf_fn, *types, config=config)
        function = _function(entry, config, *arrays_of(args, kwargs, entry))
    except InvertError:  # it takes only this batch, or the error has another cause
        return None
    home = function.home
    # A program that is not proved for every batch may be proved for this one.
    if home is None or not home.is_open:
        return None
    certificate = home.report.certificate
    unproved = config.verify and (certificate.before or certificate).kind != "exact"
    return None if unproved else build(function)


def _opened(
    entry: EntryPoint, args: Arguments, kwargs: Keywords, sizes: Mapping[str, str]
) -> CallArguments | None:
    """The examples with named sizes left open; `None` if they are all open already."""
    from invert.frontends.signature import arrays_of
    from invert.tf.ops.node import import_tensorflow

    tf = import_tensorflow()

    def own(x: TfObject) -> TfObject:  # an object per leaf, even if two hold the same array
        plain = hasattr(x, "shape") and hasattr(x, "dtype") and not isinstance(x, tf.TypeSpec)
        return jax.ShapeDtypeStruct(x.shape, x.dtype) if plain else x

    args, kwargs = jax.tree_util.tree_map(own, (tuple(args), dict(kwargs)))
    positional, keywords = arrays_of(args, kwargs, entry)
    given = dict(zip(entry.arg_names, positional, strict=False)) | keywords
    ordered = [given.get(n) for n in (*entry.arg_names, *entry.kwargs)]
    leaves = [x for x in jax.tree_util.tree_leaves(ordered) if hasattr(x, "shape")]
    changed: dict[int, TfObject] = {}
    for spec, leaf in zip(entry.specs, leaves, strict=False):
        shape = opened_sizes(spec, sizes[spec.name]) if spec.name in sizes else None
        if shape is not None and shape != spec.shape:
            changed[id(leaf)] = tf.TensorSpec(shape, tf.as_dtype(leaf.dtype))
    if len(entry.specs) != len(leaves) or not changed:
        return None
    return jax.tree_util.tree_map(lambda x: changed.get(id(x), x), (args, kwargs))


@_public
def convert(tf_fn: object, *args: object, config: Config = _DEFAULT, **kwargs: object) -> Module:
    """Convert any TensorFlow function; see `roundtrip` for the arguments and errors.

    ??? example

        ```python
        import keras

        import invert

        model = keras.models.load_model("model.keras")
        module = invert.convert(model)  # the batch is open
        inference = invert.convert(model, training=False)
        ```
    """
    return roundtrip(tf_fn, *args, config=config, **kwargs)


@_public
def convert_graphdef(
    graph_def: object,
    inputs: Sequence[str] | Mapping[str, str],
    outputs: Sequence[str] | Mapping[str, str],
    *,
    variables: Mapping[str, np.ndarray] | None = None,
    config: Config = _DEFAULT,
) -> Module:
    """Convert a bare graph, such as a frozen one.

    **Arguments:**

    - `graph_def`: the `GraphDef` proto or its bytes; or the path of a file with it, or of the
        `.meta` file of a TensorFlow 1 checkpoint, whose variables are then read, too.
    - `inputs`: names of the tensors to feed (`"x:0"`), in the order of the arguments; or a mapping
        from argument names to them.
    - `outputs`: names of the tensors to return. For one, the result is an array; for several, a
        tuple; for a mapping, a dictionary.
    - `variables`: values of the graph's variables, by name; they replace those of a checkpoint.

    **Returns:** a `Module`.

    **Raises:** `MalformedModelError`, `SignatureError`, `UnsupportedOpError`,
        `MissingDependencyError`.

    ??? example

        ```python
        import invert

        module = invert.convert_graphdef("frozen.pb", inputs=["x:0"], outputs={"out": "y:0"})
        ```
    """
    from invert.frontends import graph_file, graphdef

    stored: Mapping[str, Param] = {}
    if isinstance(graph_def, str | os.PathLike):
        graph_def, stored = graph_file.read(graph_def)
    entry = graphdef.entry_point(
        graph_def, inputs, outputs, variables=variables, stored=stored, config=config
    )
    return from_entry(entry, config)


@_public
def load(
    path: str | os.PathLike[str],
    *,
    signature: str | None = None,
    tags: Sequence[str] | None = None,
    mesh: Mesh | None = None,
    shardings: Mapping[str, PartitionSpec] | None = None,
    config: Config = _DEFAULT,
) -> Any:
    """Load a model from disk.

    **Arguments:**

    - `path`: a SavedModel directory, a `.keras` file, StableHLO (text, bytecode or portable
        artifact), a serialized `jax.export.Exported`, or a directory that `save` has written.
    - `signature`: the name of the function or signature to load. By default, all functions attached
        to the object of a SavedModel, or its signatures if there are none. For StableHLO, the
        public functions that no other function calls.
    - `tags`: the tags of the graph to load, for a SavedModel with several. By default `["serve"]`,
        or the graph without tags, which TensorFlow Hub modules have for inference.
    - `mesh`: devices to put the parameters on. Each reads only its part of the files.
    - `shardings`: how the parameters are split over `mesh`: specs by patterns of their names, as in
        `{"*/kernel": P(None, "model")}`; the first match counts. Other parameters are replicated.
        The program constrains those named. By default the shardings that a module was saved with.

    Loading a directory written by `save` imports its `model.py`, and so runs it; no code of the
    other containers is ever run. Its program is fixed: options of `config` that would change it are
    refused.

    **Returns:** a `Module` whose `params` are the variables. For several functions, a `Methods`
    with a method for each, on shared parameters. For a directory written by `save`, the Equinox
    module.

    **Raises:** `MalformedModelError`, `SignatureError`, `UnsupportedOpError`,
        `MissingDependencyError`; `MeshError` if a spec does not fit a parameter or the mesh.

    ??? example

        ```python
        import invert

        module = invert.load("saved_model")
        encode = invert.load("two_functions", signature="encode")
        print(module.summary())
        ```
    """
    path, kind = _container(path)
    if tags is not None and kind != "saved_model":
        raise SignatureError(
            f"{path} is not a SavedModel, so it has no tags", remedy="Leave out `tags`."
        )
    if signature is not None and kind == "saved":
        raise SignatureError(
            f"{path} was written by invert.save: its functions are methods of one class",
            remedy="Leave out `signature`, and call the method.",
        )
    if shardings is not None and mesh is None:
        raise MeshError("shardings need a mesh", remedy="Pass mesh=jax.make_mesh(...) too.")
    if kind == "saved":
        _refuse_options(path, config)
        return save.load_saved(path, mesh, shardings)
    plan = placement.ParameterPlacement(mesh, shardings or {})
    tags = [tags] if isinstance(tags, str) else tags
    if kind == "saved_model":
        return _load_saved_model(path, signature, tags, plan, config)
    return _build_all(path.name, _entries_of_file(path, kind, signature, config), plan, config)


def _refuse_options(path: Path, config: Config) -> None:
    """Refuse the options of a conversion for a program that was converted before."""
    without_effect = {"verify", "progress"}  # nothing is verified, and there are no stages
    if given := [name for name in config.changed() if name not in without_effect]:
        raise SignatureError(
            f"{path} was written by invert.save: its program is fixed, so that"
            f" {', '.join(given)} of the config would have no effect",
            remedy="Pass the config when you convert the original, and save that.",
        )


def _container(path: str | os.PathLike[str]) -> tuple[Path, _containers.Kind]:
    """The path of a container, and its kind."""
    if not isinstance(path, str | os.PathLike):
        raise SignatureError(
            f"load reads files, but got a {type(path).__name__}",
            remedy="Pass a TensorFlow function or a Keras model of this process to invert.convert.",
        )
    return _containers.place_of(path), _containers.kind_of(path)


def _load_saved_model(
    path: Path,
    signature: str | None,
    tags: Sequence[str] | None,
    plan: placement.ParameterPlacement,
    config: Config,
) -> Module | Methods:
    from invert.frontends import saved_model

    entries = saved_model.entry_points(path, signature=signature, tags=tags, config=config)
    names = list(entries) if signature is not None else saved_model.chosen_names(entries)
    if len(names) == 1:
        return from_entry(plan.entry(entries[names[0]]), config)
    return _build_methods(path.name, plan.entries(entries), names, config)


def _entries_of_file(
    path: Path, kind: _containers.Kind, signature: str | None, config: Config
) -> Mapping[str, EntryPoint]:
    """The entry points of a file, with its name in errors."""
    try:
        return _containers.entry_points(path, kind, config, signature=signature)
    except SignatureError as error:
        raise SignatureError(f"{path}: {error.reason}", remedy=error.remedy) from error
    except MalformedModelError as error:
        if str(path) in str(error):
            raise
        reason = f"{path}, read as a {_containers.NAMES[kind]}: {error.reason}"
        raise MalformedModelError(reason, remedy=error.remedy) from error


def _build_all(
    name: str, entries: Mapping[str, EntryPoint], plan: placement.ParameterPlacement, config: Config
) -> Module | Methods:
    """A module of one function, or of several."""
    if len(entries) > 1:
        return _build_methods(name, plan.entries(entries), list(entries), config)
    (entry,) = entries.values()
    return from_entry(plan.entry(entry), config)


@_public
def from_stablehlo(
    module: bytes | str | os.PathLike[str] | jax.stages.Lowered | jax.stages.Compiled,
    *,
    params: Mapping[str, object] | None = None,
    names: Mapping[str, str | Mapping[str, str] | Sequence[str]] | Sequence[str] | None = None,
    signature: str | None = None,
    config: Config = _DEFAULT,
) -> Any:
    """Raise a StableHLO module.

    **Arguments:**

    - `module`: MLIR text, MLIR bytecode or a StableHLO portable artifact, HLO as text or as an
        `HloModuleProto`, the `pathlib.Path` of a file with one of these, the result of
        `jax.jit(f).lower(x)`, or that of its `compile()`, the program after XLA's optimizations.
    - `params`: values of the arguments that are weights, by name, such as a state dict of PyTorch.
        They become the parameters of the module, under these names, which its functions share.
    - `names`: names for the arguments: of all in order, or a mapping from `arg0`, `arg1`, ... or
        the module's own names. For several functions a mapping from their names to such names.
    - `signature`: the name of the public function to load. By default all public functions that
        no other function calls.

    **Returns:** a `Module` over flat arguments, named as in the module; for several functions, a
        `Methods` with a method for each, on shared parameters.

    **Raises:** `MalformedModelError`, `SignatureError`, `UnsupportedOpError`.

    ??? example

        ```python
        from pathlib import Path

        import jax
        import jax.numpy as jnp
        import numpy as np

        import invert

        module = invert.from_stablehlo(jax.jit(jnp.sin).lower(jnp.ones(3)))

        names = ["fc2.bias", "fc2.weight", "fc1.bias", "fc1.weight", "x"]
        weights = dict(np.load("state_dict.npz"))
        module = invert.from_stablehlo(Path("forward.mlir"), names=names, params=weights)
        ```
    """
    from invert.frontends import stablehlo

    entries = stablehlo.entry_points(
        module, config=config, signature=signature, params=params, names=names
    )
    return _build_all("module", entries, placement.ParameterPlacement(None, {}), config)


@_public
def from_exported(
    exported: jax.export.Exported | bytes | bytearray,
    *,
    params: Mapping[str, object] | None = None,
    config: Config = _DEFAULT,
) -> Module:
    """Raise a `jax.export.Exported` or its serialized form.

    **Arguments:**

    - `params`: values of the arguments that are weights, such as the variables of a Flax or Haiku
        model: pytrees of arrays, by the names of the arguments, or `"arg0"`, `"arg1"`, ... by
        position. They become the parameters of the module, with their paths as names.

    **Returns:** a `Module` with the pytrees of the original.

    **Raises:** `MalformedModelError`, `SignatureError`, `UnsupportedOpError`.

    ??? example

        ```python
        from pathlib import Path

        import jax
        import jax.numpy as jnp

        import invert

        module = invert.from_exported(Path("exported.bin").read_bytes())

        weights = {"w": jnp.ones((3, 4))}
        layer = jax.jit(lambda weights, x: x @ weights["w"])
        exported = jax.export.export(layer)(weights, jnp.ones(3))
        module = invert.from_exported(exported, params={"weights": weights})
        ```
    """
    from invert.frontends import exported as frontend
    from invert.frontends import weights

    entry = frontend.entry_point(exported, config=config)
    return from_entry(entry if params is None else weights.as_parameters(entry, params), config)
