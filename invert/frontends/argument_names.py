"""Names that a StableHLO module states for its arguments, some of which are variables."""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax

from invert._entry import ArgSpec, Param
from invert.frontends.signature import Signature
from invert.ir.types import Tree, Value
from invert.stablehlo.ops.attributes import location_name
from invert.stablehlo.ops.interpreter import WRAPPED
from invert.stablehlo.program import Program
from invert.tf.interpreter.analysis import Analysis
from invert.tf.interpreter.graph import Graph
from invert.tf.ops.node import CALLS, Body, Node
from invert.tf.ops.state import Resource

# TensorFlow's names of the arguments of `jax2tf.convert(f)`, which takes `*args_tf`.
_OF_JAX2TF = re.compile(r"args_tf_\d+")
# Names that only number a variable, as those in `tf.nest.flatten(params)`.
_NUMBERED = re.compile(r"(.*[/.])?\d+|Variable(_\d+)?")
# A location such as `params['layers'][0].kernel`, and one step of its path.
_STEP = r"\['([^'\\]+)'\]|\[(\d+)\]|\.(\w+)"
_LOCATION = re.compile(rf"(\w+)((?:{_STEP})+)")
# The last step, into an object of an author's class.
_INTO_CLASS = re.compile(r"(\.\w+|\['[^'\\]+'\]|\[<flat index \d+>\])$")


def argument_locations(program: Program) -> list[str]:
    """The locations of a program's arguments: names, with paths as in `p['w']`, or `""`."""
    own = _arguments(program, program.entry)[int(program.takes_platform_index) :]
    names = [location_name(a.location) for a in own]
    if WRAPPED in program.functions and not any(names):
        # They follow the open sizes.
        inner = _arguments(program, WRAPPED)[-len(own) :]
        if [str(a.type) for a in inner] == [str(a.type) for a in own]:
            return [location_name(a.location) for a in inner]
    return names


def _arguments(program: Program, function: str) -> list[Any]:
    return list(program.functions[function].regions[0].blocks[0].arguments)


def parameter_name(tree: Tree, stated: Mapping[int, str]) -> str:
    """The parameter whose value is a tree of arguments, by their locations, or `""`.

    An item of `*args` is none: its locations have a longer path than its tree. Arrays that the
    program does not use have no location. The tree may have tuples in place of classes.
    """
    found = set[str]()
    for path, i in jax.tree_util.tree_leaves_with_path(tree):
        if i not in stated:
            continue
        location = stated[i]
        for key in reversed(path):
            location = _before(location, key)
        found.add(location)
    name = found.pop() if len(found) == 1 else ""
    return name if name.isidentifier() else ""


def _before(location: str, key: Any) -> str:
    """The location without its last step, which is a key of a tree; `""` if it is another."""
    step = jax.tree_util.keystr((key,))
    if location.endswith(step):
        return location.removesuffix(step)
    in_class = isinstance(key, jax.tree_util.SequenceKey) and _INTO_CLASS.search(location)
    return location[: in_class.start()] if in_class else ""


def named_by_jax(signature: Signature, analysis: Analysis) -> Signature:
    """Name the arguments of a saved `jax2tf.convert(f)` as `f` does, if all have such names."""
    names = signature.arg_names
    modules = [node for node in analysis.nodes if node.op == "XlaCallModule"]
    if len(modules) != 1 or not names or not all(map(_OF_JAX2TF.fullmatch, names)):
        return signature
    leaves, tree = jax.tree_util.tree_flatten(signature.args)
    stated = argument_locations(analysis.graph.program(modules[0]))
    if len(stated) != len(leaves):  # JAX leaves out arguments that the program does not use
        return signature
    numbers = tree.unflatten(range(len(leaves)))
    found = [parameter_name(x, dict(enumerate(stated))) for x in numbers]
    if not all(found) or len({*found, *signature.kwargs}) < len(found) + len(signature.kwargs):
        return signature

    def renamed(spec: ArgSpec, old: str, new: str) -> ArgSpec:
        return dataclasses.replace(spec, name=new + spec.name.removeprefix(old))

    args = tuple(
        jax.tree_util.tree_map(lambda spec, old=old, new=new: renamed(spec, old, new), tree)
        for tree, old, new in zip(signature.args, names, found, strict=True)
    )
    given = dict(zip(names, found, strict=True))
    defaults = {given.get(n, n): x for n, x in signature.defaults.items()}
    return dataclasses.replace(signature, args=args, arg_names=tuple(found), defaults=defaults)


def with_paths(params: Sequence[Param], feeds: Sequence[Value], analysis: Analysis) -> list[Param]:
    """The variables of a graph, those without a name with their paths in `jax2tf.convert(f)`.

    Saved as `module.variables = tf.nest.flatten(params)`, variables only have a number. The
    arguments of the StableHLO module that reads them are called `params['dense']['kernel']`.

    **Arguments:**

    - `feeds`: the inputs of the graph, handles of the variables among them.
    """
    graph, found = analysis.graph, dict[str, str]()
    own = {p.name for p in params if _NUMBERED.fullmatch(p.name)}
    for node, sources in _calls_of_modules(graph, graph.main, feeds, set()) if own else ():
        locations = argument_locations(graph.program(node))
        if len(locations) != len(sources):
            continue
        for source, location in zip(sources, locations, strict=True):
            path = "/".join(keys_of(location))
            if isinstance(source, Resource) and source.name in own and path:
                found.setdefault(source.name, path)
    # Two modules may have arguments of the same names.
    count = collections.Counter(found.values())
    paths = {name: path for name, path in found.items() if count[path] == 1}
    return [dataclasses.replace(p, path=paths.get(p.name, "")) for p in params]


def _calls_of_modules(
    graph: Graph, body: Body, values: Sequence[Value], seen: set[str]
) -> Iterator[tuple[Node, list[Value]]]:
    """The StableHLO modules in a body; and of their inputs, those that are an input of the body."""
    at = dict(zip(body.args, values, strict=True))
    seen.add(body.name)
    for index in body.order:
        node = body.nodes[index]
        sources = [at.get(i) for i, _ in node.inputs]
        if node.op == "XlaCallModule":
            yield node, sources
        elif node.op in CALLS:
            for name in set(node.functions) - seen:
                yield from _calls_of_modules(graph, graph.body(name), sources, seen)
        elif node.op in ("Identity", "ReadVariableOp"):
            at[index] = sources[0]


def keys_of(location: str) -> tuple[str, ...]:
    """`params`, `layers`, `0`, `kernel` for `params['layers'][0].kernel`; none for other forms."""
    matched = _LOCATION.fullmatch(location)
    if matched is None:
        return ()
    return matched[1], *("".join(step) for step in re.findall(_STEP, matched[2]))
