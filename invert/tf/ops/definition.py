"""Attributes and tensor types of nodes, from the definitions of their ops."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from invert.ir.sizes import DimSize
from invert.ir.types import Value
from invert.protos.ops import Argument, Attribute, Definition
from invert.protos.tensors import REFERENCE, decode_dtype, decode_shape, is_type, type_name
from invert.protos.types import Attributes, AttrValue, NodeDef
from invert.tf.ops.node import PASSED, Node

# A run of tensors of one type: their number and `DataType`.
Run = tuple[int, int]

_ARRAYS = (np.ndarray, jax.Array)

# How a function denotes an attribute that its caller sets.
_LATER = "placeholder"


def types_of(args: Iterable[Argument], attrs: Attributes) -> Iterator[Run]:
    """The types of the inputs or outputs of a node."""
    for _, kind, type_attr, number_attr, type_list_attr, is_ref in args:
        if type_list_attr:
            yield from ((1, t) for t in attrs[type_list_attr].list.type)
            continue
        count = attrs[number_attr].i if number_attr else 1
        if type_attr:
            kind = attrs[type_attr].type
        yield count, kind + REFERENCE if is_ref and kind < REFERENCE else kind


def type_at(runs: Iterable[Run], index: int) -> int | None:
    """The type of tensor `index`; `None` if there are fewer."""
    for count, kind in runs:
        if index < count:
            return kind
        index -= count
    return None


def fits(given: int, wanted: int) -> bool:
    """Return whether a tensor may be an input of another type; 0 is unknown.

    A reference serves as a value, but not the reverse.
    """
    return not given or not wanted or given == wanted or given - REFERENCE == wanted


def add_defaults(node: NodeDef, definition: Definition) -> None:
    """Add omitted attributes, with their defaults, to a `NodeDef` proto.

    It changes the node in place: a copy would hold the constants of its program twice.
    """
    attrs = node.attr
    for attr in definition.attr:
        if attr.default is not None and attr.name not in attrs:
            attrs[attr.name].CopyFrom(attr.default)


def attribute_problems(attrs: Attributes, definition: Definition) -> Iterator[str]:
    """Problems with the attributes of a node."""
    for spec in definition.attr:
        if (name := spec.name) not in attrs:
            yield f"lacks the attribute {name!r}"
        elif (reason := _problem(attrs[name], spec)) is not None:
            yield f"has an attribute {name!r} that {reason}"


def _problem(value: AttrValue, spec: Attribute) -> str | None:
    kind = value.WhichOneof("value")
    if kind == "type" and spec.type == "type":  # most are
        return _wrong_item(kind, value.type, spec)
    if kind == _LATER:
        return "is not known before the function is called"
    if (plain := spec.field) is None:
        return None
    if kind != ("list" if spec.listed else plain):
        return f"is not of the type {spec.type}"
    if not spec.listed:
        if plain == "i" and spec.least is not None and value.i < spec.least:
            return f"is {value.i}, which is less than {spec.least}"
        return _wrong_item(plain, getattr(value, plain), spec)
    for field in value.list.DESCRIPTOR.fields:
        if field.name != plain and len(getattr(value.list, field.name)):
            return f"is not of the type {spec.type}"
    items: Sequence[Any] = getattr(value.list, plain)
    if spec.least is not None and len(items) < spec.least:
        return f"has {len(items)} elements, fewer than {spec.least}"
    return next((r for i in items if (r := _wrong_item(plain, i, spec)) is not None), None)


def _wrong_item(kind: str, item: Any, spec: Attribute) -> str | None:
    if kind == "type" and not is_type(item):
        return f"is {item}, which is not a type of values"
    if kind == "shape" and any(d.size < -1 for d in item.dim):
        return "has a size less than -1"
    if spec.allowed is not None and item not in spec.allowed:
        word = type_name(item) if kind == "type" else repr(item)
        return f"is {word}, which the op does not allow"
    return None


def options(definition: Definition) -> dict[str, AttrValue | None]:
    """The attributes that affect what an op computes, with their defaults as protos.

    Those that only give types or numbers of its inputs and results are left out.
    """
    counts = {a.number_attr for a in (*definition.input_arg, *definition.output_arg)}
    return {
        a.name: a.default
        for a in definition.attr
        if a.type not in ("type", "list(type)") and a.name not in counts
    }


def unusual(attrs: Attributes, options: Mapping[str, AttrValue | None]) -> list[str]:
    """The options of a node that differ from the op's defaults."""
    return [
        name
        for name, default in options.items()
        if name in attrs and (default is None or attrs[name] != default)
    ]


def _declared(attrs: Attributes, args: Sequence[Argument]) -> list[Run] | None:
    """The types of arguments by a node's attributes; `None` if it lacks one."""
    for arg in args:
        key = arg.type_list_attr or arg.type_attr
        if key and key not in attrs:
            return None
    return list(types_of(args, attrs))


def operand_dtype(attrs: Attributes, definition: Definition, i: int) -> np.dtype | None:
    """The dtype of operand `i` by the op's definition, if it says."""
    kind = type_at(_declared(attrs, definition.input_arg) or (), i)
    return decode_dtype(kind) if kind and kind < REFERENCE else None


def dtypes_of(runs: Iterable[Run]) -> Iterator[np.dtype | None]:
    """The dtypes of tensors; `None` for references."""
    for count, kind in runs:
        yield from [decode_dtype(kind) if kind < REFERENCE else None] * count


def result_problem(node: Node, definition: Definition, results: Sequence[Value]) -> str | None:
    """How results differ from the definition of the op; `None` if they do not.

    Handles and lists have no type here; rewritten nodes may omit attributes with types.
    """
    if (form := node.form) is not None and form.definition is definition:
        dtypes = form.dtypes
    elif (runs := _declared(node.attrs, definition.output_arg)) is not None:
        dtypes = list(dtypes_of(runs))
    else:
        return None
    if len(dtypes) != len(results):
        return f"has {len(results)} results, but its definition says {len(dtypes)}"
    for i, (wanted, result) in enumerate(zip(dtypes, results, strict=True)):
        if wanted is None or not isinstance(result, _ARRAYS) or wanted is result.dtype:
            continue
        # An array of objects holds strings, or sizes, some of them symbolic.
        if "O" in (wanted.kind, result.dtype.kind):
            continue
        if jax.dtypes.canonicalize_dtype(wanted) != jax.dtypes.canonicalize_dtype(result.dtype):
            return f"has a result {i} of {result.dtype}, but its definition says {wanted}"
    return None


def shape_problem(node: Node, results: Sequence[Value]) -> str | None:
    """How shapes of results differ from those declared; `None` if they agree.

    Sizes that are open or unknown on either side are not compared.
    """
    for name in ("_output_shapes", "Sout", "output_shapes"):
        # The last is for control flow; elsewhere it may hold the shapes of elements.
        if name not in node.attrs or (name == "output_shapes" and node.op not in PASSED):
            continue
        declared = node.attrs[name].list.shape
        if len(declared) != len(results):
            continue
        for i, (proto, result) in enumerate(zip(declared, results, strict=True)):
            if not isinstance(result, _ARRAYS):
                continue
            wanted = decode_shape(proto)
            if wanted is None or _agree(wanted, result.shape):
                continue
            # A shape of unknown rank is the scalar -1, although inference declares a vector.
            if len(wanted) == 1 and not result.shape and result.dtype.kind == "i":
                continue
            return f"has a result {i} of shape {result.shape}, but the graph declares {wanted}"
    return None


def _agree(wanted: Sequence[int | None], shape: Sequence[DimSize]) -> bool:
    """Return whether two shapes may be equal."""
    return len(wanted) == len(shape) and all(
        a is None or a == b or not isinstance(b, int) for a, b in zip(wanted, shape, strict=True)
    )
