"""Control flow of TensorFlow 1 as functions: `Switch` and `Merge` become `If`, frames `While`.

A frame of TensorFlow 1 is a cycle in the graph. For each variable, `Enter` and `NextIteration` meet
in a `Merge`. A `Switch` on the `LoopCond` leads to the body or to `Exit`
(tensorflow/python/ops/control_flow_ops.py, TensorFlow 2.21).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from invert._errors import MalformedModelError, Problem, UnsupportedOpError
from invert.ir.order import reached
from invert.protos.messages import message
from invert.protos.types import AttrValue, FunctionDef, GraphDef, NodeDef, OpDef
from invert.tf.graph.check import parse_tensor
from invert.tf.ops.node import FRAMES_REMEDY, Node

Tensor = tuple[str, int]  # node and number of the output; -1 for a control edge

_ENTERS = ("Enter", "RefEnter")
_MERGES = ("Merge", "RefMerge")
_SWITCHES = ("Switch", "RefSwitch")
_NEXTS = ("NextIteration", "RefNextIteration")
_EXITS = ("Exit", "RefExit")
# Of tensorflow/core/framework/types.proto.
_INT32, _BOOL = 3, 10


@dataclasses.dataclass(frozen=True)
class MadeFunction:
    """A function made from a part of the graph.

    **Arguments:** names of the arguments, nodes, names of the results, and names of further nodes
    that have to run.
    """

    args: tuple[str, ...]
    nodes: tuple[NodeDef, ...]
    outputs: tuple[str, ...]
    controls: tuple[str, ...]


def holds_frames(nodes: Iterable[NodeDef]) -> bool:
    """Return whether any `NodeDef` proto is TensorFlow 1 control flow."""
    return not {n.op for n in nodes}.isdisjoint((*_ENTERS, *_SWITCHES))


def functionalize(
    nodes: Iterable[NodeDef], prefix: str, roots: Iterable[str], fed: Iterable[str]
) -> tuple[list[NodeDef], dict[str, MadeFunction]]:
    """Turn TensorFlow 1 control flow into functions; return nodes and functions.

    **Arguments:**

    - `prefix`: put in front of the names of the functions.
    - `roots`: names of the tensors and nodes that are needed; all others are ignored.
    - `fed`: names of the nodes that are arguments.

    **Raises:** `MalformedModelError` if a frame is not built as TensorFlow builds frames.
    """
    nodes = list(nodes)
    if not holds_frames(nodes):
        return nodes, {}
    fed = set(fed)
    roots = list(roots)
    rewriter = _Rewriter(_needed(nodes, roots, fed), prefix, fed, map(_parse, roots))
    rewriter.level_stacks()
    while frame := rewriter.innermost_frame():
        rewriter.loop(frame)
    while group := rewriter.innermost_merges():
        rewriter.branch(group)
    rewriter.leave_branches()
    return list(rewriter.nodes.values()), rewriter.functions


def _parse(text: str) -> Tensor:
    if text.startswith("^"):
        return text[1:], -1
    name, output, port = parse_tensor(text)
    if output:
        raise MalformedModelError(f"a graph refers to {text!r}, but its outputs have no names")
    return name, port


def _text(tensor: Tensor) -> str:
    name, port = tensor
    return f"^{name}" if port < 0 else f"{name}:{port}"


def _needed(nodes: Sequence[NodeDef], roots: Iterable[str], fed: set[str]) -> list[NodeDef]:
    """The nodes that the roots depend on. Fed nodes have no inputs."""
    inputs = {n.name: n.input for n in nodes if n.name not in fed}

    def names(tensors: Iterable[str]) -> Iterator[str]:
        return (_parse(t)[0] for t in tensors)

    found = reached(names(roots), lambda name: names(inputs.get(name, ())))
    placeholder = message(NodeDef)
    return [
        placeholder(name=n.name, op="Placeholder") if n.name in fed and n.input else n
        for n in nodes
        if n.name in found
    ]


def _unsupported(merge: NodeDef, reason: str) -> UnsupportedOpError:
    where = f"node {merge.name!r}"
    return UnsupportedOpError([Problem(f"tf.{merge.op}", reason, where, FRAMES_REMEDY)])


class _Rewriter:
    def __init__(
        self,
        nodes: Sequence[NodeDef],
        prefix: str,
        args: Iterable[str],
        roots: Iterable[Tensor],
    ):
        make = message(NodeDef)
        self.nodes = {a: make(name=a, op="Placeholder") for a in args}
        self.nodes.update((n.name, n) for n in nodes)
        self.prefix = prefix
        self.functions: dict[str, MadeFunction] = {}
        # Nodes whose second result is read; that of a `Merge` says which input it passes on.
        read = [*roots, *(t for name in self.nodes for t in self.inputs(name))]
        self.second = {name for name, port in read if port == 1}
        # Nodes moved into a branch, with the `If` of that branch.
        self.moved: dict[str, str] = {}

    def inputs(self, name: str) -> list[Tensor]:
        return [_parse(t) for t in self.nodes[name].input]

    def _of(self, *ops: str) -> list[str]:
        return [name for name, n in self.nodes.items() if n.op in ops]

    def _consumers(self) -> dict[str, list[str]]:
        users: dict[str, list[str]] = {name: [] for name in self.nodes}
        for name in self.nodes:
            for source, _ in self.inputs(name):
                users.setdefault(source, []).append(name)
        return users

    def _dependents(self, roots: Iterable[str], last: Sequence[str]) -> set[str]:
        """Users of `roots` over data and control edges, through ops in `last`."""
        consumers = self._consumers()
        return set(reached(roots, lambda n: () if self.nodes[n].op in last else consumers[n]))

    # -- stacks

    def level_stacks(self) -> None:
        """Let the stacks of gradients grow and shrink in every step of a loop.

        A branch in a loop saves values for its gradient on its own stacks, only in the steps that
        take it. The branch of the gradient pops as many again. Only the order matters, so the other
        steps may push values too, which are never used.
        """
        for name in self._of("StackPush", "StackPushV2", "StackPop", "StackPopV2"):
            handle, *rest = self.inputs(name)
            guards: list[Tensor] = []
            while self.nodes[handle[0]].op in _SWITCHES:
                guards.append(handle)
                handle = self.inputs(handle[0])[0]
            if not guards:
                continue
            if self.nodes[name].op.startswith("StackPush"):
                for guard in guards:
                    rest[0] = self._saved(f"{name}/{guard[0]}", rest[0], guard)
            node = type(self.nodes[name])()
            node.CopyFrom(self.nodes[name])
            del node.input[:]
            node.input.extend(_text(t) for t in (handle, *rest))
            self.nodes[name] = node

    def _saved(self, name: str, value: Tensor, guard: Tensor) -> Tensor:
        """Turn a value that a branch saves into a value of all steps."""
        switch, port = guard
        source = value[0]
        if self.nodes[source].op in _SWITCHES and self._condition(source) == self._condition(
            switch
        ):
            return self.inputs(source)[0]
        self._add(f"{name}/pivot", "Identity", [(switch, 1 - port)])
        self._add(f"{name}/none", "FakeParam", [(f"{name}/pivot", -1)])
        self._add(name, "Merge", [value, (f"{name}/none", 0)])
        return name, 0

    def _is_saved(self, merge: str) -> bool:
        """Return whether a `Merge` belongs to values that a branch saves."""
        return any(self.nodes[source].op == "FakeParam" for source, _ in self.inputs(merge))

    def _condition(self, switch: str) -> Tensor:
        return self._source(self.inputs(switch)[1])

    # -- loops

    def innermost_frame(self) -> list[str]:
        """The `Enter` nodes of an innermost frame; empty if there is none."""
        frames: dict[bytes, list[str]] = {}
        for name in self._of(*_ENTERS):
            frames.setdefault(self.nodes[name].attr["frame_name"].s, []).append(name)
        for enters in frames.values():
            inside = self._dependents(enters, _EXITS)
            if not any(self.nodes[n].op in _ENTERS for n in inside - set(enters)):
                return enters
        if frames:
            raise MalformedModelError(f"the frames {sorted(frames)} contain each other")
        return []

    def loop(self, enters: Sequence[str]) -> None:
        """Replace a frame by a `While` node."""
        inside = self._dependents(enters, _EXITS)
        of_enter = {
            source: name
            for name in inside
            if self.nodes[name].op in _MERGES
            for source, _ in self.inputs(name)
            if source in enters
        }
        carried = [e for e in enters if e in of_enter]
        order = [*carried, *(e for e in enters if e not in of_enter)]
        args = {e: f"{e}/argument" for e in order}
        in_test: dict[Tensor, Tensor] = {(e, 0): (args[e], 0) for e in order}
        in_body = dict(in_test)
        results: list[Tensor] = []
        waits: list[Tensor] = []
        exits: dict[str, int] = {}
        conditions: set[str] = set()
        for k, enter in enumerate(carried):
            merge = of_enter[enter]
            if merge in self.second:
                raise _unsupported(self.nodes[merge], "says in which step a loop is")
            in_test[merge, 0] = in_body[merge, 0] = (args[enter], 0)
            backs = [s for s, _ in self.inputs(merge) if self.nodes[s].op in _NEXTS]
            if len(backs) != 1:
                raise MalformedModelError(f"node {merge!r} is not a loop variable")
            results.append(self.inputs(backs[0])[0])
            waits += [t for t in self.inputs(backs[0]) if t[1] < 0]
            for switch in inside:
                if self.nodes[switch].op not in _SWITCHES or self.inputs(switch)[0][0] != merge:
                    continue
                conditions.add(self.inputs(switch)[1][0])
                in_body[switch, 1] = (args[enter], 0)
                for leave in inside:
                    if self.nodes[leave].op in _EXITS and self.inputs(leave)[0] == (switch, 0):
                        exits[leave] = k
        if len(conditions) != 1:
            raise MalformedModelError(f"the loop at {enters[0]!r} has {len(conditions)} conditions")
        test = self.inputs(conditions.pop())[0]
        results += [(e, 0) for e in order[len(carried) :]]
        name = f"{enters[0]}/While"
        names = list(args.values())
        cond = self._function(f"{name}/cond", names, [test], in_test, inside)
        body = self._function(f"{name}/body", names, results, in_body, inside, waits)
        sources = [self.inputs(e)[0] for e in order]
        for gone in inside:
            node = self.nodes.pop(gone)
            if gone in exits:
                self._add(gone, "Identity", [(name, exits[gone])], attr=node.attr)
        self._add(name, "While", sources, functions={"cond": cond, "body": body})

    # -- branches

    def innermost_merges(self) -> list[str]:
        """The `Merge` nodes of an innermost conditional."""
        merges = self._of(*_MERGES)
        for merge in merges:
            if not self._holds_merge(merge):
                scope = merge.rpartition("/")[0]
                predicate = self._predicate(merge)
                group = [merge]
                for other in merges:
                    alike = other.rpartition("/")[0] == scope
                    alike = alike or any(map(self._is_saved, (merge, other)))
                    alike = alike and other != merge
                    if (
                        alike
                        and not self._holds_merge(other)
                        and self._predicate(other)[0] == predicate[0]
                        and not any(self._depend(a, other) for a in group)
                    ):
                        group.append(other)
                return group
        if merges:
            raise MalformedModelError(f"the nodes {merges[:3]} merge each other")
        return []

    def _holds_merge(self, merge: str) -> bool:
        """Return whether a branch of a conditional contains another that is not replaced yet."""
        above = self._above([s for s, _ in self.inputs(merge)])
        return any(self.nodes[n].op in _MERGES for n in above)

    def _depend(self, one: str, two: str) -> bool:
        """Return whether one of two nodes depends on the other."""
        for root, wanted in ((one, two), (two, one)):
            if wanted in reached([root], lambda name: (s for s, _ in self.inputs(name))):
                return True
        return False

    def _above(self, roots: Iterable[str]) -> dict[str, None]:
        """Ancestors of `roots` over data and control edges, up to and including switches."""

        def sources(name: str) -> Iterable[str]:
            ends = self.nodes[name].op in _SWITCHES
            return () if ends else (source for source, _ in self.inputs(name))

        return reached(roots, sources)

    def _ports(self, root: Tensor) -> set[tuple[Tensor, int]]:
        """The innermost predicates that a value depends on, and the branch of each."""

        def sources(tensor: Tensor) -> Iterable[Tensor]:
            return () if self.nodes[tensor[0]].op in _SWITCHES else self.inputs(tensor[0])

        return {
            (self._source(self.inputs(name)[1]), port)
            for name, port in reached([root], sources)
            if self.nodes[name].op in _SWITCHES
        }

    def _source(self, tensor: Tensor) -> Tensor:
        """The source of a predicate, past `Identity` nodes."""
        while self.nodes[tensor[0]].op == "Identity":
            tensor = self.inputs(tensor[0])[0]
        return tensor

    def _predicate(self, merge: str) -> tuple[Tensor, int]:
        """The predicate of a conditional, and the input number of its true branch."""
        values = [t for t in self.inputs(merge) if t[1] >= 0]
        if len(values) != 2:
            raise _unsupported(self.nodes[merge], f"merges {len(values)} values instead of two")
        one, two = map(self._ports, values)
        for predicate, port in sorted(one):
            if (predicate, 1 - port) in two and port >= 0:
                return predicate, 0 if port == 1 else 1
        # A branch that holds only constants has no switch except that of its pivot.
        for predicate, port in sorted(one | two):
            here = one if (predicate, port) in one else two
            if (predicate, port) not in (two if here is one else one):
                first = here is one
                return predicate, 0 if (port == 1) == first else 1
        raise MalformedModelError(f"node {merge!r} does not merge values of a conditional")

    def branch(self, merges: Sequence[str]) -> None:
        """Replace the `Merge` nodes of one conditional by an `If` node."""
        predicate, _ = self._predicate(merges[0])
        switches = [s for s in self._of(*_SWITCHES) if self._condition(s) == predicate]
        inside = self._dependents(switches, _MERGES)
        name = f"{merges[0]}/If"
        arguments: dict[Tensor, Tensor] = {}
        renamed: list[dict[Tensor, Tensor]] = []
        waits: dict[Tensor, None] = {}
        results: list[list[Tensor]] = [[], []]
        positions = {merge: self._predicate(merge)[1] for merge in merges}
        for merge, true_input in positions.items():
            pair = self.inputs(merge)[:2]
            results[1].append(pair[true_input])
            results[0].append(pair[1 - true_input])
        for side in (0, 1):
            outside = self._from_outside(results[side], switches, inside)
            waits.update((t, None) for t in outside if t[1] < 0 and not self._is_control(t[0]))
            outside = {tensor: source for tensor, source in outside.items() if tensor[1] >= 0}
            for source in outside.values():
                arguments.setdefault(source, (f"{name}/argument_{len(arguments)}", 0))
            renamed.append({tensor: arguments[source] for tensor, source in outside.items()})
        names = [n for n, _ in arguments.values()]
        then = self._function(f"{name}/true", names, results[1], renamed[1], inside)
        other = self._function(f"{name}/false", names, results[0], renamed[0], inside)
        for k, merge in enumerate(merges):
            self._result_of_merge(merge, (name, k), predicate, positions[merge] == 0)
        functions = {"then_branch": then, "else_branch": other}
        self._add(name, "If", [predicate, *arguments, *waits], functions=functions)
        for function in (then, other):
            self.moved.update((n.name, name) for n in self.functions[function].nodes)

    def _from_outside(
        self, results: Iterable[Tensor], switches: Collection[str], inside: Collection[str]
    ) -> dict[Tensor, Tensor]:
        """For each tensor that enters a branch with these results, what it is outside.

        Control edges are followed too, since effects of the branch may be reached by them alone.
        """

        def enters(tensor: Tensor) -> bool:
            return tensor[0] in switches or tensor[0] not in inside

        def operands(tensor: Tensor) -> Sequence[Tensor]:
            return () if enters(tensor) else self.inputs(tensor[0])

        return {
            tensor: self.inputs(tensor[0])[0] if tensor[0] in switches else tensor
            for tensor in filter(enters, reached(results, operands))
        }

    def _result_of_merge(
        self, merge: str, result: Tensor, predicate: Tensor, true_is_first: bool
    ) -> None:
        """Replace a `Merge` by a result of its `If`; also its index, if read."""
        kind = self.nodes.pop(merge).attr["T"].type
        if merge not in self.second:
            self._add(merge, "Identity", [result])
            return
        is_second = predicate
        if true_is_first:
            is_second = f"{merge}/is_second", 0
            self._add(is_second[0], "LogicalNot", [predicate])
        self._add(f"{merge}/number", "Cast", [is_second])
        number = self.nodes[f"{merge}/number"]
        number.attr["SrcT"].type, number.attr["DstT"].type = _BOOL, _INT32
        number.attr["Truncate"].b = False
        self._add(merge, "IdentityN", [result, (number.name, 0)])
        self.nodes[merge].attr["T"].list.type.extend([kind, _INT32])

    def leave_branches(self) -> None:
        """Redirect control edges from nodes of a branch to the whole conditional."""
        for node, conditional in self.moved.items():
            if node in self.nodes:
                self._add(node, "NoOp", [(conditional, -1)])

    # -- parts

    def _function(
        self,
        name: str,
        args: Sequence[str],
        results: Sequence[Tensor],
        renamed: Mapping[Tensor, Tensor],
        inside: Collection[str],
        waits: Sequence[Tensor] = (),
    ) -> str:
        """A function that computes `results` from the tensors in `renamed`.

        `inside`: nodes of the loop or conditional; `waits`: control edges to further nodes that
        have to run.
        """
        members: dict[str, NodeDef] = {}
        waits = [t for t in waits if self.nodes[t[0]].op not in _CONTROL]
        pending = [*waits, *(r for r in results if r not in renamed)]
        while pending:
            member, _ = pending.pop()
            if member in members:
                continue
            members[member] = clone = type(self.nodes[member])()
            clone.CopyFrom(self.nodes[member])
            del clone.input[:]
            for source in self.inputs(member):
                # Within one branch or step, only effects are ordered.
                outside = source[0] not in inside or self._is_control(source[0])
                if source[1] < 0 and outside:
                    continue
                if source not in renamed:
                    pending.append(source)
                clone.input.append(_text(renamed.get(source, source)))
        key = f"{self.prefix}{name}"
        outputs = tuple(_text(renamed.get(r, r)) for r in results)
        controls = tuple(n for n, _ in waits)
        self.functions[key] = MadeFunction(tuple(args), tuple(members.values()), outputs, controls)
        return key

    def _is_control(self, name: str) -> bool:
        """Return whether a node is control flow, or a pivot: the `Identity` of such a node."""
        node = self.nodes[name]
        if node.op == "Identity":
            node = self.nodes[self.inputs(name)[0][0]]
        return node.op in _CONTROL

    def _add(
        self,
        name: str,
        op: str,
        inputs: Sequence[Tensor],
        *,
        attr: Mapping[str, AttrValue] | None = None,
        functions: Mapping[str, str] | None = None,
    ) -> None:
        node = message(NodeDef)(name=name, op=op)
        node.input.extend(_text(t) for t in inputs)
        if attr is not None and "T" in attr:
            node.attr["T"].CopyFrom(attr["T"])
        for key, function in (functions or {}).items():
            node.attr[key].func.name = function
        self.nodes[name] = node


_CONTROL = frozenset((*_ENTERS, *_MERGES, *_SWITCHES, *_NEXTS, *_EXITS, "LoopCond"))


# -- functions called by ops of their name


def as_graph(
    function: FunctionDef, protos: Sequence[NodeDef], offset: Callable[[Node, str], int]
) -> MadeFunction:
    """Nodes as a `FunctionDef`, with outputs by number, as in a graph."""
    nodes = {}
    for proto in protos:
        nodes[proto.name] = Node(proto.op, proto.name, proto.attr, function.signature.name)

    def tensor(text: str) -> str:
        if text.startswith("^"):
            return text
        name, output, number = parse_tensor(text)
        return f"{name}:{number + offset(nodes[name], output)}" if output else text

    copies = []
    for proto in protos:
        copy = type(proto)()
        copy.CopyFrom(proto)
        copy.input[:] = map(tensor, proto.input)
        copies.append(copy)
    return MadeFunction(
        tuple(a.name for a in function.signature.input_arg),
        tuple(copies),
        tuple(tensor(function.ret[a.name]) for a in function.signature.output_arg),
        tuple(function.control_ret.values()),
    )


def with_calls(graph_def: GraphDef) -> GraphDef:
    """The `GraphDef` with library functions called as ops replaced by `PartitionedCall`."""
    signatures = {f.signature.name: f.signature for f in graph_def.library.function}
    bodies = [graph_def.node, *(f.node_def for f in graph_def.library.function)]
    if not any(node.op in signatures for nodes in bodies for node in nodes):
        return graph_def
    new = type(graph_def)()
    new.CopyFrom(graph_def)
    _as_calls(new.node, signatures)
    for function in new.library.function:
        outputs = _as_calls(function.node_def, signatures)
        for node in function.node_def:
            for i, name in enumerate(node.input):
                node.input[i] = _by_number(name, outputs)
        for key, name in [*function.ret.items()]:  # a map that changes is not iterated
            function.ret[key] = _by_number(name, outputs)
    return new


def _as_calls(nodes: Iterable[NodeDef], signatures: Mapping[str, OpDef]) -> dict[str, OpDef]:
    """Rewrite the calls among `nodes`; return the signatures of their callees, by node."""
    found = {}
    for node in nodes:
        signature = signatures.get(node.op)
        if signature is None:
            continue
        found[node.name] = signature
        node.attr["f"].func.name = node.op
        node.op = "PartitionedCall"
        types = {"Tin": signature.input_arg, "Tout": signature.output_arg}
        for key, args in types.items():
            node.attr[key].list.type.extend(a.type or node.attr[a.type_attr].type for a in args)
    return found


def _by_number(name: str, outputs: Mapping[str, OpDef]) -> str:
    """A reference to a result of a call by number, as for `PartitionedCall`."""
    if name.startswith("^"):
        return name
    node, output, index = parse_tensor(name)
    if node not in outputs:
        return name
    names = [a.name for a in outputs[node].output_arg]
    # Results of functions are single tensors: there are no lists to count.
    return f"{node}:output:{names.index(output) + index}" if output in names else name
