"""jaxtyping annotations and signatures of recovered functions."""

from __future__ import annotations

import inspect
import keyword
import re
from collections.abc import Iterator, Mapping
from typing import Any

import equinox as eqx
import jax
import jaxtyping
import numpy as np
from jax import Array
from jaxtyping import PyTree

from invert._entry import ArgSpec, EntryPoint
from invert.ir.types import Tree, Value

_NAMES = {
    "bool": "Bool",
    "bfloat16": "BFloat16",
    **{f"int{n}": f"Int{n}" for n in (2, 4, 8, 16, 32, 64)},
    **{f"uint{n}": f"UInt{n}" for n in (2, 4, 8, 16, 32, 64)},
    **{f"float{n}": f"Float{n}" for n in (16, 32, 64)},
    **{f"complex{n}": f"Complex{n}" for n in (64, 128)},
    **{
        f"float8_{kind}": f"Float8{kind}"
        for kind in ("e4m3b11fnuz", "e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz")
    },
}


def array_type(spec: ArgSpec) -> object:
    """`Float32[Array, "3 batch"]` for a specification."""
    if jax.dtypes.issubdtype(spec.dtype, jax.dtypes.prng_key):
        kind = jaxtyping.Key
    else:
        kind = getattr(jaxtyping, _NAMES.get(str(np.dtype(spec.dtype)), ""), jaxtyping.Shaped)
    sizes = [_size(n) for n in spec.shape]
    return kind[Array, " ".join(sizes)]


def _size(size: int | str | None) -> str:
    if isinstance(size, int):
        return str(size)
    return size if size is not None and size.isidentifier() else "_"


def tree_type(tree: Tree) -> object:
    """The annotation of a pytree of `ArgSpec`."""
    if isinstance(tree, ArgSpec):
        return array_type(tree)
    if tree is None:
        return None
    if type(tree) is tuple:
        return tuple[tuple(tree_type(t) for t in tree)] if tree else tuple[()]
    if type(tree) in (dict, list):
        values = tree.values() if isinstance(tree, dict) else tree
        types = {str(t): t for t in map(tree_type, values)}
        value = next(iter(types.values())) if len(types) == 1 else Any
        return dict[str, value] if isinstance(tree, dict) else list[value]
    return PyTree


def parameter_names(entry: EntryPoint) -> dict[str, str]:
    """A unique parameter name for each argument: `x_y` for `x-y`, `class_` for `class`.

    Valid names are unchanged.
    """
    names = list(dict.fromkeys((*entry.arg_names, *entry.kwargs)))
    plain = {n for n in names if n.isidentifier() and not keyword.iskeyword(n)} - {"self"}
    parameters: dict[str, str] = {}
    for name in names:
        wanted = name
        if name not in plain:
            wanted = led_by_letter(re.sub(r"\W", "_", name) or "argument")
            taken = {*plain, *parameters.values(), "self"}
            while keyword.iskeyword(wanted) or wanted in taken:
                wanted += "_"
        parameters[name] = wanted
    return parameters


def led_by_letter(name: str) -> str:
    """A name of letters, digits and underscores as an identifier: `_2d` for `2d`."""
    return name if name.isidentifier() else f"_{name}"


def signature(entry: EntryPoint, *, stateful: bool = False) -> inspect.Signature:
    """The call signature of an entry point, annotated.

    `stateful`: whether it takes a state even if it assigns no variables.
    """
    safe = parameter_names(entry)
    names = [safe[n] for n in entry.arg_names]
    ordinary = names == list(entry.arg_names)
    kind = (
        inspect.Parameter.POSITIONAL_OR_KEYWORD if ordinary else inspect.Parameter.POSITIONAL_ONLY
    )
    parameters = [
        inspect.Parameter(name, kind, annotation=tree_type(tree))
        for name, tree in zip(names, entry.args, strict=True)
    ]
    state, key = state_and_key(entry, stateful)
    # Only trailing arguments: a call must give those before one without a default.
    last = len(names) if state is None else 0
    while last and entry.arg_names[last - 1] in entry.defaults:
        last -= 1
        default = entry.defaults[entry.arg_names[last]]
        parameters[last] = parameters[last].replace(default=default)
    if state is not None:
        parameters.append(inspect.Parameter(state, kind, annotation=eqx.nn.State))
    by_place = entry.one_argument and state is None
    named = kind if by_place else inspect.Parameter.KEYWORD_ONLY
    parameters += [
        inspect.Parameter(
            safe[name],
            named,
            default=entry.defaults.get(name, inspect.Parameter.empty),
            annotation=tree_type(tree),
        )
        for name, tree in entry.kwargs.items()
    ]
    if key is not None:
        annotation = jaxtyping.Key[Array, ""]
        parameters.append(
            inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, annotation=annotation)
        )
    return inspect.Signature(parameters, return_annotation=_result_type(entry))


def state_and_key(entry: EntryPoint, stateful: bool) -> tuple[str | None, str | None]:
    """Names of the parameters for state and key, `None` where absent.

    They are `state` and `key`, with underscores if arguments have these names.
    """
    taken = set(parameter_names(entry).values())

    def free(name: str) -> str:
        return free(name + "_") if name in taken else name

    takes_state = stateful or bool(entry.assigned)
    return free("state") if takes_state else None, free("key") if entry.draws else None


def _result_type(entry: EntryPoint) -> object:
    result: Tree = PyTree
    if entry.results is not None:
        result = tree_type(jax.tree_util.tree_unflatten(entry.out_tree, entry.results))
    return tuple[result, eqx.nn.State] if entry.assigned else result


def call_text(name: str, signature: inspect.Signature, trees: Mapping[str, object]) -> str:
    """`f(x: float32[?,4], *, key)`: the parameters with the types of those that have some."""
    parts: list[str] = []
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in parts:
            parts.append("*")
        types = f": {tree_text(trees[parameter.name])}" if parameter.name in trees else ""
        parts.append(parameter.name + types)
    return f"{name}({', '.join(parts)})"


def type_text(x: Value) -> str:
    """`float32[?,4]` of an array or its type."""
    sizes = ("?" if n is None else str(n) for n in x.shape)
    return f"{x.dtype}[{','.join(sizes)}]"


def tree_text(tree: Tree) -> str:
    """A pytree of types in Python's notation."""
    if isinstance(tree, ArgSpec):
        return type_text(tree)
    if type(tree) is dict:
        return "{" + ", ".join(f"{k!r}: {tree_text(v)}" for k, v in tree.items()) + "}"
    if type(tree) in (tuple, list):
        begin, end = "()" if type(tree) is tuple else "[]"
        comma = "," if type(tree) is tuple and len(tree) == 1 else ""
        return begin + ", ".join(map(tree_text, tree)) + comma + end
    return "None" if tree is None else type(tree).__name__ + "(" + ", ".join(_parts(tree)) + ")"


def _parts(tree: object) -> Iterator[str]:
    """The types of the leaves of a pytree of another class."""
    for leaf in jax.tree_util.tree_leaves(tree, is_leaf=lambda x: isinstance(x, ArgSpec)):
        yield tree_text(leaf) if isinstance(leaf, ArgSpec) else repr(leaf)
