"""Constants and parameters of equations as Python expressions."""

from __future__ import annotations

import ast
import dataclasses
import enum
import functools
import math
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Primitive, primitives
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec
from jax.typing import ArrayLike, DTypeLike

from invert._errors import EmissionError
from invert._private.jax import DimExpr
from invert.emission.python import syntax
from invert.emission.sizes.expressions import expression
from invert.ir.sizes import DimSize, is_open
from invert.ir.types import Literal


def dtype(value: DTypeLike) -> ast.expr:
    """`jnp.float32`."""
    if jax.dtypes.issubdtype(value, jax.dtypes.prng_key):
        raise EmissionError(f"the dtype {value} has no public name")
    text = np.dtype(value).name
    text = "bool_" if text == "bool" else text
    if not hasattr(jnp, text):
        raise EmissionError(f"jax.numpy has no dtype {text}")
    return syntax.name(f"jnp.{text}")


def _float(value: float) -> ast.expr:
    if math.isfinite(value):
        return syntax.number(value)
    text = syntax.name("jnp.nan" if math.isnan(value) else "jnp.inf")
    return text if math.copysign(1, value) > 0 else syntax.prefix("-", text)


def _shortest(value: Any) -> float:
    """The float with the fewest digits that identify the number in its dtype."""
    kind = np.asarray(value).dtype
    if kind in (np.float64, np.dtype("complex128")):
        return float(value)
    if np.isnan(value):
        return math.copysign(math.nan, -1 if np.signbit(value) else 1)
    if kind == np.float32 or kind == np.float16:
        return float(np.format_float_scientific(value, unique=True, trim="0"))
    wide = float(value)
    if not math.isfinite(wide):
        return wide
    for digits in range(1, 9):
        candidate = float(f"{wide:.{digits}g}")
        if np.asarray(candidate, kind).tobytes() == np.asarray(value, kind).tobytes():
            return candidate
    return wide


def bare(value: ArrayLike) -> ast.expr:
    """A scalar as a Python number: `0.5`, which is weakly typed; `np.uint32(2166136261)`.

    JAX takes a Python number for a signed integer, which does not hold the larger unsigned ones.
    """
    value = np.asarray(value)
    if value.dtype in (np.uint32, np.uint64) and value > np.iinfo(f"i{value.itemsize}").max:
        return typed(value)
    return _plain(value)


def _plain(value: ArrayLike) -> ast.expr:
    """A scalar as a Python number."""
    value = np.asarray(value)[()]
    kind = np.asarray(value).dtype
    if kind == np.bool_:
        return syntax.number(bool(value))
    if jnp.issubdtype(kind, jnp.integer):
        return syntax.number(int(value))
    if jnp.issubdtype(kind, jnp.complexfloating):
        return _complex(value)
    if np.isnan(value) and np.asarray(_shortest(value), kind).tobytes() != value.tobytes():
        word = np.asarray(value).view(f"u{kind.itemsize}")
        return syntax.method(typed(word), "view", dtype(kind))
    return (_formula(value) if kind == np.float32 else None) or _float(_shortest(value))


# From this many digits a number is probably a quotient or a root.
_MANY = 6


@functools.cache
def _formulas() -> dict[float, str]:
    """Numbers as quotients and roots, by their values in single precision."""
    texts = {f"1 / {n}": 1 / n for n in range(3, 1025)}
    texts |= {f"1 / {n / 100:g}": 100 / n for n in range(1, 100)}
    texts |= {f"1 / {n / 2:g}": 2 / n for n in range(7, 1025, 2)}
    texts |= {f"1 / {n}**0.5": 1 / n**0.5 for n in range(2, 4097)}
    texts |= {f"{n}**0.5": n**0.5 for n in range(2, 4097)}
    return {float(np.float32(value)): text for text, value in reversed(texts.items())}


def _formula(value: Any) -> ast.expr | None:
    """`1 / 255` or `1 / 6**0.5`, if equal in single precision."""
    number = float(value)
    if not math.isfinite(number) or len(repr(_shortest(value)).strip("-0.")) < _MANY:
        return None
    text = _formulas().get(abs(number))
    if text is None:
        return None
    found = ast.parse(text, mode="eval").body
    return found if number > 0 else syntax.prefix("-", found)


def _complex(value: Any) -> ast.expr:
    part = np.float32 if np.asarray(value).dtype == np.complex64 else np.float64
    real, imaginary = part(value.real), part(value.imag)
    # The real part of `-1j` is -0.0.
    if not (real or np.signbit(real) or np.signbit(imaginary)) and np.isfinite(imaginary):
        return ast.Constant(complex(0.0, _shortest(imaginary)))
    args = [_float(_shortest(real)), _float(_shortest(imaginary))]
    return syntax.call("complex", *args)


def typed(value: ArrayLike) -> ast.expr:
    """A scalar with its type: `np.float32(0.5)`."""
    kind = np.asarray(value).dtype
    if hasattr(np, kind.name):
        return syntax.call(f"np.{'bool_' if kind == np.bool_ else kind.name}", _plain(value))
    return syntax.call("np.asarray", _plain(value), dtype(kind))


def of_literal(atom: Literal, *, plain: bool) -> ast.expr:
    """A literal of a jaxpr, in its dtype."""
    number = np.asarray(atom.val, atom.aval.dtype)
    if number.ndim:
        return array(number)
    return bare(number) if plain else typed(number)


def array(value: ArrayLike) -> ast.expr:
    """A small array: `np.array([1, 2], np.int32)`."""
    value = np.asarray(value)
    if not value.shape:
        return typed(value)
    if value.size and (value.reshape(-1).view(np.uint8) == 0).all() and not value.dtype.hasobject:
        return syntax.call("np.zeros", shape(value.shape), dtype(value.dtype))

    def nested(part: np.ndarray) -> ast.expr:
        if part.ndim == 0:
            inexact = jnp.issubdtype(part.dtype, jnp.floating)
            return _float(_shortest(part[()])) if inexact else _plain(part)
        return syntax.list_of(nested(p) for p in part)

    if value.size == 0:
        return syntax.call("np.zeros", shape(value.shape), dtype(value.dtype))
    return syntax.call("np.array", nested(value), dtype(value.dtype))


def size(value: DimSize) -> ast.expr:
    """A size; open dimensions are tokens."""
    return expression(value) if is_open(value) else syntax.number(int(value))


def shape(value: Iterable[int]) -> ast.expr:
    """A shape as a tuple."""
    return syntax.tuple_of(size(n) for n in value)


def _tolerance(value: lax.Tolerance) -> ast.expr:
    fields = {n: getattr(value, n) for n in ("atol", "rtol", "ulps")}
    return syntax.call("lax.Tolerance", **{n: syntax.number(v) for n, v in fields.items() if v})


def _sharding(value: NamedSharding) -> ast.expr:
    """A sharding over an abstract mesh: the caller chooses the devices."""
    mesh = value.mesh
    if mesh.empty:
        return syntax.number(None)
    if not isinstance(mesh, AbstractMesh):
        raise EmissionError("a sharding over the devices of this process cannot be written")
    return syntax.call("jax.sharding.NamedSharding", mesh_literal(mesh), spec(value.spec))


def mesh_literal(mesh: AbstractMesh) -> ast.expr:
    """A mesh without devices."""
    return syntax.call(
        "jax.sharding.AbstractMesh",
        syntax.tuple_of(map(syntax.number, mesh.axis_sizes)),
        syntax.tuple_of(map(syntax.number, mesh.axis_names)),
        axis_types=syntax.tuple_of(
            syntax.name(f"jax.sharding.AxisType.{t.name}") for t in mesh.axis_types
        ),
    )


def spec(value: PartitionSpec) -> ast.expr:
    """A partition spec."""
    return syntax.call("jax.sharding.PartitionSpec", *map(_partition, value))


def _partition(entry: Any) -> ast.expr:
    if entry is PartitionSpec.UNCONSTRAINED:
        return syntax.name("jax.sharding.PartitionSpec.UNCONSTRAINED")
    if isinstance(entry, tuple):
        return syntax.tuple_of(map(syntax.number, entry))
    return syntax.number(entry)


_LEAVES: tuple[tuple[type, Callable[[Any], ast.expr]], ...] = (
    (bool, syntax.number),
    (np.bool_, lambda v: syntax.number(bool(v))),
    (int, size),
    (DimExpr, size),
    (np.integer, lambda v: syntax.number(int(v))),
    (float, _float),
    (complex, _complex),
    (str, syntax.number),
    (bytes, syntax.number),
    (type(None), syntax.number),
    (np.floating, typed),
    (np.complexfloating, typed),
    (np.ndarray, array),
    (np.dtype, dtype),
    (lax.Tolerance, _tolerance),
    (NamedSharding, _sharding),
)


def value(v: object) -> ast.expr:
    """A parameter of an equation.

    **Raises:** `EmissionError` if the value cannot be written as an expression.
    """
    if isinstance(v, enum.Enum) and (where := _public_name(type(v))):  # some are numbers too
        return syntax.name(f"{where}.{v.name}")
    for kind, spell in _LEAVES:
        if isinstance(v, kind):
            return spell(v)
    if getattr(getattr(v, "mesh", None), "empty", False):
        return syntax.number(None)  # a sharding over no devices
    if isinstance(v, Primitive):
        where = public_primitives().get(v.name)
        if where is None:
            raise EmissionError(f"the primitive {v.name} has no public name")
        return syntax.name(where)
    names: Any = getattr(v, "_fields", None)
    if isinstance(v, tuple) and names is not None:
        return syntax.call(_public(type(v)), **{f: value(getattr(v, f)) for f in names})
    if isinstance(v, tuple):
        return syntax.tuple_of(map(value, v))
    if isinstance(v, list):
        return syntax.list_of(map(value, v))
    if isinstance(v, dict):
        return ast.Dict([value(k) for k in v], [value(x) for x in v.values()])
    if dataclasses.is_dataclass(v) and not isinstance(v, type):
        fields = {f.name: value(getattr(v, f.name)) for f in dataclasses.fields(v)}
        return syntax.call(_public(type(v)), **fields)
    if isinstance(v, type) and issubclass(v, np.generic):
        return dtype(v)
    raise EmissionError(f"a value of type {type(v).__name__} cannot be written as an expression")


@functools.lru_cache(maxsize=1)
def public_primitives() -> dict[str, str]:
    """Public names of primitives."""
    names: dict[str, str] = {}
    for module, where in ((primitives, "jax.extend.core.primitives"), (lax, "lax")):
        for attribute in dir(module):
            primitive = getattr(module, attribute)
            if isinstance(primitive, Primitive):
                names[primitive.name] = f"{where}.{attribute}"
    return names


def _public(cls: type) -> str:
    """The public name of a class of `lax`."""
    if where := _public_name(cls):
        return where
    raise EmissionError(f"the class {cls.__name__} has no public name in jax.lax")


def _public_name(cls: type) -> str | None:
    for module, where in ((lax, "lax"), (lax.linalg, "lax.linalg"), (jax.sharding, "jax.sharding")):
        if getattr(module, cls.__name__, None) is cls:
            return f"{where}.{cls.__name__}"
    return None
