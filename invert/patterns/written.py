"""Powers and conversions: primitives whose lowering an author may also have written.

`integer_pow[y=3](x)` and `x * x * x` are the same program; so are `ne(x, 0)` and a conversion to
bool, and `max` and `or` on bool. The location decides; without one, the ops are left alone. Powers
of four and more lower to products by squaring, which nobody writes by hand, so they are recognized
without a location too. The programs are equal either way.
"""

from __future__ import annotations

from collections.abc import Iterator

import jax.numpy as jnp
from jax import lax

from invert._private.jax import Var
from invert.ir.graph import is_number, is_var
from invert.ir.hints import hint_of
from invert.ir.types import Atom
from invert.rewriting.pattern import Call, Pattern, Site, bind

_CONVERT = "convert_element_type"

# `lax.integer_pow` by squaring has at most two multiplications for each bit of the exponent.
_MAX_DEPTH = 16


def _exponent(site: Site, atom: Atom) -> int:
    """The exponent if `atom` is a power written as a product; otherwise 1."""
    known: dict[Atom, tuple[Atom, int]] = {}

    def visit(atom: Atom, depth: int) -> tuple[Atom, int]:
        if atom in known:
            return known[atom]
        eqn = site.producer(atom, "mul")
        result = (atom, 1)
        written_out = eqn is not None and hint_of(eqn).primitive in ("", "mul")
        if eqn is not None and written_out and depth and all(map(is_var, eqn.invars)):
            (a, k), (b, n) = (visit(v, depth - 1) for v in eqn.invars)
            if a is b:
                result = (a, k + n)
        known[atom] = result
        return result

    return visit(atom, _MAX_DEPTH)[1] if isinstance(atom, Var) else 1


def _integer_pow(site: Site) -> Iterator[Call]:
    """x * x * x, or more factors by squaring -> integer_pow."""
    a, b = site.eqn.invars
    three = not site.named and _exponent(site, site.eqn.outvars[0]) == 3
    if (site.hint == "integer_pow" and a is not b) or three:
        yield bind(lax.integer_pow_p, site.out, y=3)
    elif (k := _exponent(site, site.eqn.outvars[0])) >= 4:
        yield bind(lax.integer_pow_p, site.out, y=k)


def _negative_pow(site: Site) -> Iterator[Call]:
    """1 / x or 1 / (x * ... * x) -> integer_pow."""
    one, x = site.eqn.invars
    if not is_number(one, 1):
        return
    if site.hint == "integer_pow":
        yield bind(lax.integer_pow_p, site.out, y=-1)
    # The numerator of the primitive is broadcast, that of `1 / (x * x)` is not. Without locations
    # this is unknown, and a negative power is more likely.
    elif (k := _exponent(site, x)) >= (4 if site.named and site.broadcasts != {0} else 2):
        yield bind(lax.integer_pow_p, site.out, y=-k)


def _pow(site: Site) -> Iterator[Call]:
    """pow(x, float(n)) -> pow(x, n)."""
    x, y = site.eqn.invars
    eqn = site.producer(y, _CONVERT)
    if eqn is not None and hint_of(eqn).primitive == "pow":
        yield bind(lax.pow_p, site.aval(x), site.aval(eqn.invars[0]))


def _bool_extremum(site: Site) -> Iterator[Call]:
    """or(x, y) -> max, and(x, y) -> min."""
    primitive = {"max": lax.max_p, "min": lax.min_p}.get(site.hint)
    if primitive is not None:
        yield bind(primitive, *map(site.aval, site.eqn.invars))


def _convert(site: Site) -> Iterator[Call]:
    """ne(x, 0), real(x), and those of real(x) -> convert_element_type."""
    x = site.eqn.invars[0]
    real = site.producer(x, "real")
    # Without locations, a converted real part is more likely a single conversion.
    if site.hint != _CONVERT and (site.named or real is None):
        return
    if real is not None:
        x = real.invars[0]
    elif site.eqn.primitive.name == _CONVERT:
        return
    params = {"new_dtype": site.out.dtype, "weak_type": False, "sharding": None}
    if jnp.issubdtype(x.aval.dtype, jnp.complexfloating) or site.out.dtype == bool:
        yield bind(lax.convert_element_type_p, site.aval(x), **params)


PATTERNS = (
    # Negative powers first: they contain the others.
    Pattern("negative_integer_pow", ("div",), _negative_pow),
    Pattern("integer_pow", ("mul",), _integer_pow),
    Pattern("integer_exponent", ("pow",), _pow),
    Pattern("bool_extremum", ("or", "and"), _bool_extremum),
    Pattern("conversion", (_CONVERT, "ne", "real"), _convert),
)
