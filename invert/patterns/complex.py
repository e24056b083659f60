"""Complex functions that the lowering expands into real and imaginary parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from invert.ir.graph import is_var
from invert.ir.hints import hint_of
from invert.ir.types import Atom
from invert.patterns.special import is_number, operand_types, produced_by
from invert.rewriting.pattern import Call, Pattern, Site, bind


class ComplexExpansion(NamedTuple):
    """A primitive with an expansion for complex operands.

    **Arguments:**

    - `primitive`: what is proposed.
    - `params`: its parameters.
    - `root`: the primitive that gives the result.
    - `operands`: the primitives that give the operands of that equation.
    - `literal`: a number that the expansion contains, if there is one.
    """

    primitive: Any
    params: dict[str, Any]
    root: str
    operands: tuple[str, ...]
    literal: float | None = None


_PLAIN = {"accuracy": None}

# Larger expansions first: exp2 contains exp.
EXPANSIONS = {
    "complex_sqrt": ComplexExpansion(
        lax.sqrt_p, _PLAIN, "complex", ("select_n", "select_n"), 1.4142135623730951
    ),
    "complex_log1p": ComplexExpansion(
        lax.log1p_p, _PLAIN, "complex", ("select_n", "atan2"), 4097.0
    ),
    "complex_log": ComplexExpansion(lax.log_p, _PLAIN, "complex", ("select_n", "atan2"), 4097.0),
    "complex_atan": ComplexExpansion(lax.atan_p, {}, "complex", ("imag", "neg"), 2050.0),
    "complex_sin": ComplexExpansion(lax.sin_p, _PLAIN, "select_n", ("eq", "complex", "complex")),
    "complex_cos": ComplexExpansion(lax.cos_p, _PLAIN, "select_n", ("eq", "complex", "complex")),
    "complex_square": ComplexExpansion(lax.square_p, {}, "complex", ("select_n", "mul")),
    "complex_exp2": ComplexExpansion(lax.exp2_p, _PLAIN, "complex", ("select_n", "select_n")),
    "complex_exp": ComplexExpansion(lax.exp_p, _PLAIN, "complex", ("select_n", "select_n")),
}


def is_complex(aval: jax.ShapeDtypeStruct) -> bool:
    return bool(jnp.issubdtype(aval.dtype, jnp.complexfloating))


def _expanded(entry: ComplexExpansion) -> Callable[[Site], Iterator[Call]]:
    def propose(site: Site) -> Iterator[Call]:
        atoms = site.eqn.invars
        if not is_complex(site.out) or len(atoms) != len(entry.operands):
            return
        pairs = zip(atoms, entry.operands, strict=True)
        if all(produced_by(site, atom, name) is not None for atom, name in pairs):
            yield bind(entry.primitive, site.out, **entry.params)

    return propose


def _logistic(site: Site) -> Iterator[Call]:
    """1 / (1 + exp(-x)) -> logistic."""
    one, x = site.eqn.invars
    if is_complex(site.out) and is_number(one, 1) and produced_by(site, x, "add") is not None:
        yield bind(lax.logistic_p, site.out, accuracy=None)


def _conj(site: Site) -> Iterator[Call]:
    """complex(real(x), -imag(x)) or, of a real number, complex(x, 0) -> conj."""
    real, imag = site.eqn.invars
    if produced_by(site, real, "real") is not None and produced_by(site, imag, "neg") is not None:
        yield bind(lax.conj_p, site.out, input_dtype=site.out.dtype)
    # `lax.complex(x, 0)` has no broadcast of its own: it comes from the derivative of `real`.
    if is_number(imag, 0) and (
        not site.hint or (site.hint == "complex" and site.broadcasts == {1})
    ):
        x = site.aval(real)
        yield bind(lax.conj_p, x, input_dtype=x.dtype)


def _abs(site: Site) -> Iterator[Call]:
    """A square root of scaled squares -> abs, as jax 0.12 lowers it."""
    infinite, value, *_ = site.eqn.invars
    if not jnp.issubdtype(site.out.dtype, jnp.floating) or jnp.finfo(site.out.dtype).bits < 32:
        return
    if (
        produced_by(site, infinite, "or") is not None
        and produced_by(site, value, "mul") is not None
    ):
        dtype = jnp.result_type(site.out.dtype, jnp.complex64)
        yield bind(lax.abs_p, jax.ShapeDtypeStruct(site.out.shape, dtype))


def _extremum(site: Site) -> Iterator[Call]:
    """A selection by the lexicographic order -> max or min."""
    eqn = produced_by(site, site.eqn.invars[0], "select_n")
    if eqn is None or not is_complex(site.out):
        return
    if (order := produced_by(site, eqn.invars[1], "lt", "gt")) is not None:
        primitive = lax.max_p if order.primitive.name == "gt" else lax.min_p
        if (shapes := [_before_stretch(site, v) for v in site.eqn.invars[1:]]) != [None, None]:
            narrow = [jax.ShapeDtypeStruct(s or site.out.shape, site.out.dtype) for s in shapes]
            # The first case of the selection is the one for false.
            yield bind(primitive, *reversed(narrow))
        for avals in operand_types(site, site.out.dtype, 2):
            yield bind(primitive, *avals)


def _before_stretch(site: Site, atom: Atom) -> tuple[int, ...] | None:
    """The shape of an operand before the lowering broadcast it."""
    eqn = produced_by(site, atom, "broadcast_in_dim")
    if eqn is None or hint_of(eqn).primitive == "broadcast_in_dim" or not is_var(eqn.invars[0]):
        return None
    shape = eqn.invars[0].aval.shape
    return shape if len(shape) == len(site.out.shape) else None


def _convolution(site: Site) -> Iterator[Call]:
    """Three real convolutions -> one of complex operands (Gauss's multiplication)."""
    for atom in site.eqn.invars:
        eqn = produced_by(site, atom, "sub")
        first = None if eqn is None else produced_by(site, eqn.invars[0], "conv_general_dilated")
        if first is None:
            continue
        lhs, rhs = (jax.ShapeDtypeStruct(v.aval.shape, site.out.dtype) for v in first.invars)
        for preferred in (site.out.dtype, None):
            params = {**first.params, "preferred_element_type": preferred}
            yield bind(lax.conv_general_dilated_p, lhs, rhs, **params)
        return


PATTERNS = (
    Pattern("complex_convolution", ("complex",), _convolution),
    Pattern("complex_logistic", ("div",), _logistic),
    *(
        Pattern(name, (entry.root,), _expanded(entry), entry.literal)
        for name, entry in EXPANSIONS.items()
    ),
    Pattern("complex_abs", ("select_n",), _abs),
    Pattern("conj", ("complex",), _conj),
    Pattern("complex_extremum", ("select_n",), _extremum),
)
