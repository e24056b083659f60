"""Function libraries, shared by the graphs of one model."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from weakref import WeakValueDictionary

import numpy as np

from invert.ir.arrays import KnownBytes
from invert.protos.file_parts import NO_PARTS, FileParts, own_graph
from invert.protos.messages import message, own
from invert.protos.tensors import decode_tensor
from invert.protos.types import FunctionDef, FunctionDefLibrary, GraphDef, OpDef, TensorProto
from invert.tf.graph.body import implementations
from invert.tf.graph.functionalize import with_calls


@dataclasses.dataclass(frozen=True, eq=False)
class Library:
    """A graph and the functions it calls, indexed once.

    **Attributes:**

    - `graph`: the `GraphDef`.
    - `functions`, `signatures`: the `FunctionDef` and its `OpDef` by name.
    - `selected`: replacements of functions by device-specific implementations, by name.
    - `parts`: large parts that stay in the graph's file, or in its bytes.
    - `known_bytes`: large constants of its programs, held weakly.
    """

    graph: GraphDef
    functions: Mapping[str, FunctionDef]
    signatures: Mapping[str, OpDef]
    selected: Mapping[str, str]
    parts: FileParts = NO_PARTS
    known_bytes: KnownBytes = dataclasses.field(default_factory=WeakValueDictionary)

    @classmethod
    def of(cls, graph_def: object, parts: FileParts = NO_PARTS) -> Library:
        """The library of a `GraphDef`, whichever message classes it uses."""
        if isinstance(graph_def, Library):
            return graph_def
        if parts is NO_PARTS:
            graph_def, parts = own_graph(graph_def)
        graph = with_calls(own(graph_def, GraphDef, "the graph"))
        functions = {f.signature.name: f for f in graph.library.function}
        signatures = {name: f.signature for name, f in functions.items()}
        return cls(graph, functions, signatures, implementations(graph.library), parts)

    def constant(self, value: TensorProto, location: str) -> np.ndarray:
        """A constant of the graph or of its functions, decoded; a large one once."""
        decode = functools.partial(decode_tensor, value, location)
        return self.parts.array(value.tensor_content, decode)

    @property
    def proto(self) -> FunctionDefLibrary:
        """The `FunctionDefLibrary`."""
        return self.graph.library

    @classmethod
    def empty(cls) -> Library:
        """An empty library."""
        return cls.of(message(GraphDef)())
