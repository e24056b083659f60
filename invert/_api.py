"""The flow in one screen: front end, raising, canonical form, patterns, module."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.export
import numpy as np

from invert import _containers, patterns
from invert._config import Config
from invert._entry import ArgSpec, EntryPoint, traced
from invert._errors import InvertError, SignatureError, nested_too_deep
from invert._opaque import platform_of
from invert._private.jax import open_jaxpr
from invert._report import Report
from invert._verify import Certificate, certify
from invert.gradients.cache import without_rules
from invert.gradients.settle import Settler, plain
from invert.ir import jaxprs
from invert.ir.match import equivalent
from invert.modules import save
from invert.modules.methods import Methods, build_methods
from invert.modules.module import Function, Module, Stage, build
from invert.patterns.rewrite import rewrite as rewrite
from invert.rewriting.driver import Rewriter
from invert.rewriting.pattern import Stage as PatternStage
from invert.rewriting.templates import raise_call

_DEFAULT = Config()
_STRICT_ORDER = "the comparators of its sorts are strict weak orders"


def recover(entry: EntryPoint, avals: Sequence[Any], config: Config) -> Stage:
    """Raises an entry point at the given argument types and rewrites it."""
    seconds = {}
    start = time.perf_counter()
    # Modules hold values of 64 bits whatever the session's setting.
    with nested_too_deep(entry.name), jax.enable_x64(True):
        config.begin(f"{entry.name}: raising")
        closed = traced(entry, avals)
        seconds["raise"] = time.perf_counter() - start
        start = time.perf_counter()
        closed = jaxprs.canonicalize(closed)
        seconds["canonicalize"] = time.perf_counter() - start
        start = time.perf_counter()
        config.begin(f"{entry.name}: recognizing patterns")
        raw, known = jaxprs.split_constants(plain(closed))
        platform = entry.platform or platform_of(jaxprs.opaque_targets(raw))
        closed, rewrites = _recognize(closed, platform, config)
        closed = jaxprs.merge_broadcasts(closed)
        seconds["patterns"] = time.perf_counter() - start
        start = time.perf_counter()
        config.begin(f"{entry.name}: comparing gradients")
        settle = Settler(
            lambda gradient: _recognize(gradient, platform, config)[0],
            config,
            platform,
            wide=jaxprs.has_wide_types(raw),
        )
        closed = settle(closed)
        seconds["gradients"] = time.perf_counter() - start
        wide = jaxprs.has_wide_types(raw)
        config.begin(f"{entry.name}: verifying")
        start = time.perf_counter()
        # The comparison is over the constants of the raw program; arrays come back after it.
        recovered = jaxprs.over_constants(closed, known)
        certificate = _certify(raw, recovered, known, platform, wide, config)
        if jaxprs.assumes_order(raw):
            certificate = dataclasses.replace(certificate, assumes=_STRICT_ORDER)
        seconds["verify"] = time.perf_counter() - start
        closed = jaxprs.without_hints(jaxprs.restore_arrays(closed))
        jaxpr, constants = jaxprs.split_constants(closed)
        notes: list[str] = []
        if config.bfloat16_constants:
            jaxpr, constants, notes = jaxprs.narrow_constants(
                jaxpr, constants, config.bfloat16_constants
            )
    counts = jaxprs.primitive_counts(jaxpr)
    report = Report(
        entry=entry.name,
        source=entry.source,
        primitives=counts,
        opaque=jaxprs.opaque_targets(jaxpr),
        rewrites=rewrites,
        seconds=seconds,
        certificate=certificate,
        gradients=tuple(settle.messages),
        notes=(*entry.notes(), *notes),
        bridged=_bridged(raw),
        sizes=_sizes(entry, avals),
    )
    return Stage(jaxpr, constants, report, wide)


def _sizes(entry: EntryPoint, avals: Sequence[Any]) -> tuple[str, ...]:
    """Types of the arguments that have open sizes."""
    specs: list[ArgSpec] = jax.tree_util.tree_leaves(
        (entry.args, dict(entry.kwargs)), is_leaf=lambda x: isinstance(x, ArgSpec)
    )
    return tuple(
        f"{spec.name}: {aval.dtype}[{','.join(map(str, aval.shape))}]"
        for spec, aval in zip(specs, avals, strict=False)
        if any(not isinstance(n, int) for n in spec.shape)
    )


def _bridged(raw: Any) -> Mapping[str, int]:
    """The ops that TensorFlow's XLA bridge compiled: each is a call of a function of its own."""
    calls = {name: n for name, n in jaxprs.call_counts(raw).items() if name.startswith("tf_")}
    if not calls:
        return {}
    from invert.tf.fallback.xla_bridge_ops import bridged_op

    return {op: n for name, n in calls.items() if (op := bridged_op(name)) is not None}


def _certify(
    raw: Any, jaxpr: Any, constants: Sequence[Any], platform: str, wide: bool, config: Config
) -> Certificate:
    if not config.verify:
        return Certificate("unverified", "switched off by Config(verify=False)")
    avals = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in raw.invars]
    by_signature = any(jaxprs.is_wide(v) for v in (*raw.invars, *raw.outvars))
    wide = wide and by_signature
    # Where no pattern applied, both lower to the same, whatever that is; rules and `stop_gradient`
    # leave nothing. Of a custom call that is all that can be said.
    one, two = (jaxprs.canonicalize(without_rules(plain(p))) for p in (raw, jaxpr))
    if not jaxprs.opaque_targets(raw) and equivalent(one, two, constants):
        return Certificate("exact")
    return certify(raw, jaxpr, avals, constants, platform=platform, wide=wide)


def _recognize(closed: Any, platform: str, config: Config) -> tuple[Any, Mapping[str, int]]:
    """Applies the patterns that are switched on."""
    stages = patterns.selected(config.patterns, config.disabled_patterns)
    if config.extra_patterns:
        stages = (*stages, PatternStage(tuple(config.extra_patterns)))
    if not stages:
        return closed, {}
    wide = jaxprs.wide_types(open_jaxpr(closed))
    rewriter = Rewriter(
        stages,
        raise_call,
        platform,
        x64=bool(wide),
        # Counters of random bits are of 64 bits in every session.
        x64_first=bool(wide - {np.dtype(np.uint64)}),
        named=jaxprs.is_named(closed),
    )
    return rewriter.run(closed), dict(sorted(rewriter.counts.items()))


def _build(
    entry: EntryPoint,
    config: Config,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
) -> Module:
    function = Function(entry, lambda entry, avals: recover(entry, avals, config), config)
    if function.is_static:
        function.begin([_Shape(spec.shape) for spec in function.specs])
    elif args or kwargs:
        values = function.flatten(args or (), kwargs or {})
        # A `tf.TensorSpec` may leave sizes open, as the function then does.
        if all(isinstance(n, int) for value in values for n in value.shape):
            function.begin(values)
    return build(function)


def _build_methods(
    name: str, entries: Mapping[str, EntryPoint], names: Sequence[str], config: Config
) -> Methods:
    """A module of several functions. What cannot be converted fails when it is called."""
    failed: dict[str, InvertError] = {}
    read: dict[str, EntryPoint] = {}
    for key in names:
        try:
            read[key] = entries[key]
        except InvertError as error:
            failed[key] = error
    assigned = {e.params[i].name for e in read.values() for i in e.assigned}
    functions: dict[str, Function] = {}
    for key, entry in read.items():
        stateful = any(p.name in assigned for p in entry.params)
        function = Function(
            entry, lambda entry, avals: recover(entry, avals, config), config, stateful=stateful
        )
        try:
            if function.is_static:
                function.begin([_Shape(spec.shape) for spec in function.specs])
            functions[key] = function
        except InvertError as error:
            failed[key] = error
    if not functions:
        raise next(iter(failed.values()))
    return build_methods(name, functions, failed)


class _Shape:
    """Stands for an array of which only the shape matters."""

    def __init__(self, shape: Sequence[Any]):
        self.shape = tuple(shape)


def roundtrip(tf_fn: Any, *args: Any, config: Config = _DEFAULT, **kwargs: Any) -> Module:
    """Brings a TensorFlow function home that was made with `jax2tf.convert`: JAX -> TF -> JAX.

    **Arguments:**

    - `tf_fn`: a `tf.function`, a `ConcreteFunction`, a function of a restored SavedModel, or the
        bare result of `jax2tf.convert`.
    - `args`, `kwargs`: example arguments (arrays, `jax.ShapeDtypeStruct` or `tf.TensorSpec`, in any
        pytree). Only their shapes and dtypes matter; `None` in a `tf.TensorSpec` leaves a size
        open. Python values, as in `training=True`, are fixed, as they are in TensorFlow. They may
        be left out where the function has one signature, and of a Keras model that knows its
        inputs, whose batch stays open then.
    - `config`: see `Config`.

    **Returns:** a `Module`.

    **Raises:** `UnsupportedOpError`, `SignatureError`, `MalformedModelError`,
        `MissingDependencyError`.
    """
    from invert.frontends import tf_function
    from invert.frontends.signature import arrays_of, is_open

    entry = tf_function.entry_point(tf_fn, args, kwargs or None, config=config)
    # The program of an open size is made when it is called with one.
    if is_open((args, kwargs)):
        return _build(entry, config)
    return _build(entry, config, *arrays_of(args, kwargs, entry))


def convert(tf_fn: Any, *args: Any, config: Config = _DEFAULT, **kwargs: Any) -> Module:
    """Converts any TensorFlow function; see `roundtrip` for the arguments and errors."""
    return roundtrip(tf_fn, *args, config=config, **kwargs)


def convert_graphdef(
    graph_def: Any,
    inputs: Sequence[str] | Mapping[str, str],
    outputs: Sequence[str] | Mapping[str, str],
    *,
    variables: Mapping[str, np.ndarray] | None = None,
    config: Config = _DEFAULT,
) -> Module:
    """Converts a bare graph, such as a frozen one.

    **Arguments:**

    - `graph_def`: the `GraphDef` proto or its bytes.
    - `inputs`: names of the tensors that are fed (`"x:0"`), in the order of the arguments; or a
        mapping from names of arguments to them.
    - `outputs`: names of the tensors that are returned. One: the result is an array; several: a
        tuple; a mapping: a dictionary.
    - `variables`: values of the variables of the graph, by name.

    **Returns:** a `Module`.

    **Raises:** `MalformedModelError`, `SignatureError`, `UnsupportedOpError`,
        `MissingDependencyError`.
    """
    from invert.frontends import graphdef

    entry = graphdef.entry_point(graph_def, inputs, outputs, variables=variables, config=config)
    return _build(entry, config)


def load(
    path: str | os.PathLike[str],
    *,
    signature: str | None = None,
    tags: Sequence[str] | None = None,
    config: Config = _DEFAULT,
) -> Any:
    """Loads a model from disk.

    **Arguments:**

    - `path`: a SavedModel directory, a `.keras` file, StableHLO (text, bytecode or portable
        artifact), a serialized `jax.export.Exported`, or a directory that `save` has written.
    - `signature`: name of the one function or signature wanted. By default the functions attached
        to the object of a SavedModel, or the signatures where there are none.
    - `tags`: tags of the graph wanted of a SavedModel that holds several. By default `["serve"]`,
        or the graph without tags, which a module of TensorFlow Hub has for inference.

    To read a directory that `save` has written imports its `model.py`, and so runs it; nothing of
    the others is ever run.

    **Returns:** a `Module` whose `params` are the variables; where there are several functions, a
        `Methods` with one method for each, on the same parameters; of a directory that `save` has
        written, the Equinox module.

    **Raises:** `MalformedModelError`, `SignatureError`, `UnsupportedOpError`,
        `MissingDependencyError`.
    """
    if not isinstance(path, str | os.PathLike):
        raise SignatureError(
            f"load reads files, and got a {type(path).__name__}; a TensorFlow function or a Keras "
            "model of this process is converted by invert.convert"
        )
    path, kind = _containers.place_of(path), _containers.kind_of(path)
    if tags is not None and kind != "saved_model":
        raise SignatureError(f"{path} is no SavedModel, so it has no graphs with tags")
    if kind == "saved":
        return save.load_saved(path)
    if kind == "saved_model":
        from invert.frontends import saved_model

        entries = saved_model.entry_points(path, signature=signature, tags=tags, config=config)
        names = [signature] if signature is not None else saved_model.chosen_names(entries)
        if len(names) == 1:
            return _build(entries[names[0]], config)
        return _build_methods(path.name, entries, names, config)
    entry = _containers.entry_point(path, kind, config)
    if signature not in (None, entry.name):
        raise SignatureError(f"{path} has one function, {entry.name!r}, and no {signature!r}")
    return _build(entry, config)


def from_stablehlo(
    module: bytes | str | os.PathLike[str] | jax.stages.Lowered, *, config: Config = _DEFAULT
) -> Module:
    """Raises a StableHLO module.

    **Arguments:**

    - `module`: MLIR text, MLIR bytecode or a StableHLO portable artifact, the `pathlib.Path` of a
        file that holds one, or what `jax.jit(f).lower(x)` gives.

    **Returns:** a `Module` over flat arguments, named as in the module.

    **Raises:** `MalformedModelError`, `UnsupportedOpError`.
    """
    from invert.frontends import stablehlo

    return _build(stablehlo.entry_point(module, config=config), config)


def from_exported(
    exported: jax.export.Exported | bytes | bytearray, *, config: Config = _DEFAULT
) -> Module:
    """Raises a `jax.export.Exported` or its serialized form.

    **Returns:** a `Module` with the pytrees of the original.

    **Raises:** `MalformedModelError`, `UnsupportedOpError`.
    """
    from invert.frontends import exported as frontend

    return _build(frontend.entry_point(exported, config=config), config)
