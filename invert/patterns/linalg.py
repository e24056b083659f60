"""Linear algebra: custom calls of LAPACK, cuSOLVER and similar libraries.

A decomposition lowers to a custom call and a few equations around it: `NaN` where the routine
failed, pivots shifted to start at 0, the upper triangle of a factor. The custom call is the root;
its target and attributes give the parameters of the primitive.

Lowerings: jax/_src/lax/linalg.py, jax 0.10.2 and 0.12.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
from jax import lax
from jax.lax import linalg

from invert._private.jax import Literal, Primitive, geqp3_p, geqrf_p, linear_solve, open_jaxpr
from invert.ir.graph import literal
from invert.ir.loops import WhileParts
from invert.ir.types import Atom, Eqn, JaxFunction, Params
from invert.patterns.calls import opened
from invert.rewriting.pattern import Call, EquationPattern, Pattern, Site, bind

# Attributes that hold the parameters of a routine, in FFI calls and in older ones.
_CONFIGS = ("mhlo.backend_config", "backend_config")


def attributes(eqn: Eqn) -> Params:
    """A custom call's parameters: `{uplo = 76 : ui8}` -> `{"uplo": "L"}`.

    LAPACK takes its options as character codes.
    """
    texts = dict(eqn.params["attributes"])
    text = next((texts[name] for name in _CONFIGS if name in texts), "")
    pairs = re.findall(r"(\w+) = (?:(\d+) : ui8|(-?\d+) : \w+|(true|false))", text)
    return {
        name: chr(int(char)) if char else int(number) if number else flag == "true"
        for name, char, number, flag in pairs
    }


def _call(primitive: Primitive, **options: object) -> Callable[[Site], Iterator[Call]]:
    """The call of a primitive on the operands of a routine.

    An option may be a function of the attributes of the custom call.
    """

    def propose(site: Site) -> Iterator[Call]:
        attrs = attributes(site.eqn)
        params = {k: v(attrs) if callable(v) else v for k, v in options.items()}
        yield bind(primitive, *map(site.aval, site.eqn.invars), **params)

    return propose


def _cholesky_op(site: Site) -> Iterator[Call]:
    """The op `cholesky`, for TPUs: as in JAX, the other triangle is undefined."""
    if site.platform == "tpu":
        yield bind(linalg.cholesky_p, *map(site.aval, site.eqn.invars))


def _eigh(site: Site) -> Iterator[Call]:
    a = attributes(site.eqn)
    algorithms = {1: linalg.EighImplementation.QR, 2: linalg.EighImplementation.JACOBI}
    for lower, sort in [(is_lower(a), True)] if a else itertools.product((True, False), repeat=2):
        yield bind(
            linalg.eigh_p,
            site.aval(site.eqn.invars[0]),
            lower=lower,
            sort_eigenvalues=sort,
            subset_by_index=None,
            algorithm=algorithms.get(ord(a.get("algorithm", "\0"))),
        )


def is_lower(found: Params) -> bool:
    """Return whether the lower triangle is meant: a character in LAPACK, a flag in cuSOLVER."""
    return bool(found.get("lower", found.get("uplo") == "L"))


def _has_array(site: Site) -> bool:
    """Return whether the first operand is an array: older releases passed sizes first."""
    return bool(site.eqn.invars) and bool(site.eqn.invars[0].aval.shape)


def _large(site: Site) -> Iterator[Call]:
    """The decompositions that contain calls of other routines.

    `geqrf` or `geqp3`, the triangle, the product of the reflectors -> `qr`; `getrf`, the pivots
    from 0, their permutation -> `lu`.
    """
    kernel = kernel_of(site.eqn)
    if not _has_array(site):
        return
    a = site.aval(site.eqn.invars[0])
    if kernel in ("getrf", "LuDecomposition"):
        yield bind(linalg.lu_p, a)
    if kernel in ("geqrf", "geqp3", "Qr"):
        for full in (False, True) if a.shape[-2] >= a.shape[-1] else (False,):
            yield bind(
                linalg.qr_p, a, pivoting=kernel == "geqp3", full_matrices=full, use_magma=None
            )


def _pivots(site: Site) -> Iterator[Call]:
    """`lu_pivots_to_permutation`, as a single custom call."""
    size = site.out.shape[-1]
    pivots = site.aval(site.eqn.invars[0])
    yield bind(linalg.lu_pivots_to_permutation_p, pivots, permutation_size=size)


def _pivots_loop(site: Site) -> Iterator[Call]:
    """`while { swap(permutation, i, pivots[i]) }` from the identity."""
    eqn = site.eqn
    shape = eqn.outvars[-1].aval.shape
    parts = WhileParts.of(eqn)
    for atom in (*parts.cond_consts, *parts.body_consts):
        aval = site.aval(atom)
        if str(aval.dtype) == "int32" and aval.shape[:-1] == shape[:-1] and aval.shape and shape:
            yield bind(linalg.lu_pivots_to_permutation_p, aval, permutation_size=shape[-1])


def _svd(site: Site) -> Iterator[Call]:
    a, kernel = attributes(site.eqn), kernel_of(site.eqn)
    x, mode = site.aval(site.eqn.invars[0]), a.get("mode")
    algorithms = linalg.SvdAlgorithm
    if site.platform == "cpu":
        algorithm = algorithms.QR if kernel == "gesvd" else None
    else:  # gesvd is also what large matrices get by default
        large = max(x.shape[-2:]) > 1024
        algorithm = {
            "gesvd": None if large else algorithms.QR,
            "gesvdj": algorithms.JACOBI if large else None,
            "gesvdp": algorithms.POLAR,
            "gesdd": getattr(algorithms, "DIVIDE_AND_CONQUER", None),
        }[str(kernel)]
    # Some routines return full factors only, which are sliced. Without factors, the shapes decide.
    for full_matrices in (mode == "A",) if mode in ("A", "S") else (False, True):
        yield bind(
            linalg.svd_p,
            x,
            full_matrices=full_matrices,
            compute_uv=a.get("compute_uv", mode != "N"),
            subset_by_index=None,
            algorithm=algorithm,
        )


def _triangular_solve(site: Site) -> Iterator[Call]:
    a, b = map(site.aval, site.eqn.invars)
    options = attributes(site.eqn)
    side, lower = options.get("side") == "L", options.get("uplo") == "L"
    unit, trans = options.get("diag") == "U", options.get("trans_x")
    conjugates = (trans == "C",)
    if trans == "N" and a.dtype.kind == "c":  # plain conjugation precedes the call
        conjugates = (True, False)
    for conjugate in conjugates:
        yield bind(
            linalg.triangular_solve_p,
            a,
            b,
            left_side=side,
            lower=lower,
            transpose_a=trans != "N",
            conjugate_a=conjugate,
            unit_diagonal=unit,
        )


def _symmetric_product(site: Site) -> Iterator[Call]:
    a, c, alpha, beta = site.eqn.invars
    if isinstance(alpha, Literal) and isinstance(beta, Literal):
        factors = {"alpha": float(alpha.val), "beta": float(beta.val)}
        yield bind(linalg.symmetric_product_p, site.aval(a), site.aval(c), **factors)


_geqrf = _call(geqrf_p)
_householder_product = _call(linalg.householder_product_p)
_ormqr = _call(
    linalg.ormqr_p,
    left=lambda a: a.get("left", True),
    transpose=lambda a: a.get("transpose", False),
)
_tridiagonal = _call(linalg.tridiagonal_p, lower=is_lower)
_tridiagonal_solve = _call(linalg.tridiagonal_solve_p, perturb_singular=False)
# The lowering does not say whether the author enabled derivatives of eigenvectors. They assume
# simple eigenvalues, as those of eigh and svd do.
_eig = _call(
    linalg.eig_p,
    compute_left_eigenvectors=lambda a: a.get("compute_left", a.get("left")) in ("V", True),
    compute_right_eigenvectors=lambda a: a.get("compute_right", a.get("right")) in ("V", True),
    enable_eigvec_derivs=True,
    implementation=None,
)

# Routine, without the library's prefix and the type -> the calls it may come from.
_KERNELS: dict[str, Callable[[Site], Iterator[Call]]] = {
    "potrf": _call(linalg.cholesky_p),
    "geev": _eig, "eig_real": _eig, "eig_comp": _eig,
    "syevd": _eigh, "heevd": _eigh, "Eigh": _eigh,
    "geqrf": _geqrf, "Qr": _geqrf,
    "geqp3": _call(geqp3_p, use_magma=None),
    "orgqr": _householder_product, "ungqr": _householder_product,
    "ProductOfElementaryHouseholderReflectors": _householder_product,
    "ormqr": _ormqr, "unmqr": _ormqr,
    "lu_pivots_to_permutation": _pivots,
    "gees": _call(
        linalg.schur_p,
        compute_schur_vectors=lambda a: a.get("mode") == "V",
        sort_eig_vals=False,
        select_callable=None,
    ),
    "gesdd": _svd, "gesvd": _svd, "gesvdj": _svd, "gesvdp": _svd,
    "trsm": _triangular_solve,
    "sytrd": _tridiagonal, "hetrd": _tridiagonal,
    "gtsv": _tridiagonal_solve, "gtsv2": _tridiagonal_solve,
    "tridiagonal_solve_perturbed": _call(linalg.tridiagonal_solve_p, perturb_singular=True),
    "gehrd": _call(linalg.hessenberg_p),
    "cholesky_update": _call(linalg.cholesky_update_p),
    "syrk": _symmetric_product,
}  # fmt: skip

# LAPACK, cuSOLVER, hipSOLVER, cuSPARSE, JAX's own kernels and MAGMA; XLA's own for TPU.
_TARGET = re.compile(r"(?:lapack_[sdcz]|(?:cu|hip)(?:solver|sparse|hybrid)?_)?(\w+?)(?:_ffi)?")


def kernel_of(eqn: Eqn) -> str | None:
    """The routine of a custom call: `"potrf"` for `lapack_spotrf_ffi`; `None` for others."""
    if eqn.primitive.name != "custom_call":
        return None
    match = _TARGET.fullmatch(eqn.params["target"])
    return match[1] if match else None


def _custom_call(site: Site) -> Iterator[Call]:
    propose = _KERNELS.get(str(kernel_of(site.eqn)))
    if propose is not None and _has_array(site):
        yield from propose(site)


PATTERNS = (
    # The larger first: their parts are primitives too.
    Pattern("factorization", ("custom_call",), _large),
    Pattern("linalg", ("custom_call",), _custom_call),
    Pattern("cholesky_op", ("cholesky",), _cholesky_op),
    Pattern("lu_pivots_to_permutation", ("while",), _pivots_loop),
)


# -- what the lowering expands into other primitives


def _expanded_symmetric_product(site: Site) -> Iterator[Call]:
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
            types = a, jax.ShapeDtypeStruct(shape, a.dtype)
            solve = jnp.vectorize(linear_solve, signature=_SIGNATURES[rank])
            yield Call(("solve", rank), solve, types)
            # `jnp.vectorize` drops axes of size one, and `jax.vmap` does not.
            if 1 in a.shape[:-2]:
                axes = 0, 0 if len(shape) > rank else None
                mapped = linear_solve
                for _ in a.shape[:-2]:
                    mapped = jax.vmap(mapped, in_axes=axes)
                yield Call(("solve", rank, axes), mapped, types)


def _expanded_svd(site: Site) -> Iterator[Call]:
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


EXPANDED = (
    Pattern("symmetric_product", ("add",), _expanded_symmetric_product),
    Pattern("cholesky_update", ("scatter",), _cholesky_update),
)

# After the decompositions and triangular solves that they consist of.
SOLVES = (
    Pattern("solve", ("lu",), _solve),
    Pattern("svd_expanded", ("reduce_and",), _expanded_svd),
    Pattern("singular_values", ("jit",), _singular_values),
    EquationPattern("svd_call", ("jit",), _svd_call),
)
