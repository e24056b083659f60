"""Names that a StableHLO module states for its arguments."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import jax

from invert._entry import ArgSpec
from invert.frontends.signature import Signature
from invert.ir.types import Tree
from invert.stablehlo.ops.attributes import location_name
from invert.stablehlo.ops.interpreter import WRAPPED
from invert.stablehlo.program import Program
from invert.tf.interpreter.analysis import Analysis

# TensorFlow's names of the arguments of `jax2tf.convert(f)`, which takes `*args_tf`.
_OF_JAX2TF = re.compile(r"args_tf_\d+")


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
    program does not use have no location.
    """
    found = set[str]()
    for path, i in jax.tree_util.tree_leaves_with_path(tree):
        if i not in stated:
            continue
        location, end = stated[i], jax.tree_util.keystr(path)
        found.add(location.removesuffix(end) if location.endswith(end) else "")
    name = found.pop() if len(found) == 1 else ""
    return name if name.isidentifier() else ""


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
