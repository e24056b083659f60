"""Linear algebra that the lowering expands into other primitives.

Lowerings: jax/_src/lax/linalg.py, jax 0.10.2 and 0.12.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import jax
import jax.numpy as jnp
from jax import lax
from jax.lax import linalg

from invert._private.jax import linear_solve, open_jaxpr
from invert.ir.graph import literal
from invert.ir.types import Atom, Eqn, JaxFunction
from invert.patterns.calls import opened
from invert.rewriting.pattern import Call, EquationPattern, Pattern, Site, bind


def _symmetric_product(site: Site) -> Iterator[Call]:
    """`alpha * (a @ a^T) + beta * c -> symmetric_product a c`."""
    if site.out.dtype.kind == "c":
        return
    left, right = map(site.producer, site.eqn.invars)
    alpha, beta = _factor(left), _factor(right)
    if alpha is None or beta is None:
        return
    if (product := site.producer(alpha[1], "dot_general")) is None:
        return
    a, c = site.aval(product.invars[0]), site.aval(beta[1])
    if c.shape != site.out.shape or a.dtype != c.dtype:
        return
    yield bind(linalg.symmetric_product_p, a, c, alpha=alpha[0], beta=beta[0])


def _factor(eqn: Eqn | None) -> tuple[float, Atom] | None:
    """The literal and the other factor of `mul 0.5 x`."""
    if eqn is None or eqn.primitive is not lax.mul_p:
        return None
    for number, other in (eqn.invars, reversed(eqn.invars)):
        if (value := literal(number)) is not None:
            return float(value), other
    return None


def _cholesky_update(site: Site) -> Iterator[Call]:
    """A plane rotation for each row of the factor, unrolled."""
    out = site.out
    if len(out.shape) != 2 or out.shape[0] != out.shape[1] or out.dtype.kind != "f":
        return
    # The rows are written one after the other: a shorter chain is not an update.
    eqn, rows = site.eqn, 0
    while eqn is not None and eqn.primitive is lax.scatter_p and rows <= out.shape[0]:
        eqn, rows = site.producer(eqn.invars[0]), rows + 1
    if rows == out.shape[0]:
        vector = jax.ShapeDtypeStruct(out.shape[:1], out.dtype)
        yield bind(linalg.cholesky_update_p, out, vector)


_SIGNATURES = {1: "(m,m),(m)->(m)", 2: "(m,m),(m,n)->(m,n)"}


def _solve(site: Site) -> Iterator[Call]:
    """An LU decomposition used by one solve -> `jnp.linalg.solve`, with its derivative.

    The right-hand side of the inner solve has its columns as the leading axis.
    """
    a = site.aval(site.eqn.invars[0])
    for user in site.graph.users.get(site.eqn.outvars[0], ()):
        if user.primitive.name != "jit" or len(user.invars) != 3:
            continue
        x = site.aval(user.invars[2])
        batch, size = x.shape[:-1], x.shape[-1]
        if a.shape[-1] != size or a.shape[-2] != size or x.dtype != a.dtype:
            continue
        candidates = [(1, x.shape), (1, (size,))]
        if batch:
            candidates += [(2, (*batch[:-1], size, batch[-1])), (2, (size, batch[-1]))]
        for rank, shape in dict.fromkeys(candidates):
            yield Call(
                ("solve", rank),
                jnp.vectorize(linear_solve, signature=_SIGNATURES[rank]),
                (a, jax.ShapeDtypeStruct(shape, a.dtype)),
            )


def _svd(site: Site) -> Iterator[Call]:
    """The polar decomposition and its eigenvalues, in a function of one matrix, on TPUs."""
    arguments = site.graph.jaxpr.invars
    finite = site.producer(site.eqn.invars[0])
    if site.platform != "tpu" or len(arguments) != 1 or finite is None:
        return
    a = site.aval(arguments[0])
    if finite.primitive is not lax.is_finite_p or len(a.shape) < 2:
        return
    results = site.graph.jaxpr.outvars
    for full in (False, True) if len(results) > 1 and a.shape[-1] != a.shape[-2] else (False,):
        yield bind(
            linalg.svd_p,
            a,
            full_matrices=full,
            compute_uv=len(results) > 1,
            subset_by_index=None,
            algorithm=None,
        )


def _singular_values(site: Site) -> Iterator[Call]:
    """The same without vectors: a function around one of a square matrix."""
    if site.platform != "tpu" or len(site.eqn.invars) != 1 or len(site.eqn.outvars) != 1:
        return
    a, out = site.aval(site.eqn.invars[0]), site.out
    if len(a.shape) < 2 or out.shape != (*a.shape[:-2], min(a.shape[-2:])):
        return
    inner = open_jaxpr(site.eqn.params["jaxpr"]).eqns
    if any(e.primitive.name == "jit" and site.aval(e.outvars[0]).shape == out.shape for e in inner):
        params = {"full_matrices": False, "compute_uv": False, "subset_by_index": None}
        call = bind(linalg.svd_p, a, **params, algorithm=None)
        yield dataclasses.replace(call, is_call=True)


def _svd_call(site: Site) -> JaxFunction | None:
    """`jit[{ svd x }] -> svd x` on TPUs, where lowering outlines the expansion."""
    return opened(site, ("svd",)) if site.platform == "tpu" else None


PATTERNS = (
    Pattern("symmetric_product", ("add",), _symmetric_product),
    Pattern("cholesky_update", ("scatter",), _cholesky_update),
)

# After the decompositions and triangular solves that they consist of.
SOLVES = (
    Pattern("solve", ("lu",), _solve),
    Pattern("svd_expanded", ("reduce_and",), _svd),
    Pattern("singular_values", ("jit",), _singular_values),
    EquationPattern("svd_call", ("jit",), _svd_call),
)
