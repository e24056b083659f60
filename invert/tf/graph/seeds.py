"""Replaces the generator state of a graph by the key of the call.

TensorFlow's generators and Keras's `SeedGenerator` keep a seed in a variable, which each draw reads
and advances. With `Config(random="jax")` such draws take a key instead of that seed. The variable
is then unused, and its updates are dropped. A seed that is an argument or a constant is unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from invert.ir.order import reached
from invert.protos.tensors import decode_tensor
from invert.tf.ops.node import PASSED, Body, Node

# The node for a key split off the key of the call.
KEY_OF_CALL = "invert:Key"

# Ops that take a key and counter, by their equivalents that take a seed; the inputs after the
# algorithm follow the seed.
_BY_SEED: Mapping[str, str] = {
    "StatelessRandomUniformV2": "StatelessRandomUniform",
    "StatelessRandomUniformIntV2": "StatelessRandomUniformInt",
    "StatelessRandomUniformFullIntV2": "StatelessRandomUniformFullInt",
    "StatelessRandomNormalV2": "StatelessRandomNormal",
    "StatelessTruncatedNormalV2": "StatelessTruncatedNormal",
    "StatelessRandomGammaV3": "StatelessRandomGammaV2",
}
# Ops that draw from a generator directly, given a resource, an algorithm and a shape.
_BY_GENERATOR: Mapping[str, str] = {
    "StatefulUniform": "StatelessRandomUniform",
    "StatefulUniformInt": "StatelessRandomUniformInt",
    "StatefulUniformFullInt": "StatelessRandomUniformFullInt",
    "StatefulStandardNormalV2": "StatelessRandomNormal",
    "StatefulTruncatedNormal": "StatelessTruncatedNormal",
    "StatefulRandomBinomial": "StatelessRandomBinomial",
}
# Index of the input that holds the seed.
_SEED: Mapping[str, int] = {
    **dict.fromkeys(_BY_SEED.values(), 1),
    "StatelessRandomPoisson": 1,
    "StatelessRandomBinomial": 1,
    "StatelessParameterizedTruncatedNormal": 1,
    "StatelessMultinomial": 2,
}
_DRAWS = {*_BY_SEED, *_BY_GENERATOR, *_SEED, "StatelessShuffle"}
# Ops that compute seeds from the state of a generator.
_ARITHMETIC = frozenset(
    "Identity Add AddV2 Sub Mul FloorMod Mod Cast Pack ConcatV2 StridedSlice Slice Reshape Bitcast "
    "ExpandDims Squeeze Unpack Split StatelessRandomGetKeyCounter StatelessRandomGetKeyCounterAlg "
    "StatelessRandomGetKeyCounterV2 BitwiseXor BitwiseAnd Fill ZerosLike OnesLike GatherV2".split()
)
_READS = frozenset(("ReadVariableOp", "RngReadAndSkip"))
_MOVES = frozenset(
    ("AssignVariableOp", "AssignAddVariableOp", "RngSkip", "RngReadAndSkip", *_BY_GENERATOR)
)


def by_key(body: Body, body_of: Callable[[str], Body]) -> tuple[Body, int]:
    """The body with generator draws replaced by keyed draws, and their number.

    `body_of` returns the bodies of called functions, which have been replaced already.
    """
    nodes = list(body.nodes)
    draws: list[int] = []
    keyed = 0
    states: dict[tuple[int, int], None] = {}
    for index in body.order:
        node = nodes[index]
        if node.op not in _DRAWS:
            continue
        draws.append(index)
        found = list(_states(nodes, node))
        if not found:
            continue
        states.update(dict.fromkeys(found))
        key = Node(KEY_OF_CALL, f"{node.name}/key", {}, node.where)
        # It keeps the place of the draw in the order of effects.
        key.control = node.control
        nodes.append(key)
        _draw_by(node, (len(nodes) - 1, 0))
        keyed += 1
    _without_neutral(nodes, draws)
    for state in states:
        _leave_out(nodes, state, body, body_of)
    return Body(body.name, tuple(nodes), body.args, body.outputs, body.controls, ()), keyed


def without_idle(body: Body, places: Sequence[int], body_of: Callable[[str], Body]) -> Body:
    """The body without updates of generator states from which nothing is drawn.

    A recurrent layer of Keras with dropout advances its generator even where nothing is dropped.

    **Arguments:**

    - `places`: the arguments that hold these states.
    """
    nodes = list(body.nodes)
    for place in places:
        _leave_out(nodes, (body.args[place], 0), body, body_of, set(body.order))
    return Body(body.name, tuple(nodes), body.args, body.outputs, body.controls, ())


def _states(nodes: Sequence[Node], node: Node) -> Iterator[tuple[int, int]]:
    """The handles of the variables that a draw takes its seed from."""
    if node.op in _BY_GENERATOR:
        yield node.inputs[0]
        return
    if node.op in _BY_SEED or node.op == "StatelessShuffle":
        seeds = node.inputs[1:3]
    elif node.op in _SEED:
        seeds = (node.inputs[_SEED[node.op]],)
    else:
        return

    def operands(i: int) -> Iterator[int]:
        return (j for j, _ in nodes[i].inputs if nodes[i].op in _ARITHMETIC)

    sources = [nodes[i] for i in reached((i for i, _ in seeds), operands)]
    if all(s.op in _READS or s.op in _ARITHMETIC or s.op == "Const" for s in sources):
        yield from (s.inputs[0] for s in sources if s.op in _READS)


def _draw_by(node: Node, key: tuple[int, int]) -> None:
    """Turn a draw from a generator into one from a key."""
    if node.op in _BY_GENERATOR:
        shape, rest = node.inputs[2], node.inputs[3:]
        node.op, node.inputs = _BY_GENERATOR[node.op], (shape, key, *rest)
    elif node.op in _BY_SEED:
        shape, rest = node.inputs[0], node.inputs[4:]
        node.op, node.inputs = _BY_SEED[node.op], (shape, key, *rest)
    elif node.op == "StatelessShuffle":
        value, _, _, algorithm = node.inputs
        node.inputs = (value, key, key, algorithm)
    else:
        place = _SEED[node.op]
        node.inputs = (*node.inputs[:place], key, *node.inputs[place + 1 :])


def _without_neutral(nodes: Sequence[Node], drawn: Sequence[int]) -> None:
    """Drop multiplications by one and additions of zero after a draw.

    The draws are JAX's anyway; adding zero would only change the sign of a zero.
    """
    scaled = set(drawn)
    for i, node in enumerate(nodes):
        neutral = _NEUTRAL.get(node.op)
        if neutral is None:
            continue
        for source, other in (node.inputs, node.inputs[::-1]):
            if source[0] in scaled and _number(nodes, other[0]) == neutral:
                node.op, node.inputs = "Identity", (source,)
                scaled.add(i)
                break


_NEUTRAL: Mapping[str, int] = {"Mul": 1, "AddV2": 0, "Add": 0}


def _number(nodes: Sequence[Node], index: int) -> float | None:
    """The value of a scalar constant, or of a difference of two."""
    node = nodes[index]
    if node.op == "Sub":
        high, low = (_number(nodes, i) for i, _ in node.inputs)
        return None if high is None or low is None else high - low
    if node.op != "Const" or node.attr("dtype").kind not in "fiu":
        return None
    value = node.attr("value")
    return float(decode_tensor(value, node.location)) if not value.tensor_shape.dim else None


def _leave_out(
    nodes: Sequence[Node],
    state: tuple[int, int],
    body: Body,
    body_of: Callable[[str], Body],
    running: Collection[int] | None = None,
) -> None:
    """Drop updates of generator states that nothing else reads.

    **Arguments:**

    - `running`: the nodes that run; by default all.
    """
    users, live = _users(nodes, running), set(body.outputs)
    outputs: dict[int, list[tuple[int, int]]] = {}
    for source in (*users, *live):
        outputs.setdefault(source[0], []).append(source)
    moves: list[Node] = []
    pending = [state]
    seen: set[tuple[int, int]] = set()
    while pending:
        value = pending.pop()
        if value in seen:
            continue
        seen.add(value)
        if value in live and value != state:  # a loop passes a handle on
            return
        for i, position in users.get(value, ()):
            node = nodes[i]
            if node.op in PASSED:
                if not _is_idle(node, position, body_of):
                    return
                pending += [(i, position)] * node.op.endswith("While")
                continue
            if node.op in _MOVES and node.inputs[0] == state:
                moves.append(node)
            elif node.op not in _ARITHMETIC and node.op not in _READS:
                return
            pending += outputs.get(i, ())
    for node in moves:
        node.op, node.inputs = "NoOp", ()


def _users(
    nodes: Sequence[Node], running: Collection[int] | None = None
) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """The consumers of each output, as nodes and input positions."""
    users: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for i, node in enumerate(nodes):
        if running is not None and i not in running:
            continue
        for position, source in enumerate(node.inputs):
            users.setdefault(source, []).append((i, position))
    return users


def _is_idle(node: Node, position: int, body_of: Callable[[str], Body]) -> bool:
    """Return whether the called functions ignore the argument at this position."""
    place = position - PASSED[node.op]
    if place < 0:
        return False
    for body in map(body_of, node.functions):
        argument = body.args[place]
        for i in body.order:
            inner = body.nodes[i]
            for k, (source, _) in enumerate(inner.inputs):
                if source == argument and not (inner.op in PASSED and _is_idle(inner, k, body_of)):
                    return False
    return True
