"""Tensors that are fed, each as the only output of a node."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterable, Sequence

from invert._entry import unique
from invert._errors import MalformedModelError
from invert.protos.messages import message
from invert.protos.types import NodeDef
from invert.tf.graph.check import data_inputs, parse_tensor


def with_feeds(
    nodes: Iterable[NodeDef], inputs: Sequence[str], outputs: Sequence[str]
) -> tuple[Iterable[NodeDef], list[str], list[str]]:
    """Cut a graph at the tensors that are fed.

    A node that is fed becomes the argument. If others of its outputs are used or fed, users of the
    fed one get a placeholder instead, and the node stays for the others.

    **Returns:** the nodes, the names of those that are arguments, and the results.

    **Raises:** `MalformedModelError` if a tensor is fed twice.
    """
    fed = [_tensor(text) for text in inputs]
    (name, number), count = collections.Counter(fed).most_common(1)[0] if fed else (("", 0), 0)
    if count > 1:
        raise MalformedModelError(f"{count} inputs are the tensor '{name}:{number}'")
    sources = {name for name, _ in fed}
    split = {name for name, number in fed if number}
    for text in (*outputs, *itertools.chain(*map(data_inputs, nodes))):
        name, number = _tensor(text)
        if number and name in sources:
            split.add(name)
    if not split:
        return nodes, [name for name, _ in fed], list(outputs)
    taken = {node.name for node in nodes}
    made = {t: unique(f"{t[0]}_{t[1]}", taken) for t in fed if t[0] in split}

    def renamed(text: str) -> str:
        return text if text.startswith("^") else made.get(_tensor(text), text)

    cut = [message(NodeDef)(name=name, op="Placeholder") for name in made.values()]
    for node in nodes:
        if (texts := [renamed(text) for text in node.input]) != node.input:
            copy = message(NodeDef)()
            copy.CopyFrom(node)
            copy.input[:] = texts
            node = copy
        cut.append(node)
    return cut, [made.get(t, t[0]) for t in fed], [renamed(text) for text in outputs]


def _tensor(text: str) -> tuple[str, int]:
    """The node and the output; those of a name that is not a tensor are its text and 0."""
    try:
        name, _, number = parse_tensor(text)
    except MalformedModelError:
        return text, 0
    return name, number
