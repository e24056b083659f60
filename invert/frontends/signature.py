"""Signatures of concrete functions as plain pytrees."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar

import jax
import numpy as np
from jax.tree_util import KeyEntry

from invert._entry import ArgSpec, EntryPoint, free_name
from invert._errors import SignatureError
from invert._private.tensorflow import TfObject, imported
from invert.frontends.structured import CompositeSpec, GivenArray, OtherSpec, TensorSpec
from invert.ir.avals import fits_shape
from invert.ir.types import Arguments, CallArguments, Keywords, Tree, Value
from invert.protos.tensors import decode_dtype
from invert.tf.ops.node import import_tensorflow

_POSITIONAL = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
)


class ConcreteFunction(Protocol):
    """The members of a concrete function that are read, of TensorFlow or of a file.

    **Attributes:**

    - `function_type`: holds the `parameters` by name.
    """

    @property
    def structured_input_signature(self) -> CallArguments: ...
    @property
    def structured_outputs(self) -> Tree: ...
    @property
    def function_type(self) -> TfObject: ...


C = TypeVar("C", bound=ConcreteFunction)


@dataclasses.dataclass(frozen=True)
class Signature:
    """Arguments as pytrees of `ArgSpec`.

    `order[i]` is the number of the graph input for leaf `i` of `(args, kwargs)`. `defaults` are the
    values of arguments that a call may leave out, by their names.
    """

    args: tuple[Tree, ...]
    kwargs: Keywords
    arg_names: tuple[str, ...]
    order: tuple[int, ...]
    defaults: Keywords = dataclasses.field(default_factory=dict)


class _Leaf:
    """A tensor of a signature, as a leaf of a pytree."""

    def __init__(self, position: int, spec: TensorSpec):
        self.position = position
        self.spec = spec


def _is_tensor(x: object) -> bool:
    return hasattr(x, "shape") and hasattr(x, "dtype")


def _mark(structure: object) -> Tree:
    """`structure` in plain containers, with `_Leaf` for tensors, numbered in `tf.nest` order.

    Other leaves are unchanged.
    """
    count = itertools.count()

    def marked(x: object) -> Tree:
        if isinstance(x, Mapping):
            items = {k: marked(x[k]) for k in sorted(x)}
            return {k: items[k] for k in x}
        if isinstance(x, tuple) and hasattr(x, "_fields"):
            return type(x)(*map(marked, x))
        if isinstance(x, list | tuple):
            return type(x)(map(marked, x))
        if _is_composite(x):
            return {k: _Leaf(next(count), _own(v)) for k, v in components(x).items()}
        if _is_tensor(x):
            return _Leaf(next(count), _own(x))
        if isinstance(x, OtherSpec) or _is_type_of_tensorflow(x):
            name = x.name if isinstance(x, OtherSpec) else type(x).__name__
            raise SignatureError(
                f"the signature has a {name}, which is neither a tensor nor a structure of tensors",
                remedy="Take and return dense tensors, such as the components of this one.",
            )
        return x

    return marked(plain(structure))


def _own(spec: TfObject) -> TensorSpec:
    """The type of a tensor, or of its specification."""
    if isinstance(spec, TensorSpec):
        return spec
    shape = None if spec.shape.rank is None else tuple(spec.shape.as_list())
    name = getattr(spec, "name", None) or ""
    return TensorSpec(
        shape, decode_dtype(spec.dtype.base_dtype.as_datatype_enum), spec.dtype.name, name
    )


def _is_type_of_tensorflow(x: object) -> bool:
    tf = imported("tensorflow")
    return tf is not None and isinstance(x, tf.TypeSpec)


def components(composite: object) -> dict[str, Tree]:
    """The components of a ragged or sparse tensor, or their specifications, by name."""
    if isinstance(composite, CompositeSpec):
        return dict(composite.parts)
    tf = import_tensorflow()
    parts = tf.nest.flatten(composite, expand_composites=True)
    if isinstance(composite, tf.RaggedTensor | tf.RaggedTensorSpec):
        names = ["flat_values", *(f"row_splits_{i}" for i in range(len(parts) - 1))]
    elif isinstance(composite, tf.SparseTensor | tf.SparseTensorSpec):
        names = ["indices", "values", "dense_shape"]
    else:
        names = ["values", "indices", "dense_shape"]
    return dict(zip(names, parts, strict=False))


def expanded(tree: object) -> Tree:
    """`tree` with ragged and sparse tensors as dictionaries of their components."""
    if not any(map(_is_composite, jax.tree_util.tree_leaves(tree))):
        return tree  # with its dictionaries in their own order
    return jax.tree_util.tree_map(lambda x: components(x) if _is_composite(x) else x, tree)


def composed(spec: object, given: Tree) -> Tree:
    """Compose a ragged or sparse tensor of named components; other values are kept."""
    if not _is_composite(spec):
        return given
    parts = [given[name] for name in components(spec)]
    return import_tensorflow().nest.pack_sequence_as(spec, parts, expand_composites=True)


def with_valid_splits(tree: Tree, rng: np.random.Generator) -> Tree:
    """Example arguments, with row splits that fit the values of their ragged tensors."""

    def parts(x: object) -> bool:
        return isinstance(x, dict) and "flat_values" in x and "row_splits_0" in x

    def valid(x: Tree) -> Tree:
        if not parts(x):
            return x
        x, end = dict(x), len(x["flat_values"])
        for name in sorted((k for k in x if k != "flat_values"), reverse=True):
            inner = np.sort(rng.integers(0, end + 1, max(0, len(x[name]) - 2)))
            x[name] = np.array([0, *inner, end][-len(x[name]) :], x[name].dtype)
            end = len(x[name]) - 1
        return x

    return jax.tree_util.tree_map(valid, tree, is_leaf=parts)


def call_arguments(
    concrete: ConcreteFunction, owner: object, args: Arguments, kwargs: Keywords
) -> CallArguments:
    """The arguments of a function in TensorFlow's structures, from those of its module.

    Ragged and sparse tensors are composed, and static values are those of the trace.

    **Raises:** `ValueError` if the module takes other tensors than the function.
    """
    convert = import_tensorflow().constant
    order = read_signature(concrete, owner=owner).order
    by_position = dict(zip(order, jax.tree_util.tree_leaves((args, kwargs)), strict=True))
    structured = concrete.structured_input_signature
    given = jax.tree_util.tree_map(
        lambda x: convert(by_position[x.position]) if isinstance(x, _Leaf) else x, _mark(structured)
    )
    return jax.tree_util.tree_map(composed, plain(structured), given)


def arrays_of(args: Arguments, kwargs: Keywords, entry: EntryPoint) -> CallArguments:
    """Example arguments for the module of `entry`, without static ones."""
    args = tuple(expanded(x) for x in args)
    if len(args) + sum(n in entry.arg_names for n in kwargs) > len(entry.args):
        args = tuple(x for x in args if any(map(_is_tensor, jax.tree_util.tree_leaves(x))))
    keywords = {n: expanded(x) for n, x in kwargs.items() if n in {*entry.arg_names, *entry.kwargs}}
    types = {**dict(zip(entry.arg_names, entry.args, strict=True)), **entry.kwargs}
    return (
        tuple(map(_without_values, entry.args, args)),
        {n: _without_values(types[n], x) for n, x in keywords.items()},
    )


def _without_values(types: object, example: object) -> Tree:
    """An example of an argument without the static values in its structure."""
    if None not in jax.tree_util.tree_leaves(types, is_leaf=lambda x: x is None):
        return example
    try:
        return jax.tree_util.tree_map(
            lambda spec, x: None if spec is None else x, types, example, is_leaf=lambda x: x is None
        )
    except ValueError:  # other structures are refused with all arguments at hand
        return example


def is_open(tree: object) -> bool:
    """Return whether a specification in `tree` leaves a size or the rank open."""
    tf = import_tensorflow()
    return any(
        isinstance(leaf, tf.TypeSpec) and not leaf.shape.is_fully_defined()
        for leaf in jax.tree_util.tree_leaves(tree)
        if hasattr(leaf, "shape")
    )


def _is_composite(leaf: object) -> bool:
    if isinstance(leaf, CompositeSpec):
        return True
    tf = imported("tensorflow")
    return tf is not None and isinstance(
        leaf,
        tf.RaggedTensorSpec | tf.SparseTensorSpec | tf.IndexedSlicesSpec
        | tf.RaggedTensor | tf.SparseTensor | tf.IndexedSlices,
    )  # fmt: skip


def plain(x: object) -> Tree:
    """`x` with plain containers instead of TensorFlow's (`ListWrapper`, `_DictWrapper`)."""
    if isinstance(x, Mapping):
        return {k: plain(v) for k, v in x.items()}
    if isinstance(x, tuple):
        kind = x.__class__  # TensorFlow's proxies report the class they wrap
        items = [plain(v) for v in x]
        return kind(*items) if hasattr(kind, "_fields") else tuple(items)
    if isinstance(x, list):
        return [plain(v) for v in x]
    return x


def _without_static(x: object) -> Tree:
    """`x` with `None` for static Python values, which were bound at tracing."""
    return jax.tree_util.tree_map(lambda leaf: leaf if isinstance(leaf, _Leaf) else None, x)


def _has_tensor(x: object) -> bool:
    return any(isinstance(leaf, _Leaf) for leaf in jax.tree_util.tree_leaves(x))


def _structured(
    concrete: ConcreteFunction,
) -> tuple[tuple[Tree, ...], dict[str, Tree], list[inspect.Parameter]]:
    """Marked arguments and keyword arguments, and the positional parameters."""
    structured = concrete.structured_input_signature
    if structured is None:
        raise SignatureError(
            "the concrete function does not record the structure of its arguments",
            remedy="Pass the tf.function that it belongs to.",
        )
    args, kwargs = _mark(structured)
    positional = [p for p in concrete.function_type.parameters.values() if p.kind in _POSITIONAL]
    return tuple(args), kwargs, positional


def _optional(parameter: inspect.Parameter, owner: TfObject) -> bool:
    """Return whether a call may omit an argument without tensors, such as `None`.

    Concrete functions do not store defaults; the function that owns them does. Without it, only
    arguments from `*args`, as in jax2tf, are known to have none.
    """
    if owner is None:
        return parameter.kind is not inspect.Parameter.POSITIONAL_ONLY
    own = owner.function_type.parameters.get(parameter.name)
    return own is not None and own.optional


def read_signature(
    concrete: ConcreteFunction, original: inspect.Signature | None = None, owner: object = None
) -> Signature:
    """The signature of a concrete function.

    **Arguments:**

    - `concrete`: the `ConcreteFunction`.
    - `original`: the signature of the wrapped function, if known; it names the arguments.
    - `owner`: the `tf.function` of `concrete`, which knows the optional arguments.

    **Raises:**

    - `SignatureError`: an argument is not a dense tensor.
    """
    args, kwargs, parameters = _structured(concrete)
    tf_names = _argument_names(len(args), parameters)
    names = tf_names if original is None else positional_names(original, len(args))
    last = max((i for i, x in enumerate(args) if _has_tensor(x)), default=-1)
    kept = [
        i
        for i, x in enumerate(args)
        if _has_tensor(x)
        or (not _is_static(x) and (i < last or not _optional(parameters[i], owner)))
    ]
    trees = tuple(_without_static(args[i]) for i in kept)
    keywords = {
        p.name: _without_static(kwargs[p.name])
        for p in concrete.function_type.parameters.values()
        if p.name in kwargs
        and (_has_tensor(kwargs[p.name]) or not (_is_static(kwargs[p.name]) or _optional(p, owner)))
    }
    leaves = [
        leaf for leaf in jax.tree_util.tree_leaves((trees, keywords)) if isinstance(leaf, _Leaf)
    ]
    spec_args = tuple(
        _specs(tree, names[i], tf_names[i]) for i, tree in zip(kept, trees, strict=True)
    )
    spec_kwargs = {k: _specs(v, k, k) for k, v in keywords.items()}
    stated = _stated_defaults(owner)
    wanted = [(names[i], tf_names[i], x) for i, x in zip(kept, spec_args, strict=True)]
    wanted += [(k, k, x) for k, x in spec_kwargs.items()]
    known = {n: _default(stated[own], x) for n, own, x in wanted if own in stated}
    return Signature(
        spec_args,
        spec_kwargs,
        tuple(names[i] for i in kept),
        tuple(leaf.position for leaf in leaves),
        {n: x for n, x in known.items() if x is not None},
    )


def _stated_defaults(owner: TfObject) -> dict[str, Tree]:
    """The defaults of a function by the names of its parameters."""
    if owner is None:
        return {}
    function = getattr(owner, "python_function", None)
    if function is None:  # read from a file
        parameters = owner.function_type.parameters.values()
        return {p.name: p.default for p in parameters if p.optional}
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # not written in Python
        return {}
    return {p.name: p.default for p in parameters if p.default is not p.empty}


def _default(value: object, specs: object) -> Tree:
    """A default in its argument's types; `None` where it does not fit."""
    leaves, tree = jax.tree_util.tree_flatten(specs)
    given = value if isinstance(specs, ArgSpec) else plain(value)
    try:
        values = tree.flatten_up_to(given)
        return tree.unflatten(map(_default_array, values, leaves)) if leaves else None
    except (TypeError, ValueError):
        return None


def _default_array(value: Value, spec: ArgSpec) -> np.ndarray:
    """The default as an array; raises `TypeError` or `ValueError` for other types."""
    if isinstance(value, GivenArray):
        array = value.array
    else:
        array = np.asarray(value.numpy() if hasattr(value, "numpy") else value)
    array = array.astype(spec.dtype, casting="same_kind")
    if len(array.shape) != len(spec.shape) or any(
        isinstance(n, int) and n != m for n, m in zip(spec.shape, array.shape, strict=True)
    ):
        raise ValueError("the default has another shape")
    return array


def _is_static(x: object) -> bool:
    """Return whether an argument is a Python value; empty containers and None are pytrees."""
    leaves = jax.tree_util.tree_leaves(x)
    return bool(leaves) and not _has_tensor(x)


def _argument_names(count: int, parameters: Sequence[inspect.Parameter]) -> list[str]:
    names = [p.name for p in parameters[:count]]
    return names + [f"args_{i}" for i in range(len(names), count)]


def positional_names(signature: inspect.Signature, count: int) -> list[str]:
    """Names of the first `count` positional arguments of a Python signature."""
    names = [p.name for p in signature.parameters.values() if p.kind in _POSITIONAL][:count]
    rest = [p.name for p in signature.parameters.values() if p.kind is p.VAR_POSITIONAL]
    base = rest[0] if rest else "args"
    return names + [free_name(f"{base}_{i}", names) for i in range(count - len(names))]


def _specs(tree: object, name: str, tf_name: str) -> Tree:
    paths, treedef = jax.tree_util.tree_flatten_with_path(tree)
    specs = [_arg_spec(leaf.spec, _path_name(name, p), _path_name(tf_name, p)) for p, leaf in paths]
    return jax.tree_util.tree_unflatten(treedef, specs)


def _path_name(name: str, path: Sequence[KeyEntry]) -> str:
    return ".".join([name, *(jax.tree_util.keystr((k,), simple=True) for k in path)])


def _arg_spec(spec: TensorSpec, name: str, tf_path: str) -> ArgSpec:
    """The type of an argument, named `name` unless its `TensorSpec` has a name."""
    given = spec.name
    generated = tf_path.replace(".", "_")
    if given and given not in (generated, tf_path) and not given.startswith("args_"):
        name = given
    if spec.shape is None and spec.dtype.kind != "O":
        raise SignatureError(
            f"argument {name!r} has no fixed rank", remedy="Give it one when exporting."
        )
    return ArgSpec(name, spec.shape or (), spec.dtype)


def check_numeric(signature: Signature) -> None:
    """Refuse arguments that are not numbers.

    **Raises:** `SignatureError`.
    """
    for spec in jax.tree_util.tree_leaves((signature.args, signature.kwargs)):
        if spec.dtype.kind == "O":
            raise SignatureError(
                f"argument {spec.name!r} holds text, which JAX arrays cannot hold",
                remedy=(
                    'With Config(text="split") the first numeric tensors become the arguments, and '
                    "the ops that compute them from text are left out."
                ),
            )


def split_signature(
    signature: Signature, kept: Sequence[int], features: Sequence[ArgSpec]
) -> Signature:
    """The signature reduced to some arguments, by index, followed by new ones."""
    leaves, tree = jax.tree_util.tree_flatten((signature.args, dict(signature.kwargs)))
    # Trees of the indices of the new inputs; -1 if removed.
    numbers = [kept.index(n) if n in kept else -1 for n in signature.order]
    specs = dict(zip(numbers, leaves, strict=True))
    args, kwargs = jax.tree_util.tree_unflatten(tree, numbers)
    named = [(n, pruned(x)) for n, x in zip(signature.arg_names, args, strict=True)]
    keywords = {k: pruned(x) for k, x in kwargs.items()}
    by_keyword = not named and bool(keywords)
    named = [(n, x) for n, x in named if x is not _GONE]
    keywords = {k: x for k, x in keywords.items() if x is not _GONE}
    taken = [*(n for n, _ in named), *keywords]
    for number, feature in enumerate(features, len(kept)):
        name = free_name(feature.name, taken)
        taken.append(name)
        specs[number] = dataclasses.replace(feature, name=name)
        if by_keyword:
            keywords[name] = number
        else:
            named.append((name, number))
    trees = tuple(x for _, x in named), keywords
    new_args, new_kwargs = jax.tree_util.tree_map(lambda n: specs[n], trees)
    order = tuple(jax.tree_util.tree_leaves(trees))
    return Signature(new_args, new_kwargs, tuple(n for n, _ in named), order)


_GONE: Tree = object()


def pruned(tree: object) -> Tree:
    """A tree of numbers without entries of -1; a mark that is no number if none is left."""
    if isinstance(tree, int):
        return _GONE if tree == -1 else tree
    if isinstance(tree, Mapping):
        items = {k: pruned(v) for k, v in tree.items()}
        items = {k: v for k, v in items.items() if v is not _GONE}
    elif isinstance(tree, list | tuple):
        items = [v for v in map(pruned, tree) if v is not _GONE]
    else:
        return tree
    if tree and not items:
        return _GONE
    if isinstance(items, list) and isinstance(tree, tuple):
        # A named tuple cannot lose fields.
        whole = len(items) == len(tree) and hasattr(tree, "_fields")
        return type(tree)(*items) if whole else tuple(items)
    return items


def flat_specs(
    in_tree: jax.tree_util.PyTreeDef, specs: Sequence[object], original: inspect.Signature
) -> Signature:
    """The signature of a function of flat leaves.

    Leaves that are not types are static, and not arguments of the signature.
    """
    tf = import_tensorflow()
    count = itertools.count()
    marked = [_Leaf(next(count), _own(s)) if isinstance(s, tf.TypeSpec) else s for s in specs]
    args, kwargs = jax.tree_util.tree_unflatten(in_tree, marked)
    named = [
        (name, _without_static(x))
        for name, x in zip(positional_names(original, len(args)), args, strict=True)
        if not _is_static(x)
    ]
    spec_args = tuple(_specs(x, n, n) for n, x in named)
    spec_kwargs = {
        k: _specs(_without_static(v), k, k) for k, v in kwargs.items() if not _is_static(v)
    }
    order = tuple(range(next(count)))
    return Signature(spec_args, spec_kwargs, tuple(n for n, _ in named), order)


def numbered(tree: Tree) -> Tree:
    """A pytree of the numbers of its leaves, with dictionaries in their own order."""
    leaves, structure = jax.tree_util.tree_flatten(tree)

    def ordered(like: Tree, numbers: Tree) -> Tree:
        if type(like) is dict:
            return {k: ordered(v, numbers[k]) for k, v in like.items()}
        if type(like) in (list, tuple):
            return type(like)(map(ordered, like, numbers))
        return numbers

    return ordered(tree, structure.unflatten(range(len(leaves))))


def read_outputs(
    concrete: ConcreteFunction,
) -> tuple[tuple[int, ...], jax.tree_util.PyTreeDef, Tree]:
    """The graph output of each result leaf, and the structure of the result.

    The last result is that structure as `EntryPoint.outputs`.
    """
    marked = _mark(concrete.structured_outputs)
    leaves, treedef = jax.tree_util.tree_flatten(marked)
    if not all(isinstance(leaf, _Leaf) for leaf in leaves):
        strange = next(x for x in leaves if not isinstance(x, _Leaf))
        raise SignatureError(
            f"the function returns a {type(strange).__name__}, not an array",
            remedy="Return the arrays that it holds.",
        )
    return tuple(leaf.position for leaf in leaves), treedef, numbered(marked)


def tensor_spec(x: TfObject, *, scalars: bool) -> TfObject:
    """The `tf.TensorSpec` of an example argument; Python scalars stay unless `scalars`."""
    tf = import_tensorflow()
    if isinstance(x, tf.TypeSpec):
        return x
    if _is_composite(x):
        return tf.type_spec_from_value(x)
    if _is_tensor(x):
        shape = [d if isinstance(d, int) else None for d in x.shape]
        return tf.TensorSpec(shape, tf.as_dtype(x.dtype))
    if isinstance(x, bool | int | float | complex):
        if not scalars:
            return x
        return tf.TensorSpec((), tf.as_dtype(jax.dtypes.canonicalize_dtype(type(x))))
    if not scalars:
        return x
    raise SignatureError(
        f"expected an array or a TensorSpec, got a {type(x).__name__}",
        remedy="Pass an example array, or its type as a tf.TensorSpec.",
    )


def matches(
    concrete: ConcreteFunction,
    args: Arguments,
    kwargs: Keywords,
    *,
    exact: bool = False,
    owner: object = None,
) -> bool:
    """Return whether `concrete` takes the arguments.

    **Arguments:**

    - `exact`: whether their shapes and dtypes have to be those of `concrete`.
    - `owner`: the function, which knows its default arguments.
    """
    if (bound := _bound(concrete, args, kwargs)) is None:
        return False
    want, given = bound
    optional = _stated_defaults(owner)
    return all(
        _fits(tree, given[key], exact) if key in given else key in optional or not _has_tensor(tree)
        for key, tree in want.items()
    )


def _wanted(concrete: ConcreteFunction) -> tuple[list[str], dict[str, Tree]]:
    """The names of the positional arguments, and all marked arguments by name."""
    args, kwargs, parameters = _structured(concrete)
    names = _argument_names(len(args), parameters)
    return names, dict(zip(names, args, strict=True)) | kwargs


def _bound(
    concrete: ConcreteFunction, args: Arguments, kwargs: Keywords
) -> tuple[dict[str, Tree], dict[str, Tree]] | None:
    """Marked and given arguments by name; `None` if names do not fit."""
    names, want = _wanted(concrete)
    if len(args) > len(names) or any(k not in want or k in names[: len(args)] for k in kwargs):
        return None
    return want, dict(zip(names, args, strict=False)) | dict(kwargs)


def picked(
    concrete: ConcreteFunction, owner: object, args: Arguments, kwargs: Keywords, exact: bool
) -> CallArguments | None:
    """The arguments of a call, as passed to the entry point of one trace.

    **Arguments:**

    - `concrete`: the trace.
    - `owner`: the function, which knows its default arguments.
    - `exact`: whether shapes and dtypes have to be those of the trace.

    **Returns:** positional and keyword arguments; `None` if the call does not fit the trace.
    """
    if (bound := _bound(concrete, args, kwargs)) is None:
        return None
    want, given = bound
    given = _stated_defaults(owner) | given
    if not all(k in given and _fits(tree, given[k], exact) for k, tree in want.items()):
        return None
    signature = read_signature(concrete, owner=owner)

    def own(name: str) -> Tree:
        return jax.tree_util.tree_map(
            lambda leaf, value: value if isinstance(leaf, _Leaf) else None,
            want[name],
            expanded(plain(given[name])),
        )

    return tuple(map(own, signature.arg_names)), {k: own(k) for k in signature.kwargs}


def picked_split(
    concrete: ConcreteFunction,
    owner: object,
    signature: Signature,
    args: Arguments,
    kwargs: Keywords,
    exact: bool,
) -> CallArguments | None:
    """As `picked`, for a `signature` without string arguments; Python values by name."""
    static = {k: tree for k, tree in _wanted(concrete)[1].items() if not _has_tensor(tree)}
    given = _stated_defaults(owner) | {k: v for k, v in kwargs.items() if k in static}
    rest = {k: v for k, v in kwargs.items() if k not in static}
    takes = {*signature.arg_names[len(args) :], *signature.kwargs}
    if len(args) > len(signature.arg_names) or rest.keys() != takes:
        return None
    if not all(k in given and _fits(tree, given[k], exact) for k, tree in static.items()):
        return None
    return tuple(args), rest


def _fits(want: object, given: object, exact: bool) -> bool:
    want_leaves, want_tree = jax.tree_util.tree_flatten(want)
    leaves, tree = jax.tree_util.tree_flatten(expanded(plain(given)))
    return want_tree == tree and all(
        _leaf_fits(w, g, exact) for w, g in zip(want_leaves, leaves, strict=True)
    )


def _leaf_fits(want: object, given: object, exact: bool) -> bool:
    if not isinstance(want, _Leaf):
        return not _is_tensor(given) and bool(want == given)
    if not _is_tensor(given) and not isinstance(given, bool | int | float | complex):
        return False
    spec = _type_of(given)
    want_dtype, dtype = want.spec.dtype, spec.dtype
    if want_dtype != dtype and (
        exact
        or "O" in (want_dtype.kind, dtype.kind)
        or jax.dtypes.canonicalize_dtype(want_dtype) != jax.dtypes.canonicalize_dtype(dtype)
    ):
        return False
    shape = want.spec.shape
    if exact or shape is None or spec.shape is None:
        return (shape is None and not exact) or shape == spec.shape
    return fits_shape(spec.shape, shape)


def _type_of(given: object) -> TensorSpec:
    """The type of an array of any library, or of a number."""
    if _is_type_of_tensorflow(given) or hasattr(getattr(given, "shape", None), "as_list"):
        return _own(tensor_spec(given, scalars=True))
    dtype = getattr(given, "dtype", None)
    dtype = np.dtype(dtype or jax.dtypes.canonicalize_dtype(type(given)))
    shape = tuple(n if isinstance(n, int) else None for n in getattr(given, "shape", ()))
    return TensorSpec(shape, dtype, dtype.name, "")


def describe(concrete: ConcreteFunction) -> str:
    """One line that shows the arguments of a concrete function."""
    args, kwargs = concrete.structured_input_signature
    parts = [_describe(plain(a)) for a in args]
    # A SavedModel does not keep their order.
    parts += [f"{k}={_describe(plain(v))}" for k, v in sorted(kwargs.items())]
    return f"({', '.join(parts)})"


def _describe(x: object) -> str:
    if _is_tensor(x):
        spec = _own(x)
        return f"{spec.type}{'(...)' if spec.shape is None else spec.shape}"
    if isinstance(x, CompositeSpec):
        return _describe(x.whole)
    if isinstance(x, dict):
        return "{" + ", ".join(f"{k}: {_describe(v)}" for k, v in x.items()) + "}"
    if isinstance(x, tuple | list):
        left, right = "[]" if isinstance(x, list) else "()"
        return left + ", ".join(_describe(v) for v in x) + right
    return repr(x)


def trace_names(function: str, concretes: Sequence[C]) -> list[str]:
    """A name for each trace of a function: `f(training=True)` states how it differs.

    **Arguments:**

    - `function`: the name of the function.
    - `concretes`: its traces, with different signatures.
    """
    if len(concretes) == 1:
        return [function]
    described = [{k: _describe(v) for k, v in _by_name(c).items()} for c in concretes]
    names = dict.fromkeys(name for parts in described for name in parts)
    apart = [n for n in names if len({parts.get(n) for parts in described}) > 1]
    return [
        f"{function}({', '.join(f'{n}={parts[n]}' for n in apart if n in parts)})"
        for parts in described
    ]


def default_trace(concretes: Sequence[C], owner: object) -> C | None:
    """The first trace that a call without optional arguments runs, if there is one."""
    stated = _stated_defaults(owner)

    def is_default(concrete: ConcreteFunction) -> bool:
        return all(
            name in stated and _fits(tree, stated[name], True)
            for name, tree in _wanted(concrete)[1].items()
            if not _has_tensor(tree)
        )

    return next(filter(is_default, concretes), None)


def _by_name(concrete: ConcreteFunction) -> dict[str, Tree]:
    """The arguments of a concrete function by name, with plain types for tensors."""
    args, kwargs = concrete.structured_input_signature
    parameters = [p for p in concrete.function_type.parameters.values() if p.kind in _POSITIONAL]
    names = _argument_names(len(args), parameters)
    # A SavedModel does not keep the order of keyword arguments.
    given = dict(zip(names, args, strict=True)) | dict(sorted(kwargs.items()))
    return {name: plain(value) for name, value in given.items()}


def distinct(concretes: Sequence[C]) -> list[C]:
    """One function per signature; saving traces functions again."""
    functions: list[C] = []
    for concrete in concretes:
        if not any(same_signature(concrete, other) for other in functions):
            functions.append(concrete)
    return functions


def same_signature(one: ConcreteFunction, other: ConcreteFunction) -> bool:
    """Return whether two concrete functions take the same arguments, ignoring tensor names."""
    trees = [jax.tree_util.tree_flatten(_structured(c)[:2]) for c in (one, other)]
    return trees[0][1] == trees[1][1] and all(
        (a.spec.shape, a.spec.dtype) == (b.spec.shape, b.spec.dtype)
        if isinstance(a, _Leaf) and isinstance(b, _Leaf)
        else type(a) is type(b) and a == b
        for a, b in zip(trees[0][0], trees[1][0], strict=True)
    )
