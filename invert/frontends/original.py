"""Runs a container with its own library, to compare the recovered module with it."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import jax.export
import numpy as np

from invert._private.tensorflow import TfObject, tf_concrete_functions
from invert.ir.types import Arguments, CallArguments, Keywords, Value
from invert.tf.ops.node import import_tensorflow

# Takes `(args, kwargs)` in the structure of the signature and returns the flat results.
Original = Callable[[Arguments, Keywords], Sequence[Value]]


def of_saved_model(path: str | os.PathLike[str], name: str) -> Original:
    """A function of a SavedModel, run by TensorFlow."""
    from invert.frontends.run_saved_model import load_function
    from invert.frontends.signature import call_arguments, distinct, trace_names

    function, owner = load_function(path, name)
    concrete = function
    if hasattr(function, "get_concrete_function"):  # it would choose a trace by the arguments
        concretes = distinct(tf_concrete_functions(function))
        traces = dict(zip(trace_names(name.partition("(")[0], concretes), concretes, strict=True))
        concrete = traces.get(name, concretes[0])
    arguments = functools.partial(call_arguments, concrete, function)
    return _TensorFlow(concrete, arguments, owner=owner)


def of_keras(path: str | os.PathLike[str]) -> Original:
    """The Keras model of a file, at inference."""
    from invert.frontends import keras_archive

    model = keras_archive.load(Path(path))
    return _TensorFlow(lambda x: model(x, training=False))


def of_graph(place: Path, inputs: Sequence[str], outputs: Sequence[str]) -> Original:
    """A bare graph as a function between these tensors."""
    from invert.frontends.graphdef import full

    tf = import_tensorflow()
    if place.suffix == ".meta":
        graph_def = _frozen(place, [name.partition(":")[0] for name in outputs])
    else:
        graph_def = tf.compat.v1.GraphDef.FromString(place.read_bytes())
    wrapped = tf.compat.v1.wrap_function(
        lambda: tf.graph_util.import_graph_def(graph_def, name=""), []
    )
    graph = wrapped.graph
    fed, returned = (
        [graph.as_graph_element(full(n)) for n in names] for names in (inputs, outputs)
    )
    return _TensorFlow(wrapped.prune(fed, returned))


def _frozen(meta: Path, nodes: Sequence[str]) -> TfObject:
    """The graph of a TensorFlow 1 checkpoint, with its variables as constants."""
    v1 = import_tensorflow().compat.v1
    with v1.Graph().as_default() as graph, v1.Session() as session:
        v1.train.import_meta_graph(str(meta)).restore(session, str(meta.with_suffix("")))
        return v1.graph_util.convert_variables_to_constants(session, graph.as_graph_def(), nodes)


def of_exported(data: bytes) -> Original:
    """A `jax.export` artifact, run by JAX."""
    exported = jax.export.deserialize(bytearray(data))
    return lambda args, kwargs: jax.tree_util.tree_leaves(exported.call(*args, **kwargs))


def _tensors(args: Arguments, kwargs: Keywords) -> CallArguments:
    return jax.tree_util.tree_map(import_tensorflow().constant, (tuple(args), dict(kwargs)))


@dataclasses.dataclass(frozen=True)
class _TensorFlow:
    """A function run by TensorFlow.

    `arguments` makes its arguments from those of the module; `owner` holds its variables.
    """

    function: TfObject
    arguments: Callable[[Arguments, Keywords], CallArguments] = _tensors
    owner: TfObject = None

    def __call__(self, args: Arguments, kwargs: Keywords) -> list[np.ndarray]:
        tf = import_tensorflow()
        args, kwargs = self.arguments(args, kwargs)
        try:
            results = self.function(*args, **kwargs)
        except tf.errors.OpError as error:  # such as StableHLO of a newer version than TensorFlow's
            raise RuntimeError(error.message) from error
        results = tf.nest.flatten(results, expand_composites=True)
        return [np.asarray(x) for x in results if x is not None]
