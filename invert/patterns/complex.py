"""Complex functions that the lowering expands into real and imaginary parts."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from invert.ir.graph import is_number
from invert.patterns.special import LOG2
from invert.rewriting.pattern import Call, Pattern, Site, bind
from invert.rewriting.short import lowered


def _conj(site: Site) -> Iterator[Call]:
    """complex(real(x), -imag(x)) or, of a real number, complex(x, 0) -> conj."""
    real, imag = site.eqn.invars
    if site.producer(real, "real") is not None and site.producer(imag, "neg") is not None:
        yield bind(lax.conj_p, site.out, input_dtype=site.out.dtype)
    # `lax.complex(x, 0)` here has no broadcast, since it comes from the derivative of `real`.
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
    if site.producer(infinite, "or") is not None and site.producer(value, "mul") is not None:
        dtype = jnp.result_type(site.out.dtype, jnp.complex64)
        yield bind(lax.abs_p, jax.ShapeDtypeStruct(site.out.shape, dtype))


def _convolution(site: Site) -> Iterator[Call]:
    """Three real convolutions -> one of complex operands (Gauss's multiplication)."""
    for atom in site.eqn.invars:
        eqn = site.producer(atom, "sub")
        first = None if eqn is None else site.producer(eqn.invars[0], "conv_general_dilated")
        if first is None:
            continue
        lhs, rhs = (jax.ShapeDtypeStruct(v.aval.shape, site.out.dtype) for v in first.invars)
        for preferred in (site.out.dtype, None):
            params = {**first.params, "preferred_element_type": preferred}
            yield bind(lax.conv_general_dilated_p, lhs, rhs, **params)
        return


_complex = functools.partial(lowered, kind=np.complexfloating)

PATTERNS = (
    Pattern("complex_convolution", ("complex",), _convolution),
    _complex("complex_logistic", "div", lax.logistic_p.bind, after="_ add", accuracy=None),
    # Larger expansions first: exp2 contains exp.
    _complex(
        "complex_log2", "complex", *LOG2,
        after="mul mul", literal=1.4426950408889634, hint="log2", accuracy=None,
    ),
    _complex(
        "complex_sqrt", "complex", lax.sqrt_p.bind,
        after="select_n select_n", literal=1.4142135623730951, accuracy=None,
    ),
    _complex(
        "complex_log1p", "complex", lax.log1p_p.bind,
        after="select_n atan2", literal=4097.0, accuracy=None,
    ),
    _complex(
        "complex_log", "complex", lax.log_p.bind,
        after="select_n atan2", literal=4097.0, accuracy=None,
    ),
    _complex("complex_atan", "complex", lax.atan_p.bind, after="imag neg", literal=2050.0),
    _complex("complex_sin", "select_n", lax.sin_p.bind, after="eq complex complex", accuracy=None),
    _complex("complex_cos", "select_n", lax.cos_p.bind, after="eq complex complex", accuracy=None),
    _complex("complex_square", "complex", lax.square_p.bind, after="select_n mul"),
    _complex("complex_exp2", "complex", lax.exp2_p.bind, after="select_n select_n", accuracy=None),
    _complex("complex_exp", "complex", lax.exp_p.bind, after="select_n select_n", accuracy=None),
    Pattern("complex_abs", ("select_n",), _abs),
    Pattern("conj", ("complex",), _conj),
    # Selections by the lexicographic order.
    _complex(
        "complex_extremum", "select_n", lax.max_p.bind, lax.min_p.bind, arity=2, after="select_n"
    ),
)  # fmt: skip
