"""Cuts off the string-processing front of a graph; its numeric results become arguments."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from invert._entry import unique
from invert.ir.order import reached
from invert.protos.ops import Definition
from invert.protos.tensors import decode_dtype, decode_shape
from invert.tf.graph.body import as_needed, ordered
from invert.tf.interpreter.analysis import Analysis
from invert.tf.interpreter.graph import Graph
from invert.tf.ops.definition import type_at, types_of
from invert.tf.ops.node import CALLS, Body, Node

_STRING = 7  # DT_STRING of tensorflow/core/framework/types.proto
_RESOURCE, _VARIANT = 20, 21  # DT_RESOURCE, DT_VARIANT
_VARIABLES = frozenset(("VarHandleOp", "VariableV2", "Variable"))

# The ops that read serialized examples: their results are features by name.
PARSERS = frozenset(("ParseExample", "ParseExampleV2", "ParseSingleExample"))

# Deeper calls are not inlined, to end recursion.
_DEEPEST = 100

# The index of a node, and which of its outputs.
Tensor = tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Feature:
    """A tensor that becomes an argument.

    **Arguments:**

    - `name`: its name.
    - `shape`: its sizes, `None` for open ones; `None` if the rank is unknown.
    """

    name: str
    shape: tuple[int | None, ...] | None
    dtype: np.dtype


@dataclasses.dataclass(frozen=True)
class Split:
    """The new arguments of a graph: those `kept`, then the `features`.

    **Arguments:**

    - `kept`: numbers of the arguments that remain.
    - `features`: the tensors that follow them.
    - `front`: the nodes that are cut off.
    """

    kept: tuple[int, ...]
    features: tuple[Feature, ...]
    front: tuple[Node, ...]


def split(
    graph: Graph,
    arguments: Sequence[tuple[tuple[int | None, ...] | None, np.dtype]],
    known: Sequence[bool],
    weights: Sequence[bool],
    *,
    text: bool,
) -> Split | None:
    """Cut the front off the main body of a graph.

    The front is everything needed for the results of string ops that depend only on arguments.
    Tables and constants belong to it; variables do not.

    **Arguments:**

    - `arguments`: shapes and types of the arguments, the first inputs of the graph.
    - `known`: for each input, whether it is a constant.
    - `weights`: for each input, whether it is a variable.
    - `text`: whether to cut off all string ops that depend on arguments; otherwise only those that
        read serialized examples.

    **Returns:** `None` without such an op; the graph is then unchanged.

    **Raises:** `UnsupportedOpError` if a tensor in between is not an array.
    """
    roots = _roots(graph, known, text=text)
    front = _Front(graph, arguments, weights, roots, text=text)
    if not front.nodes:
        return None
    body = graph.main
    order = [i for i in as_needed(body) if i not in front.nodes]
    cut = list(dict.fromkeys(
        source
        for source in (*(s for i in order for s in body.nodes[i].inputs), *body.outputs)
        if source[0] in front.nodes
    ))  # fmt: skip
    features = front.features(cut)
    used = {j for i in order for j, _ in body.nodes[i].inputs} | {j for j, _ in body.outputs}
    count = len(arguments)
    kept = [k for k in range(count) if body.args[k] in used or not front.reads(body.args[k])]
    graph.main = _without(graph, cut, kept, count, front.nodes)
    return Split(
        tuple(kept), tuple(features), tuple(body.nodes[i] for i in body.order if i in front.nodes)
    )


def _roots(graph: Graph, known: Sequence[bool], *, text: bool) -> set[Node]:
    """The ops that end the front; calls that contain some are inlined first."""
    for _ in range(_DEEPEST):
        unknown = Analysis(graph, known).unknown
        roots = {n for n in unknown if text or n.op in PARSERS}
        held: dict[str, bool] = {}
        holding = [i for i in graph.main.order if _holds(graph, graph.main.nodes[i], roots, held)]
        calls = [i for i in holding if graph.main.nodes[i].op in CALLS]
        if not calls:
            # A loop or branch that contains such an op counts as one.
            return roots | {graph.main.nodes[i] for i in holding}
        graph.main = _inlined(graph, calls)
    return set()


def _holds(graph: Graph, node: Node, roots: set[Node], held: dict[str, bool]) -> bool:
    """Return whether a function that a node calls contains such ops."""
    found = False
    for name in node.functions if node.op != "XlaCallModule" else ():
        if name not in held:
            held[name] = False  # for functions that call themselves
            body = graph.body(name)
            inner = [body.nodes[i] for i in body.order]
            held[name] = any(n in roots or _holds(graph, n, roots, held) for n in inner)
        found = found or held[name]
    return found


def _inlined(graph: Graph, calls: Iterable[int]) -> Body:
    """The main body with some calls inlined."""
    main = graph.main
    nodes = list(main.nodes)
    results: dict[int, Sequence[Tensor]] = {}
    waits: dict[int, tuple[int, ...]] = {}
    for i in calls:
        call, body = main.nodes[i], graph.body(main.nodes[i].functions[0])
        offset, number = len(nodes), {a: k for k, a in enumerate(body.args)}

        def moved(
            source: Tensor, call: Node = call, number: dict[int, int] = number, offset: int = offset
        ) -> Tensor:
            j, k = source
            return call.inputs[number[j]] if j in number else (offset + j, k)

        for node in body.nodes:
            copy = graph.copied(node)
            copy.inputs = tuple(map(moved, node.inputs))
            copy.control = (*(moved((j, 0))[0] for j in node.control), *call.control)
            nodes.append(copy)
        results[i] = [moved(source) for source in body.outputs]
        ends = (*body.controls, *(j for j, _ in body.outputs))
        waits[i] = tuple(dict.fromkeys(moved((j, 0))[0] for j in ends))

    def found(source: Tensor) -> Tensor:
        while source[0] in results:
            source = results[source[0]][source[1]]
        return source

    def waited(control: Iterable[int]) -> tuple[int, ...]:
        pending = list(control)
        for i in pending:  # grows
            pending += waits.get(i, ())
        return tuple(dict.fromkeys(i for i in pending if i not in waits))

    for k, node in enumerate(nodes):
        if k < len(main.nodes):
            nodes[k] = graph.copied(node)
        nodes[k].inputs, nodes[k].control = tuple(map(found, node.inputs)), waited(node.control)
    body = dataclasses.replace(
        main,
        nodes=tuple(nodes),
        outputs=tuple(map(found, main.outputs)),
        controls=waited(main.controls),
    )
    return ordered(body, graph.is_effect)


class _Front:
    """The nodes before the first numeric results.

    **Attributes:**

    - `nodes`: their indices in the main body.
    """

    def __init__(
        self,
        graph: Graph,
        arguments: Sequence[tuple[tuple[int | None, ...] | None, np.dtype]],
        weights: Sequence[bool],
        roots: set[Node],
        *,
        text: bool,
    ):
        self._graph = graph
        self._body = body = graph.main
        self._arguments = dict(zip(body.args, arguments, strict=False))
        weighted = {a for a, w in zip(body.args, weights, strict=True) if w}
        texts = {a for a, (_, dtype) in self._arguments.items() if dtype.kind == "O"}
        tainted, ends = set(texts), set[int]()
        for i in body.order:
            node = body.nodes[i]
            sources = {j for j, _ in node.inputs}
            if sources & weighted or node.op in _VARIABLES:
                weighted.add(i)
            if node in roots or sources & tainted:
                tainted.add(i)
            # Strings, and ragged, sparse or list values, are not arrays yet.
            loose = node.op.startswith(("Ragged", "Sparse")) and i in tainted
            loose = loose or any(
                j in tainted and self._type(j, k) in (_STRING, _VARIANT) for j, k in node.inputs
            )
            if (node in roots or (text and loose)) and i not in weighted:
                ends.add(i)
        self.nodes = self._before(ends, tainted - weighted) - set(body.args)

    def _before(self, ends: set[int], among: set[int]) -> set[int]:
        nodes = self._body.nodes
        return set(reached(ends, lambda i: (j for j, _ in nodes[i].inputs if j in among)))

    def reads(self, arg: int) -> bool:
        """Return whether a node of the front depends on an argument."""
        return any(j == arg for i in self.nodes for j, _ in self._body.nodes[i].inputs)

    def _type(self, index: int, number: int) -> int:
        """The `DataType` of a tensor; 0 if unknown."""
        node = self._body.nodes[index]
        if index in self._arguments:
            return _STRING if self._arguments[index][1].kind == "O" else 0
        definition = self._graph.op_def(node.op)
        if definition is None:  # reported elsewhere
            return 0
        return type_at(types_of(definition.output_arg, node.attrs), number) or 0

    def features(self, cut: Sequence[Tensor]) -> list[Feature]:
        """The cut tensors, described as arguments of the rest."""
        found, taken = [], set[str]()
        names = [self._name(i, k) for i, k in cut]
        for (i, k), name in zip(cut, names, strict=True):
            node, kind = self._body.nodes[i], self._type(i, k)
            if kind in (0, _RESOURCE, _VARIANT):
                reason = "passes a value that is not an array to the rest of the program"
                raise node.error(
                    reason, "Pass arrays there, or convert only what follows the text ops."
                )
            if names.count(name) > 1:
                name = f"{name}_{_identifier(node.name.rpartition('/')[2])}"
            found.append(Feature(unique(name, taken), self._shape(i, k), decode_dtype(kind)))
        return found

    # -- names

    def _name(self, index: int, number: int) -> str:
        node = self._body.nodes[index]
        if node.op in PARSERS:
            return _identifier(self._keys(node)[number])
        *scopes, last = node.name.split("/")
        if len(scopes) > 1:  # the model and its layer
            return _identifier(scopes[1])
        origins = self._origins(index)
        name = origins.pop() if len(origins) == 1 else scopes[0] if scopes else last
        return _identifier(name)

    def _origins(self, index: int) -> set[str]:
        """The arguments and features on which a node of the front depends."""
        nodes = self._body.nodes

        def ends(i: int) -> bool:
            return i in self._arguments or nodes[i].op in PARSERS

        inner = reached([index], lambda i: (j for j, _ in nodes[i].inputs if not ends(j)))
        return {
            nodes[j].name if j in self._arguments else self._keys(nodes[j])[k]
            for i in inner
            for j, k in nodes[i].inputs
            if ends(j)
        }

    def _definition(self, node: Node) -> Definition:
        definition = self._graph.op_def(node.op)
        assert definition is not None, f"{node.op} is an op of TensorFlow"
        return definition

    def _keys(self, node: Node) -> list[str]:
        """The names of the results of an op that parses examples."""
        kinds = {"sparse": 0, "ragged": 0, "dense": 0}
        names: dict[str, list[str]] = {k: [] for k in kinds}
        definition = self._definition(node)
        at = 0
        for arg in definition.input_arg:
            if arg.type_list_attr:
                count = len(node.attrs[arg.type_list_attr].list.type)
            else:
                count = node.attrs[arg.number_attr].i if arg.number_attr else 1
            kind, _, what = arg.name.partition("_")
            if what == "keys" and kind in names:
                for source in node.inputs[at : at + count]:
                    names[kind] += self._texts(source)
            at += count
        for kind in ("sparse", "dense"):  # for a single example they are attributes
            if f"{kind}_keys" in node.attrs:
                names[kind] = [s.decode() for s in node.attrs[f"{kind}_keys"].list.s]
        found: list[str] = []
        for arg in definition.output_arg:
            kind, _, what = arg.name.partition("_")
            keys = names[kind]
            total = sum(n for n, _ in types_of([arg], node.attrs))
            own = [k if kind == "dense" else f"{k}_{what}" for k in keys]
            found += (own + [f"{kind}_{what}"] * total)[:total]
        return found

    def _texts(self, source: Tensor) -> list[str]:
        node = self._body.nodes[source[0]]
        while node.op == "Identity":
            node = self._body.nodes[node.inputs[0][0]]
        if node.op != "Const":
            return []
        return [t.decode("utf-8", "replace") for t in self._graph.constant(node).ravel().tolist()]

    # -- shapes

    def _shape(self, index: int, number: int) -> tuple[int | None, ...] | None:
        """The shape declared by the graph, or implied by the op; `None` if unknown."""
        node = self._body.nodes[index]
        if index in self._arguments:
            return self._arguments[index][0]
        if "_output_shapes" in node.attrs:
            shapes = node.attrs["_output_shapes"].list.shape
            if number < len(shapes) and (shape := decode_shape(shapes[number])) is not None:
                return shape
        if node.op in PARSERS:
            return self._parsed_shape(node, number)
        of = _SHAPED_LIKE.get(node.op)
        return None if of is None else self._shape(*node.inputs[of])

    def _parsed_shape(self, node: Node, number: int) -> tuple[int | None, ...] | None:
        batch = () if node.op == "ParseSingleExample" else self._shape(*node.inputs[0])
        batch = (None,) if batch is None else batch
        at = number
        for arg in self._definition(node).output_arg:
            count = sum(n for n, _ in types_of([arg], node.attrs))
            if at < count:
                if arg.name == "dense_values":
                    own = decode_shape(node.attrs["dense_shapes"].list.shape[at])
                    return None if own is None else (*batch, *own)
                if arg.name == "sparse_indices":
                    return (None, len(batch) + 1)
                return (len(batch) + 1,) if arg.name == "sparse_shapes" else (None,)
            at -= count
        return None


# Ops whose result has the shape of an input: its index.
_SHAPED_LIKE: Mapping[str, int] = {
    **dict.fromkeys(("LookupTableFind", "LookupTableFindV2"), 1),
    **dict.fromkeys(
        """
        AsString Cast Identity RegexFullMatch RegexReplace StaticRegexFullMatch StaticRegexReplace
        StringLength StringLower StringStrip StringToHashBucket StringToHashBucketFast
        StringToHashBucketStrong StringToNumber StringUpper
        """.split(),
        0,
    ),
}


def _identifier(name: str) -> str:
    return re.sub(r"\W+", "_", name).strip("_") or "feature"


def _without(
    graph: Graph, cut: Sequence[Tensor], kept: Sequence[int], count: int, front: set[int]
) -> Body:
    """The main body with some tensors replaced by new arguments."""
    body = graph.main
    place = {source: (len(body.nodes) + k, 0) for k, source in enumerate(cut)}
    nodes: list[Node] = []
    for node in body.nodes:
        copy = graph.copied(node)
        copy.inputs = tuple(place.get(s, s) for s in node.inputs)
        copy.control = tuple(j for j in node.control if j not in front)
        nodes.append(copy)
    nodes += [Node("_Arg", body.nodes[i].name, {}) for i, _ in cut]
    args = (
        *(body.args[k] for k in kept),
        *(i for i, _ in place.values()),
        *body.args[count:],
    )
    new = dataclasses.replace(
        body,
        nodes=tuple(nodes),
        args=args,
        outputs=tuple(place.get(s, s) for s in body.outputs),
        controls=tuple(i for i in body.controls if i not in front),
    )
    return ordered(new, graph.is_effect)
