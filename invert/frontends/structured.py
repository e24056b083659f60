"""Signatures as SavedModels hold them: structured values, and the parameters of functions."""

from __future__ import annotations

import collections
import dataclasses
import functools
import inspect
from collections.abc import Mapping, Sequence

import numpy as np

from invert._errors import MalformedModelError
from invert._private.tensorflow import TfObject
from invert.ir.types import Value
from invert.protos.tensors import decode_dtype, decode_shape, decode_tensor, type_name
from invert.protos.types import FunctionSpec, StructuredValue, TypeSpecProto

# The types of `TypeSpecProto` (tensorflow/core/protobuf/struct.proto, TensorFlow 2.21).
_SPARSE, _SLICES, _RAGGED, _VARIABLE = 1, 2, 3, 9
_INT64 = 9
_DEEPEST = 100


@dataclasses.dataclass(frozen=True)
class TensorSpec:
    """The type of a tensor.

    **Arguments:**

    - `shape`: sizes with `None` for open ones; `None` if the rank is unknown.
    - `type`: TensorFlow's name of the element type.
    - `name`: its name; empty if it has none.
    """

    shape: tuple[int | None, ...] | None
    dtype: np.dtype
    type: str
    name: str = ""


@dataclasses.dataclass(frozen=True)
class CompositeSpec:
    """The type of a ragged or sparse tensor: component types by name."""

    whole: TensorSpec
    parts: Mapping[str, TensorSpec]


@dataclasses.dataclass(frozen=True)
class OtherSpec:
    """The type of a value that does not consist of tensors."""

    name: str


@dataclasses.dataclass(frozen=True, eq=False)
class GivenArray(OtherSpec):
    """An array, such as the default of an argument."""

    array: np.ndarray


@dataclasses.dataclass(frozen=True)
class _Type:
    """A `DataType` by its number."""

    number: int


@dataclasses.dataclass(frozen=True)
class Parameter:
    """A parameter of a function: name, kind (as in `inspect`), and default, if any."""

    name: str
    kind: Value
    optional: bool
    default: Value = None


def decode(value: StructuredValue, depth: int = 0) -> Value:
    """Decode a `StructuredValue` to plain containers and this file's tensor types.

    **Raises:** `MalformedModelError`.
    """
    if depth > _DEEPEST:
        raise MalformedModelError("a signature of the model is nested too deeply")
    kind = value.WhichOneof("kind")
    if kind is None:
        raise MalformedModelError("a signature of the model holds a value of an unknown kind")
    content = getattr(value, kind)
    inner = functools.partial(decode, depth=depth + 1)
    if kind == "none_value":
        return None
    if kind in ("float64_value", "int64_value", "string_value", "bool_value"):
        return content
    if kind == "list_value":
        return [inner(v) for v in content.values]
    if kind == "tuple_value":
        return tuple(inner(v) for v in content.values)
    if kind == "dict_value":
        return {k: inner(content.fields[k]) for k in sorted(content.fields)}
    if kind == "named_tuple_value":
        make = _named_tuple(content.name, tuple(pair.key for pair in content.values))
        return make(*(inner(pair.value) for pair in content.values))
    if kind == "tensor_shape_value":
        return decode_shape(content)
    if kind == "tensor_dtype_value":
        return _Type(content)
    if kind in ("tensor_spec_value", "bounded_tensor_spec_value"):
        return _spec(decode_shape(content.shape), content.dtype, content.name)
    if kind == "type_spec_value":
        return _type_spec(content, inner)
    if kind in ("tensor_value", "numpy_value"):
        return GivenArray("constant tensor", decode_tensor(content, "a signature of the model"))
    return OtherSpec(kind.removesuffix("_value"))


@functools.lru_cache(maxsize=1024)
def _named_tuple(name: str, fields: tuple[str, ...]) -> TfObject:
    try:
        return collections.namedtuple(name, fields)
    except ValueError as error:
        raise MalformedModelError(
            f"a signature of the model holds a namedtuple that cannot be built: {error}"
        ) from error


def _spec(shape: tuple[int | None, ...] | None, number: int, name: str = "") -> TensorSpec:
    return TensorSpec(shape, decode_dtype(number), type_name(number), name)


def _type_spec(proto: TypeSpecProto, inner: Value) -> TfObject:
    """The type of a composite tensor, from the constructor arguments of its TensorFlow class."""
    kind, name = proto.type_spec_class, proto.type_spec_class_name or "type"
    state = inner(proto.type_state)
    wanted: dict[int, tuple[Value, ...]] = {
        _SPARSE: (tuple, _Type),
        _SLICES: (tuple, _Type, _Type, (_Type, type(None)), tuple),
        _RAGGED: (tuple, _Type, int, _Type),
        _VARIABLE: (tuple, _Type),
    }
    if kind not in wanted:
        return OtherSpec(name)
    classes = wanted[kind]
    fits = isinstance(state, tuple) and len(state) >= len(classes)
    if fits and state[0] is None:  # unknown rank
        return OtherSpec(f"{name} of unknown rank")
    if not fits or not all(map(isinstance, state, classes)):
        raise MalformedModelError(f"a signature of the model holds a damaged {name}")
    shape, dtype = state[0], state[1].number
    if kind == _VARIABLE:
        return _spec(shape, dtype)
    if kind == _SPARSE:
        return sparse_spec(shape, dtype)
    if kind == _SLICES:
        parts = {"values": _spec(shape, dtype), "indices": _spec(state[4], state[2].number)}
        if state[3] is not None:
            parts["dense_shape"] = _spec((len(shape),), state[3].number)
        return CompositeSpec(_spec(shape, dtype), parts)
    rank, splits = state[2], state[3].number
    if not 0 <= rank < max(len(shape), 1):
        raise MalformedModelError(f"a signature of the model holds a damaged {name}")
    if not rank:
        return CompositeSpec(_spec(shape, dtype), {"flat_values": _spec(shape, dtype)})
    parts = {"flat_values": _spec((None, *shape[rank + 1 :]), dtype)}
    for i in range(rank):
        rows = shape[0] + 1 if i == 0 and shape[0] is not None else None
        parts[f"row_splits_{i}"] = _spec((rows,), splits)
    return CompositeSpec(_spec(shape, dtype), parts)


def sparse_spec(shape: tuple[int | None, ...] | None, number: int) -> CompositeSpec:
    """The type of a sparse tensor of some shape and `DataType`."""
    rank = None if shape is None else len(shape)
    return CompositeSpec(_spec(shape, number), {
        "indices": _spec((None, rank), _INT64),
        "values": _spec((None,), number),
        "dense_shape": _spec((rank,), _INT64),
    })  # fmt: skip


def parameters_of(spec: FunctionSpec) -> list[Parameter]:
    """The parameters of a Python function from its `FunctionSpec`, without `self`.

    **Raises:** `MalformedModelError`.
    """
    args, keywords = _names(spec, "args"), _names(spec, "kwonlyargs")
    varargs, varkw = (_field(spec, name, (str, type(None))) for name in ("varargs", "varkw"))
    defaults = _field(spec, "defaults", (tuple, list, type(None))) or ()
    # Where there are more defaults than parameters, the first are of none.
    optional = dict(zip(reversed(args), reversed(defaults), strict=False))
    optional |= _field(spec, "kwonlydefaults", (dict, type(None))) or {}
    if spec.is_method or args[:1] == ["self"]:
        args = args[1:]
    kinds = inspect.Parameter
    stated = spec.input_signature.WhichOneof("kind")
    constraints = decode(spec.input_signature) or () if stated else ()
    if not isinstance(constraints, (tuple, list, dict)):
        raise MalformedModelError(_NO_PARAMETERS)
    kind = kinds.POSITIONAL_OR_KEYWORD
    if constraints and varargs:
        kind = kinds.POSITIONAL_ONLY
    parameters = [Parameter(_argument_name(a), kind, a in optional, optional.get(a)) for a in args]
    if varargs and constraints:
        # Each entry of the input signature is a separate parameter.
        more = range(max(0, len(constraints) - len(args)))
        parameters += [Parameter(f"{varargs}_{i}", kind, False) for i in more]
    elif varargs:
        parameters.append(Parameter(varargs, kinds.VAR_POSITIONAL, False))
    parameters += [
        Parameter(_argument_name(a), kinds.KEYWORD_ONLY, a in optional, optional.get(a))
        for a in keywords
    ]
    if varkw and not constraints:
        parameters.append(Parameter(varkw, kinds.VAR_KEYWORD, False))
    return parameters


_NO_PARAMETERS = "a function of the model has no list of its parameters"


def _field(spec: FunctionSpec, name: str, kinds: tuple[type, ...]) -> Value:
    """A field of Python's `inspect.FullArgSpec`, which a `FunctionSpec` holds.

    **Raises:** `MalformedModelError` if it is of none of these types.
    """
    value = getattr(decode(spec.fullargspec), name, spec)
    if not isinstance(value, kinds):
        raise MalformedModelError(_NO_PARAMETERS)
    return value


def _names(spec: FunctionSpec, name: str) -> list[str]:
    names = _field(spec, name, (tuple, list, type(None))) or ()
    if not all(isinstance(n, str) for n in names):
        raise MalformedModelError(_NO_PARAMETERS)
    return list(names)


def _argument_name(name: str) -> str:
    """A name as TensorFlow rewrites it if it is not a Python identifier."""
    plain = "".join(c if c.isalnum() else "_" for c in name)
    return plain if plain[:1].isalpha() else f"arg_{plain}"


def bound_parameters(
    parameters: Sequence[Parameter], args: Sequence[object], kwargs: Mapping[str, object]
) -> list[Parameter]:
    """The parameters of a concrete function, one per argument.

    **Raises:** `MalformedModelError` if the arguments do not fit.
    """
    kinds = inspect.Parameter
    by_name = {p.name: p for p in parameters}
    try:
        signature = inspect.Signature([
            kinds(p.name, p.kind, default=None if p.optional else kinds.empty) for p in parameters
        ])  # fmt: skip
        bound = signature.bind(*args, **{_argument_name(k): v for k, v in kwargs.items()})
    except (TypeError, ValueError) as error:
        raise MalformedModelError(
            f"a function of the model does not accept its own arguments: {error}"
        ) from error
    variadic = any(p.kind is kinds.VAR_POSITIONAL for p in parameters)
    found = []
    for name, value in bound.arguments.items():
        kind = by_name[name].kind
        if kind is kinds.VAR_POSITIONAL:
            found += [
                Parameter(f"{name}_{i}", kinds.POSITIONAL_ONLY, False) for i in range(len(value))
            ]
        elif kind is kinds.VAR_KEYWORD:
            found += [Parameter(k, kinds.KEYWORD_ONLY, False) for k in sorted(value)]
        elif kind is kinds.POSITIONAL_OR_KEYWORD and variadic:
            found.append(Parameter(name, kinds.POSITIONAL_ONLY, False))
        else:
            found.append(Parameter(name, kind, False))
    return found


def plain_parameters(args: Sequence[object], kwargs: Mapping[str, object]) -> list[Parameter]:
    """The parameters of a concrete function without a Python function."""
    kinds = inspect.Parameter
    return [
        *(Parameter(f"arg_{i}", kinds.POSITIONAL_ONLY, False) for i in range(len(args))),
        *(Parameter(_argument_name(k), kinds.KEYWORD_ONLY, False) for k in kwargs),
    ]
