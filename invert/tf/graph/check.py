"""Checks the nodes of a graph against the definitions of their ops.

Rules then get well-typed nodes: attributes are present and of the right kind, inputs have the right
number and types, and used outputs exist. Kinds, types and limits come from TensorFlow's op
registry. Nodes of unknown ops are skipped, since those are reported elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from invert._errors import MalformedModelError, Problem
from invert.protos.ops import Definition
from invert.protos.tensors import REFERENCE, type_name
from invert.protos.types import NodeDef, OpDef
from invert.tf.ops.definition import Run, fits, type_at, types_of
from invert.tf.ops.form import Form, form_of

# Further problems are only counted.
_SHOWN = 20

# For each attribute that is a function, or a list of functions, the attributes with the types of
# its arguments and of its results; `None`: one predicate. Op names without `Stateless` and
# `Stateful`.
_TYPES = ("Tin", "Tout")
_CALLED: dict[str, dict[str, tuple[str, str | None]]] = {
    "Case": {"branches": _TYPES},
    "If": {"then_branch": _TYPES, "else_branch": _TYPES},
    "PartitionedCall": {"f": _TYPES},
    "RemoteCall": {"f": _TYPES},
    "While": {"cond": ("T", None), "body": ("T", "T")},
}


def data_inputs(node: NodeDef) -> list[str]:
    """The tensors that a node takes, without the nodes that only run before it."""
    return [text for text in node.input if not text.startswith("^")]


def parse_tensor(text: str) -> tuple[str, str, int]:
    """Split a tensor's name into node, optional output name, and number.

    **Raises:** `MalformedModelError` if the text is not the name of a tensor.
    """
    if ":" not in text:
        return text, "", 0
    name, *rest = text.split(":")
    if len(rest) > 2 or not (rest[-1].isascii() and rest[-1].isdigit()):
        raise MalformedModelError(f"the graph refers to {text!r}, which is not a tensor")
    return name, rest[0] if len(rest) == 2 else "", int(rest[-1])


def past_identities(text: str, nodes: Mapping[str, NodeDef]) -> tuple[str, int]:
    """The node and the output that a tensor passes on."""
    name, _, number = parse_tensor(text)
    for _ in nodes:
        node = nodes.get(name)
        if node is None or node.op != "Identity" or not node.input:
            break
        name, _, number = parse_tensor(node.input[0])
    return name, number


def checked(
    nodes: Iterable[NodeDef],
    args: Mapping[str, int],
    outputs: Sequence[tuple[str, int]],
    *,
    op_def: Callable[[str], Definition | None],
    signatures: Mapping[str, OpDef],
    function: str = "",
) -> tuple[list[NodeDef], dict[str, Form]]:
    """The `NodeDef` protos of a graph or function, attributes filled in; their forms.

    **Arguments:**

    - `args`: the arguments with their types; nodes of these names are arguments, whatever their op.
    - `outputs`: names of the results with their types. A type of 0 is unknown.
    - `function`: name of the function; empty for the outermost graph.
    - `op_def`: returns the definition of an op type, or `None` if it is unknown.
    - `signatures`: the signatures of the library functions.

    **Raises:** `MalformedModelError` that lists all problems.
    """
    graph = _Checked(args, function, op_def, signatures)
    kept = [graph.add(node) for node in nodes]
    for node in kept:
        graph.check_inputs(node)
    graph.check_outputs(outputs)
    if graph.problems:
        shown = [f"\n  - {p}" for p in graph.problems[:_SHOWN]]
        more = len(graph.problems) - len(shown)
        where = f" function {function!r} of the" if function else ""
        raise MalformedModelError(
            f"the{where} graph is damaged:{''.join(shown)}"
            + (f"\n  and {more} more" if more else "")
        )
    return kept, graph.forms


class _Checked:
    def __init__(
        self,
        args: Mapping[str, int],
        function: str,
        op_def: Callable[[str], Definition | None],
        signatures: Mapping[str, OpDef],
    ):
        self.problems: list[Problem] = []
        self._where = f" of function {function!r}" if function else ""
        self._op_def = op_def
        self._signatures = signatures
        self._args = args
        # The types of each node's outputs, where known.
        self._outputs: dict[str, list[Run] | None] = {
            name: [(1, kind)] for name, kind in args.items()
        }
        self.forms: dict[str, Form] = {}
        self._nodes: dict[str, NodeDef] = {}
        self._seen: set[str] = set()

    def _report(self, node: NodeDef, reason: str) -> None:
        self._add(f"tf.{node.op}", reason, f"node {node.name!r}{self._where}")

    def _add(self, op: str, reason: str, location: str) -> None:
        # The error that lists all of them has a remedy.
        self.problems.append(Problem(op, reason, location, remedy=""))

    def add(self, node: NodeDef) -> NodeDef:
        """The node with all its attributes; reports problems with them."""
        if node.name in self._seen:
            self._report(node, "has the name of another node")
        self._seen.add(node.name)
        if node.name in self._args:
            return node
        self._outputs[node.name] = None
        definition = self._op_def(node.op)
        if definition is None:
            return node
        form = form_of(node, definition)
        problems = form.problems or self._call_problems(node)
        if problems:
            for reason in problems:
                self._report(node, reason)
            return node
        self._outputs[node.name] = form.outputs
        self._nodes[node.name] = node
        self.forms[node.name] = form
        return node

    def _call_problems(self, node: NodeDef) -> list[str]:
        """Type mismatches between a node and the functions that it calls."""
        found = []
        op = node.op.removeprefix("Stateless").removeprefix("Stateful")
        for key, (inputs, outputs) in _CALLED.get(op, {}).items():
            value = node.attr[key]
            for function in [value.func] if value.HasField("func") else value.list.func:
                signature = self._signatures.get(function.name)
                if signature is None:
                    continue  # reported where it is called
                given = [a.type for a in signature.input_arg]
                if not _same(given, list(node.attr[inputs].list.type)):
                    found.append(f"calls {function.name!r} with arguments that it does not take")
                given = [a.type for a in signature.output_arg]
                wanted = [0] if outputs is None else list(node.attr[outputs].list.type)
                if not _same(given, wanted):
                    found.append(f"calls {function.name!r} for results that it does not return")
        return found

    def check_inputs(self, node: NodeDef) -> None:
        """Report missing inputs and inputs of the wrong type."""
        if node.name in self._args:
            return
        given = []
        for text in node.input:
            if text[:1] == "^":
                if text[1:] not in self._outputs:
                    self._report(node, f"waits for {text[1:]!r}, which the graph does not have")
            else:
                given.append((text, self._type(node, text)))
        if (form := self.forms.get(node.name)) is None:
            return
        wanted = form.inputs
        count = sum([n for n, _ in wanted])
        if count != len(given):
            self._report(node, f"has {len(given)} inputs, but the op takes {count}")
            return
        for i, (text, kind) in enumerate(given):
            expected = type_at(wanted, i)
            if kind is not None and expected is not None and not fits(kind, expected):
                self._report(
                    node, f"takes {_name(expected)} as input {i}, but {text!r} is {_name(kind)}"
                )

    def _named(self, name: str, output: str) -> Iterable[Run]:
        """The types of a named output of a node."""
        node = self._nodes.get(name)
        definition = None if node is None else self._op_def(node.op)
        if node is None or definition is None:
            return ()
        return types_of([a for a in definition.output_arg if a.name == output], node.attr)

    def check_outputs(self, outputs: Sequence[tuple[str, int]]) -> None:
        """Report results that are missing or whose type is not the declared one."""
        for text, wanted in outputs:
            kind = self._type(None, text)
            if kind is not None and not fits(kind, wanted):
                reason = f"{text!r} is {_name(kind)}, but the signature says {_name(wanted)}"
                self._add("result", reason, self._where.removeprefix(" of "))

    def _type(self, node: NodeDef | None, text: str) -> int | None:
        """The type of a referenced tensor; `None` if unknown."""
        reason = "which the graph does not have"
        try:
            name, output, index = parse_tensor(text)
        except MalformedModelError:
            name, output, index = "", "", 0
        if name in self._outputs:
            outputs = self._outputs[name]
            if outputs is None:
                return 0
            kind = type_at(self._named(name, output) if output else outputs, index)
            if kind is not None:
                return kind
            reason = f"which is not among the outputs of {name!r}"
        if node is None:
            self._add("result", f"is {text!r}, {reason}", self._where.removeprefix(" of "))
        else:
            self._report(node, f"has an input {text!r}, {reason}")
        return None


def _same(given: Sequence[int], wanted: Sequence[int]) -> bool:
    """Return whether two lists of types agree where both are known."""
    return len(given) == len(wanted) and all(
        a == b or not a or not b for a, b in zip(given, wanted, strict=True)
    )


def _name(kind: int) -> str:
    if not kind:
        return "of unknown type"
    return f"a reference to {type_name(kind - REFERENCE)}" if kind >= REFERENCE else type_name(kind)
