"""Special functions that lowering expands into polynomials and loops.

The table lists a literal that each expansion contains, so that programs without it are skipped
quickly. Callers come before callees: of nested expansions the outer one must match.

`atan2(x, 1)` and `exp(x log 2)` are recognized as `atan` and `exp2` where the location names those
primitives, or without a location.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import jax.numpy as jnp
import numpy as np
from jax import lax

from invert._private.jax import Var, iota_2x32_shape_p
from invert.ir.graph import literal
from invert.ir.types import Eqn, JaxFunction
from invert.rewriting.pattern import Call, Pattern, Site, bind
from invert.rewriting.short import lowered

# The Lanczos coefficient that gamma functions share.
_LANCZOS = 676.520368121885098567009190444019
# Iteration limits of the loops inside the incomplete gamma and beta functions.
_GAMMA_LOOP = 2000.0
_BETA_LOOP = (200.0, 600.0)


# A constant of the logarithm inside lgamma in float32, which jax 0.12 outlines.
_LOG_STEP = 0.693115234375

# A primitive since jax 0.12, whose derivative rounds differently from that of its lowering.
LOG2: tuple[JaxFunction, ...] = tuple(
    primitive.bind for primitive in [getattr(lax, "log2_p", None)] if primitive is not None
)


def _one_minus_square(site: Site) -> Iterator[Call]:
    """`(1 + tanh x) * (1 - tanh x)` -> one_minus_square, the derivative of tanh in jax 0.12.

    Authors write `1 - tanh(x) ** 2`. The location names the steps of the lowering.
    """
    primitive = getattr(lax, "one_minus_square_p", None)
    x, y = site.eqn.invars
    total, rest = site.producer(x, "add"), site.producer(y, "sub")
    if primitive is None or total is None or rest is None:
        return
    if total.invars[1] is rest.invars[1] and site.producer(rest.invars[1], "tanh"):
        yield bind(primitive, site.out)


def _outlined_lgamma(site: Site) -> Iterator[Call]:
    """`jit[lgamma_impl]`, of float32 or with conversions around it -> lgamma."""
    call: Eqn | None = site.eqn
    if call.primitive.name == "convert_element_type":
        call = site.producer(call.invars[0], "jit")
    if call is not None and len(call.invars) == 1 and jnp.issubdtype(site.out.dtype, jnp.floating):
        yield dataclasses.replace(bind(lax.lgamma_p, site.out), is_call=call is site.eqn)


def _select_n(site: Site) -> Iterator[Call]:
    """A binary search by `which < i` -> select_n with an integer predicate."""
    top = _index_select(site, site.eqn)
    if top is None:
        return
    which, _ = top
    pending, cases = [site.eqn], 1
    while pending:
        eqn = pending.pop()
        cases += 1
        for atom in eqn.invars[1:]:
            inner = site.producer(atom, "select_n")
            if inner is None:
                continue
            index = _index_select(site, inner)
            if index is not None and index[0] is which:
                pending.append(inner)
    # A case may itself be such a selection, so the largest number is only the likeliest.
    if cases <= 64:
        yield bind(lax.select_n_p, site.aval(which), *[site.out] * cases)


def _index_select(site: Site, eqn: Eqn) -> tuple[Var, int] | None:
    """`(which, i)` of a selection by `which < i`."""
    less = site.producer(eqn.invars[0], "lt")
    if less is None or len(eqn.invars) != 3 or not isinstance(less.invars[0], Var):
        return None
    bound = literal(less.invars[1])
    # No case is below 1; such a comparison normalizes a negative index instead.
    if bound is None or bound < 1 or less.invars[0].aval.dtype != np.int32:
        return None
    return less.invars[0], int(bound)


def _iota_2x32_shape(site: Site) -> Iterator[Call]:
    """The halves of 64-bit positions -> iota_2x32_shape."""
    x = site.eqn.invars[0]
    halves = site.producer(x, "iota", "add", "mul", "shift_right_logical")
    counts = "iota" in site.graph.by_primitive
    if x.aval.dtype == np.uint64 and site.out.dtype == np.uint32 and halves is not None and counts:
        yield bind(iota_2x32_shape_p, shape=site.out.shape)


PATTERNS = (
    lowered(
        "polygamma", "select_n", lax.polygamma_p.bind,
        arity=2, after="or", literal=_LANCZOS, holds="pow",
    ),
    lowered(
        "digamma", "select_n", lax.digamma_p.bind, after="and|eq", literal=_LANCZOS, holds="cos"
    ),
    lowered("lgamma", "select_n", lax.lgamma_p.bind, after="eq", literal=_LANCZOS, holds="sin"),
    lowered(
        "zeta", "select_n", lax.zeta_p.bind, arity=2, after="eq", literal=22.0, holds="pow"
    ),
    lowered(
        "erfc", "select_n", lax.erfc_p.bind, after="lt",
        literal=(7.85386146e-05, 2.461969815e-10), holds="exp",
    ),
    lowered(
        "erf_inv", "select_n", lax.erf_inv_p.bind, after="eq",
        literal=(1.50140941, 4.8499064014), holds="log1p",
    ),
    lowered(
        "bessel_i0e", "select_n", lax.bessel_i0e_p.bind, after="le",
        literal=0.6767952744094761, holds="sqrt",
    ),
    lowered(
        "bessel_i1e", "mul", lax.bessel_i1e_p.bind, after="sign",
        literal=0.2525871864436337, holds="sign",
    ),
    lowered("nextafter", "bitcast_convert_type", lax.nextafter_p.bind, arity=2, after="select_n"),
    # 1 / (1 + exp(-x)), even where the author may have written the quotient. Values are the same;
    # the derivative of `logistic` stays finite where `exp(-x)` overflows, unlike the quotient's.
    lowered("logistic", "div", lax.logistic_p.bind, after="_ add", accuracy=None),
    lowered(
        "exp2", "exp", lax.exp2_p.bind,
        after="mul", literal=0.6931471805599453, hint="exp2", accuracy=None,
    ),
    lowered(
        "log2", "mul", *LOG2,
        after="log", literal=1.4426950408889634, hint="log2", accuracy=None,
    ),
    Pattern("one_minus_square", ("mul",), _one_minus_square, 1.0, "tanh"),
    lowered("atan", "atan2", lax.atan_p.bind, after="_ _", hint="atan"),
    lowered("asin", "atan2", lax.asin_p.bind, after="_ sqrt"),  # as jax 0.12 lowers it
    Pattern("outlined_lgamma", ("convert_element_type", "jit"), _outlined_lgamma, _LOG_STEP, "clz"),
    # For unsigned integers.
    lowered("sign", "select_n", lax.sign_p.bind, after="eq", kind=np.unsignedinteger),
    Pattern("iota_2x32_shape", ("convert_element_type",), _iota_2x32_shape),
    Pattern("select_n", ("select_n",), _select_n),
)  # fmt: skip

# They hold `lgamma` and `digamma`, which an export expands and the text of a lowering does not.
INCOMPLETE = (
    lowered(
        "incomplete_gamma", "select_n", lax.igamma_p.bind, lax.igammac_p.bind,
        lax.igamma_grad_a_p.bind, arity=2, after="or", literal=_GAMMA_LOOP, holds="while",
    ),
    lowered(
        "incomplete_beta", "select_n", lax.regularized_incomplete_beta_p.bind,
        arity=3, after="or", literal=_BETA_LOOP, holds="while",
    ),
)  # fmt: skip
