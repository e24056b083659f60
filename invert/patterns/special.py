"""Special functions that lowering expands into polynomials and loops.

The table lists a literal that each expansion contains, so that programs without it are skipped
quickly. Callers come before callees: of nested expansions the outer one must match.

`atan2(x, 1)` and `exp(x log 2)` are recognized as `atan` and `exp2` where the location names those
primitives, or where there is no location.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import DTypeLike

from invert._private.jax import Literal, Var, iota_2x32_shape_p
from invert.ir.types import Atom, Eqn, JaxFunction
from invert.rewriting.pattern import Call, Pattern, Site, bind
from invert.rewriting.short import Short


class Expansion(NamedTuple):
    """Primitives whose expansions share a shape.

    **Arguments:**

    - `primitives`: the primitives to propose.
    - `arity`: number of operands; each has the type of the result, or is a scalar of its dtype.
    - `root`: the primitive that gives the result. In dtypes of 16 bits or less, which are computed
        in float32, a conversion follows it.
    - `operands`: possible primitives of the first operand of that equation.
    - `literals`: each expansion contains one of these numbers.
    - `holds`: a primitive that each expansion contains.
    """

    primitives: tuple[Any, ...]
    arity: int
    root: str
    operands: tuple[str, ...]
    literals: tuple[float, ...]
    holds: str


# The Lanczos coefficient that gamma functions share.
_LANCZOS = (676.520368121885098567009190444019,)
# Iteration limits of the loops inside the incomplete gamma and beta functions.
_GAMMA_LOOP = (2000.0,)
_BETA_LOOP = (200.0, 600.0)

EXPANSIONS = {
    "incomplete_gamma": Expansion(
        (lax.igamma_p, lax.igammac_p, lax.igamma_grad_a_p),
        2,
        "select_n",
        ("or",),
        _GAMMA_LOOP,
        "while",
    ),
    "incomplete_beta": Expansion(
        (lax.regularized_incomplete_beta_p,), 3, "select_n", ("or",), _BETA_LOOP, "while"
    ),
    "polygamma": Expansion((lax.polygamma_p,), 2, "select_n", ("or",), _LANCZOS, "pow"),
    "digamma": Expansion((lax.digamma_p,), 1, "select_n", ("and", "eq"), _LANCZOS, "cos"),
    "lgamma": Expansion((lax.lgamma_p,), 1, "select_n", ("eq",), _LANCZOS, "sin"),
    "zeta": Expansion((lax.zeta_p,), 2, "select_n", ("eq",), (22.0,), "pow"),
    "erfc": Expansion(
        (lax.erfc_p,), 1, "select_n", ("lt",), (7.85386146e-05, 2.461969815e-10), "exp"
    ),
    "erf_inv": Expansion(
        (lax.erf_inv_p,), 1, "select_n", ("eq",), (1.50140941, 4.8499064014), "log1p"
    ),
    "bessel_i0e": Expansion(
        (lax.bessel_i0e_p,), 1, "select_n", ("le",), (0.6767952744094761,), "sqrt"
    ),
    "bessel_i1e": Expansion(
        (lax.bessel_i1e_p,), 1, "mul", ("sign",), (0.2525871864436337,), "sign"
    ),
}


def operand_types(site: Site, dtype: DTypeLike, arity: int) -> Iterator[tuple[Any, ...]]:
    """Candidate operand types of an elementwise primitive, the likeliest first.

    Operands may be scalars or broadcast along dimensions of size one, if the body has such values.
    """
    shape = site.eqn.outvars[0].aval.shape
    shapes = [shape, *_narrower(site, dtype, shape)] if arity > 1 else [shape]
    types = [jax.ShapeDtypeStruct(s, dtype) for s in shapes]
    for choice in itertools.product(types, repeat=arity):
        if types[0] in choice:
            yield choice


def _narrower(site: Site, dtype: DTypeLike, shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Shapes of values in the body that an elementwise primitive broadcasts to `shape`."""
    atoms = itertools.chain(*(eqn.invars for eqn in site.graph.eqns))
    found = dict.fromkeys(v.shape for v in map(site.aval, atoms) if v.dtype == dtype)
    return [
        s
        for s in found
        if s != shape
        and (not s or len(s) == len(shape))
        and all(n in (1, m) for n, m in zip(s, shape, strict=False))
    ]


def _expanded(entry: Expansion) -> Callable[[Site], Iterator[Call]]:
    def propose(site: Site) -> Iterator[Call]:
        out = site.out
        if not jnp.issubdtype(out.dtype, jnp.floating):
            return
        last: Any = site.eqn
        if jnp.finfo(out.dtype).bits <= 16:
            if last.primitive.name != "convert_element_type":
                return
            last = produced_by(site, last.invars[0], entry.root)
        if last is None or last.primitive.name != entry.root:
            return
        if produced_by(site, last.invars[0], *entry.operands) is not None:
            for avals in operand_types(site, out.dtype, entry.arity):
                yield from (bind(primitive, *avals) for primitive in entry.primitives)

    return propose


def literal(atom: Atom) -> Any:
    """The value of a scalar literal; `None` for other atoms."""
    return atom.val if isinstance(atom, Literal) and np.ndim(atom.val) == 0 else None


def is_number(atom: Atom, value: complex) -> bool:
    """Whether the atom is the scalar literal `value`."""
    found = literal(atom)
    return found is not None and bool(found == value)


def produced_by(site: Site, atom: Atom, *primitives: str) -> Any | None:
    """The equation that defines `atom`, if it is one of `primitives`."""
    eqn = site.producer(atom)
    return eqn if eqn is not None and eqn.primitive.name in primitives else None


# A constant of the logarithm inside lgamma in float32, which jax 0.12 outlines.
_LOG_STEP = 0.693115234375


def _outlined_lgamma(site: Site) -> Iterator[Call]:
    """`jit[lgamma_impl]`, of float32 or with conversions around it -> lgamma."""
    call: Eqn | None = site.eqn
    if call.primitive.name == "convert_element_type":
        call = produced_by(site, call.invars[0], "jit")
    if call is not None and len(call.invars) == 1 and jnp.issubdtype(site.out.dtype, jnp.floating):
        yield dataclasses.replace(bind(lax.lgamma_p, site.out), is_call=call is site.eqn)


def may_be(site: Site, primitive: str) -> bool:
    """Whether the location names `primitive` or is empty."""
    return site.hint in ("", primitive)


def _exp2(site: Site) -> Iterator[Call]:
    """exp(x log 2) -> exp2."""
    eqn = produced_by(site, site.eqn.invars[0], "mul")
    plain = eqn is not None and any(literal(a) is not None for a in eqn.invars)
    if may_be(site, "exp2") and plain:
        yield bind(lax.exp2_p, site.out, accuracy=None)


def _atan(site: Site) -> Iterator[Call]:
    """atan2(x, 1) -> atan."""
    if may_be(site, "atan") and is_number(site.eqn.invars[1], 1):
        yield bind(lax.atan_p, site.out)


def _sign(site: Site) -> Iterator[Call]:
    """select(x == 0, 0, 1) -> sign of an unsigned integer."""
    if jnp.issubdtype(site.out.dtype, jnp.unsignedinteger):
        yield bind(lax.sign_p, site.out)


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
            inner = produced_by(site, atom, "select_n")
            if inner is None:
                continue
            found = _index_select(site, inner)
            if found is not None and found[0] is which:
                pending.append(inner)
    # A case may itself be such a selection, so the largest number is only the likeliest.
    if cases <= 64:
        yield bind(lax.select_n_p, site.aval(which), *[site.out] * cases)


def _index_select(site: Site, eqn: Eqn) -> tuple[Var, int] | None:
    """`(which, i)` of a selection by `which < i`."""
    less = produced_by(site, eqn.invars[0], "lt")
    if less is None or len(eqn.invars) != 3 or not isinstance(less.invars[0], Var):
        return None
    bound = literal(less.invars[1])
    # No case is below 1; such a comparison normalizes a negative index instead.
    if bound is None or bound < 1 or less.invars[0].aval.dtype != np.int32:
        return None
    return less.invars[0], int(bound)


def _expansion(name: str, entry: Expansion) -> Pattern:
    roots = ("convert_element_type", entry.root)
    return Pattern(name, roots, _expanded(entry), entry.literals, entry.holds)


def lowered(name: str, root: str, function: JaxFunction, arity: int = 1, *, after: str) -> Pattern:
    """A pattern for the lowering of `function`, whose result is computed by `root`.

    `after` computes an operand of `root`; it is checked before anything is lowered.
    """
    example = (jax.ShapeDtypeStruct((2,), np.float32),) * arity
    short = Short(None, function, arity, given=example)

    def propose(site: Site) -> Iterator[Call]:
        if any(produced_by(site, a, after) for a in site.eqn.invars):
            yield from short(site)

    return Pattern(name, (root,), propose)


def _iota_2x32_shape(site: Site) -> Iterator[Call]:
    """The halves of 64-bit positions -> iota_2x32_shape."""
    x = site.eqn.invars[0]
    halves = produced_by(site, x, "iota", "add", "mul", "shift_right_logical")
    counts = "iota" in site.graph.by_primitive
    if x.aval.dtype == np.uint64 and site.out.dtype == np.uint32 and halves is not None and counts:
        yield bind(iota_2x32_shape_p, shape=site.out.shape)


PATTERNS = (
    *(_expansion(name, entry) for name, entry in EXPANSIONS.items()),
    lowered("nextafter", "bitcast_convert_type", lax.nextafter_p.bind, 2, after="select_n"),
    # 1 / (1 + exp(-x)), also where the author may have written the quotient. Values are the same;
    # the derivative of `logistic` stays finite where `exp(-x)` overflows, that of the quotient not.
    lowered("logistic", "div", functools.partial(lax.logistic_p.bind, accuracy=None), after="add"),
    Pattern("exp2", ("exp",), _exp2, (0.6931471805599453,)),
    Pattern("atan", ("atan2",), _atan),
    lowered("asin", "atan2", lax.asin_p.bind, after="sqrt"),  # as jax 0.12 lowers it
    Pattern("outlined_lgamma", ("convert_element_type", "jit"), _outlined_lgamma, _LOG_STEP, "clz"),
    Pattern("sign", ("select_n",), _sign),
    Pattern("iota_2x32_shape", ("convert_element_type",), _iota_2x32_shape),
    Pattern("select_n", ("select_n",), _select_n),
)
