"""Linear algebra and random numbers as older JAX releases lowered them.

A custom call is replaced by today's primitive:

- together with the equations that put `NaN` where the routine failed, in the forms of 2023 to 2025;
- alone, if these have another form, with the status replaced by success. The primitive itself puts
    `NaN` where it fails, so that results derived from it are the same.

A program that does more with the status than compare it, or that uses the work space, keeps its
custom call.

Until 2024 LAPACK routines took sizes and options as operands; cuSOLVER and similar routines took
them as packed bytes. Both returned work space and a status besides their results (jaxlib/lapack.py
and jaxlib/gpu_solver.py of jaxlib 0.4.1 to 0.4.35).
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.lax import linalg

from invert._errors import InvertError, only_refusals
from invert._opaque import template_call_p
from invert._private.jax import Primitive, eval_closed, geqrf_p, open_jaxpr, threefry2x32_p
from invert.ir.graph import literal
from invert.ir.kinds import COMPARISONS
from invert.ir.types import JaxFunction, Value
from invert.patterns.linalg import attributes, is_lower
from invert.rewriting.pattern import Call, EquationPattern, Pattern, Site

Values: TypeAlias = Sequence[Value]


@dataclasses.dataclass(frozen=True)
class Routine:
    """A routine.

    **Arguments:**

    - `arrays`: the number of operands that are arrays for the primitive.
    - `results`: positions, among its results, of the values that `compute` returns.
    - `compute`: `compute(site, *arrays)` computes these values by a primitive.
    - `first`: position of the first array among the operands, after sizes and options.
    - `status`: position of the status among the results, if there is one.
    """

    arrays: int
    results: tuple[int, ...]
    compute: Callable[..., Values]
    first: int = 0
    status: int | None = None


# Options.


def scalar(site: Site, position: int) -> int:
    """An option given as an operand; `-1` if the program computes it."""
    value = literal(site.eqn.invars[position])
    return -1 if value is None else int(value)


def _packed(site: Site) -> np.ndarray:
    """The packed options: numbers of 32 bits."""
    text = dict(site.eqn.params["attributes"]).get("backend_config", '""')[1:-1]

    def byte(found: re.Match[str]) -> str:
        return "\\" if found[0] == "\\\\" else chr(int(found[1], 16))

    raw = re.sub(r"\\\\|\\([0-9A-Fa-f]{2})", byte, text).encode("latin-1")
    return np.frombuffer(raw[: len(raw) // 4 * 4], "<i4")


# The lower triangle is 0 in cuBLAS and 122 in rocBLAS; vectors are 1 and 202 (none: 0 and 201).
_LOWER, _UPPER = (0, 122), (1, 121)
_VECTORS = (1, 202)


def _lower(site: Site, position: int | None = None) -> bool | None:
    """Return `True` if a routine reads the lower triangle, by an operand or the packed options."""
    if position is not None:
        return {0: False, 1: True}.get(scalar(site, position))
    if found := attributes(site.eqn):  # today's form of options in an older program
        return is_lower(found)
    options = _packed(site)
    if len(options) < 2:
        return None
    return True if options[1] in _LOWER else False if options[1] in _UPPER else None


class UnknownOptionsError(InvertError):
    """Options that no release of JAX wrote."""


def _known(value: bool | None) -> bool:
    if value is None:
        raise UnknownOptionsError
    return value


# What the routines compute.


def _cholesky(site: Site, a: Value) -> Values:
    if scalar(site, 0) != 1:
        raise UnknownOptionsError
    return [linalg.cholesky_p.bind(a)]


def _lu(site: Site, a: Value) -> Values:
    del site
    lu, pivots, _ = linalg.lu_p.bind(a)
    return [lu, lax.add(pivots, np.int32(1))]  # Fortran indices start at 1


def _bound(primitive: Primitive) -> Callable[..., Values]:
    """The results of a primitive without parameters."""

    def compute(site: Site, *arrays: Value) -> Values:
        results = primitive.bind(*arrays)
        return results if primitive.multiple_results else [results]

    return compute


_lu_tpu, _geqrf = _bound(linalg.lu_p), _bound(geqrf_p)
_orgqr = _bound(linalg.householder_product_p)


def _of_triangle(bind: Callable[..., Values], position: int | None) -> Callable[..., Values]:
    def compute(site: Site, a: Value) -> Values:
        return bind(a, lower=_known(_lower(site, position)))

    return compute


def _eigh_tpu(site: Site, a: Value) -> Values:
    """Options: the triangle, whether the values are sorted, iterations and tolerance."""
    text = dict(site.eqn.params["attributes"]).get("backend_config", "")
    match = re.match(r'"([01]),([01]),', text)
    if match is None:
        raise UnknownOptionsError
    return _bind_eigh(a, lower=match[1] == "1", sort=match[2] == "1")


def _bind_eigh(a: Value, lower: bool, sort: bool = True) -> Values:
    return linalg.eigh_p.bind(
        a, lower=lower, sort_eigenvalues=sort, subset_by_index=None, algorithm=None
    )


_eigh = functools.partial(_of_triangle, _bind_eigh)
_sytrd = functools.partial(_of_triangle, linalg.tridiagonal_p.bind)


def _gehrd(site: Site, a: Value) -> Values:
    if scalar(site, 1) != 1 or scalar(site, 2) != a.shape[-1]:
        raise UnknownOptionsError
    return linalg.hessenberg_p.bind(a)


def _gees(site: Site, a: Value) -> Values:
    if chr(max(scalar(site, 3), 0)) != "N":
        raise UnknownOptionsError
    return linalg.schur_p.bind(
        a,
        compute_schur_vectors=chr(max(scalar(site, 2), 0)) == "V",
        sort_eig_vals=False,
        select_callable=None,
    )


def _geev(site: Site, a: Value) -> Values:
    left, right = (chr(max(scalar(site, i), 0)) for i in (2, 3))
    if {left, right} - set("VN"):
        raise UnknownOptionsError
    w, *vectors = _bind_eig(a, left == "V", right == "V")
    return [*([w] if jnp.iscomplexobj(a) else [lax.real(w), lax.imag(w)]), *vectors]


def _bind_eig(a: Value, left: bool, right: bool) -> Values:
    """The eigenvalues, and the left and right eigenvectors, `None` if they are not wanted."""
    w, *vectors = linalg.eig_p.bind(
        a,
        compute_left_eigenvectors=left,
        compute_right_eigenvectors=right,
        enable_eigvec_derivs=True,
        implementation=None,
    )
    given = iter(vectors)
    return [w, *(next(given) if wanted else None for wanted in (left, right))]


def _eig(site: Site, a: Value) -> Values:
    """Eigenvectors, by today's interfaces for GPUs: MAGMA's, LAPACK's and cuSOLVER's.

    Which of them JAX chooses depends on the libraries of the machine that exports.
    """
    options = attributes(site.eqn)
    left, right = (options.get(name) for name in ("left", "right"))
    if not {left, right} <= {True, False}:
        raise UnknownOptionsError
    return _bind_eig(a, bool(left), bool(right))


def _eig_real(site: Site, a: Value) -> Values:
    w, *vectors = _eig(site, a)
    return [lax.real(w), lax.imag(w), *vectors]


def _eig_cusolver(site: Site, a: Value) -> Values:
    """Eigenvectors of a real matrix, with pairs as real and imaginary parts."""
    w, *vectors = _eig(site, a)
    if jnp.iscomplexobj(a):
        return [w, *vectors]
    second = jnp.expand_dims(lax.imag(w) < 0, -2)
    parts = [v if v is None else jnp.where(second, -lax.imag(v), lax.real(v)) for v in vectors]
    return [w, *parts]


def _svd(a: Value, factors: bool, full: bool) -> Values:
    values = linalg.svd_p.bind(
        a, full_matrices=full, compute_uv=factors, subset_by_index=None, algorithm=None
    )
    return values if factors else [*values, None, None]


def _gesdd(site: Site, a: Value) -> Values:
    full, factors = scalar(site, 0), scalar(site, 1)
    if not {full, factors} <= {0, 1}:
        raise UnknownOptionsError
    return _svd(a, factors == 1, full == 1)


def _gesvdj(site: Site, a: Value) -> Values:
    """Return the right singular vectors as columns."""
    options = _packed(site)
    if len(options) < 7:
        raise UnknownOptionsError
    u, v = (site.eqn.outvars[i].aval.shape for i in (2, 3))
    s, u, vh = _svd(a, options[5] in _VECTORS, full=u[-1] == u[-2] and v[-1] == v[-2])
    if vh is not None:
        vh = jnp.conj(jnp.swapaxes(vh, -1, -2))
    return [s, u, vh]


def _gesvd(site: Site, a: Value) -> Values:
    """Wide matrices are passed transposed, which swaps the factors."""
    options = dict(site.eqn.params["attributes"]).get("backend_config", "")[1:-1]
    jobs = options[-2:]
    if set(jobs) - set("ASN"):
        raise UnknownOptionsError
    m, n = a.shape[-2:]
    s, u, vh = _svd(a, jobs != "NN", full=jobs == "AA")
    return [s, vh, u] if m < n else [s, u, vh]


def _trsm(site: Site, a: Value, b: Value) -> Values:
    left, lower, transposed, unit, alpha = (scalar(site, i) for i in (0, 1, 2, 3, 7))
    if alpha != 1 or not {left, lower, unit} <= {0, 1} or transposed not in (0, 1, 2):
        raise UnknownOptionsError
    x = linalg.triangular_solve_p.bind(
        a,
        b,
        left_side=left == 1,
        lower=lower == 1,
        transpose_a=transposed > 0,
        conjugate_a=transposed == 2,
        unit_diagonal=unit == 1,
    )
    return [x]


def _permutation(site: Site, pivots: Value) -> Values:
    size = site.out.shape[-1]
    return [linalg.lu_pivots_to_permutation_p.bind(pivots, permutation_size=size)]


def _approx_top_k(site: Site, x: Value) -> Values:
    """The form without the option of a fallback, with positions as payload."""
    config = dict(site.eqn.params["attributes"]).get("mhlo.backend_config", "")
    options = dict(re.findall(r"(\w+) = ([\w.+-]+)", config))
    (comparator,) = site.eqn.params["computations"]
    compared = open_jaxpr(comparator)
    axis = int(options.get("reduction_dim", -1))
    iota = site.producer(site.eqn.invars[1])
    worst = -np.inf if compared.eqns and compared.eqns[0].primitive is lax.gt_p else np.inf
    starts = [literal(a) for a in site.eqn.invars[2:4]]
    if (
        starts not in ([worst, -1], [None, None])
        or len(compared.eqns) != 1
        or list(compared.eqns[0].invars) != list(compared.invars[:2])
        or compared.eqns[0].primitive not in (lax.gt_p, lax.lt_p)
        or iota is None
        or iota.primitive is not lax.iota_p
        or iota.params["dimension"] != axis
    ):
        raise UnknownOptionsError
    return lax.approx_top_k_p.bind(
        x,
        k=int(options["top_k"]),
        reduction_dimension=axis,
        # The module holds the rate in float32; the author wrote a short decimal.
        recall_target=float(f"{float(options['recall_target']):.7g}"),
        is_max_k=compared.eqns[0].primitive is lax.gt_p,
        reduction_input_size_override=int(options["reduction_input_size_override"]),
        aggregate_to_topk=options["aggregate_to_topk"] == "true",
    )


_GEEV_REAL = Routine(1, (3, 4, 5, 6), _geev, first=4, status=7)
_GEEV_COMPLEX = Routine(1, (2, 3, 4), _geev, first=4, status=5)

_ROUTINES: Mapping[str, Routine] = {
    # LAPACK; the types s, d, c and z are left out.
    "lapack_potrf": Routine(1, (0,), _cholesky, first=3, status=1),
    "lapack_getrf": Routine(1, (0, 1), _lu, first=3, status=2),
    "lapack_geqrf": Routine(1, (0, 1), _geqrf, first=4, status=2),
    "lapack_orgqr": Routine(2, (0,), _orgqr, first=5, status=1),
    "lapack_ungqr": Routine(2, (0,), _orgqr, first=5, status=1),
    "lapack_gesdd": Routine(1, (1, 2, 3), _gesdd, first=6, status=4),
    "lapack_syevd": Routine(1, (0, 1), _eigh(0), first=3, status=2),
    "lapack_heevd": Routine(1, (0, 1), _eigh(0), first=3, status=2),
    "lapack_sgeev": _GEEV_REAL,
    "lapack_dgeev": _GEEV_REAL,
    "lapack_cgeev": _GEEV_COMPLEX,
    "lapack_zgeev": _GEEV_COMPLEX,
    "lapack_gees": Routine(1, (0, 3), _gees, first=4, status=5),
    "lapack_gehrd": Routine(1, (0, 1), _gehrd, first=6, status=2),
    "lapack_sytrd": Routine(1, (0, 1, 2, 3), _sytrd(1), first=5, status=4),
    "lapack_hetrd": Routine(1, (0, 1, 2, 3), _sytrd(1), first=5, status=4),
    "lapack_sytrd_ffi": Routine(1, (0, 1, 2, 3), _sytrd(None), status=4),
    "lapack_hetrd_ffi": Routine(1, (0, 1, 2, 3), _sytrd(None), status=4),
    "blas_trsm": Routine(2, (0,), _trsm, first=8),
    # cuSOLVER, cuBLAS and JAX's own kernels; those of ROCm have `hip` for `cu`.
    "cusolver_getrf": Routine(1, (0, 1), _lu, status=2),
    "cublas_getrf_batched": Routine(1, (0, 1), _lu, status=2),
    "cusolver_geqrf": Routine(1, (0, 1), _geqrf, status=2),
    "cublas_geqrf_batched": Routine(1, (0, 1), _geqrf),
    "cusolver_orgqr": Routine(2, (0,), _orgqr, status=1),
    "cusolver_syevd": Routine(1, (0, 1), _eigh(None), status=2),
    "cusolver_syevj": Routine(1, (0, 1), _eigh(None), status=2),
    "cusolver_gesvd": Routine(1, (1, 2, 3), _gesvd, status=4),
    "cusolver_gesvdj": Routine(1, (1, 2, 3), _gesvdj, status=4),
    "cusolver_sytrd": Routine(1, (0, 1, 2, 3), _sytrd(None), status=4),
    "cusolver_sytrd_ffi": Routine(1, (0, 1, 2, 3), _sytrd(None), status=4),
    "cuhybrid_eig_real": Routine(1, (0, 1, 2, 3), _eig_real, status=4),
    "cuhybrid_eig_comp": Routine(1, (0, 1, 2), _eig, status=3),
    "cusolver_geev_ffi": Routine(1, (1, 2, 3), _eig_cusolver, status=4),
    "cu_lu_pivots_to_permutation": Routine(1, (0,), _permutation),
    # XLA's own for TPU.
    "Eigh": Routine(1, (0, 1), _eigh_tpu),
    "Qr": Routine(1, (0, 1), _geqrf),
    "ProductOfElementaryHouseholderReflectors": Routine(2, (0,), _orgqr),
    "LuDecomposition": Routine(1, (0, 1, 2), _lu_tpu),
    "ApproxTopK": Routine(1, (0, 1), _approx_top_k),
}


def routine_of(site: Site) -> Routine | None:
    """The routine that a custom call names, if it is in the table."""
    target = site.eqn.params["target"]
    stem = re.sub(r"^hip(?=solver_|blas_|hybrid_|_)", "cu", target)
    stem = re.sub(r"^(lapack|blas)_[sdcz]", r"\1_", stem)
    routine = _ROUTINES.get(target, _ROUTINES.get(stem))
    if routine is None or len(site.eqn.invars) < routine.first + routine.arrays:
        return None
    return routine if len(site.eqn.outvars) > max(routine.results) else None


# -- the patterns


def _values(site: Site, routine: Routine, operands: Values) -> list[Value]:
    """All results of the custom call; work space and status are zeros."""
    values: list[Value] = [lax.full(v.aval.shape, 0, v.aval.dtype) for v in site.eqn.outvars]
    arrays = operands[routine.first : routine.first + routine.arrays]
    for i, value in zip(routine.results, routine.compute(site, *arrays), strict=False):
        values[i] = values[i] if value is None else value
    return values


def _is_plain(site: Site, routine: Routine) -> bool:
    """Return whether the program uses the status only to test for success."""
    for i, v in enumerate(site.eqn.outvars):
        if i in routine.results:
            continue
        users = site.graph.users.get(v, ())
        tests = i == routine.status and all(u.primitive.name in COMPARISONS for u in users)
        if v in site.graph.results or (users and not tests):
            return False
    return True


def _checked(site: Site) -> Routine | None:
    """The routine of a site, if its results have the types of the site's."""
    routine = routine_of(site)
    if routine is None or not _is_plain(site, routine):
        return None
    operands = [site.aval(a) for a in site.eqn.invars]
    try:
        with only_refusals():
            results = jax.eval_shape(lambda *xs: _values(site, routine, xs), *operands)
    # Options of another release, or operands that `jax.lax.linalg` does not take.
    except (UnknownOptionsError, TypeError, ValueError, NotImplementedError):
        return None
    types = [(v.aval.shape, v.aval.dtype) for v in site.eqn.outvars]
    return routine if [(v.shape, v.dtype) for v in results] == types else None


def _call_alone(site: Site) -> JaxFunction | None:
    """`custom_call a -> potrf a`: the equations around it stay."""
    routine = _checked(site)
    if routine is None:
        return None
    return lambda *operands: _values(site, routine, operands)


# The guard around a call. `ok` says which routines of the batch succeeded.


def _bad(x: Value) -> Value:
    return np.asarray(np.nan * (1 + 1j) if x.dtype.kind == "c" else np.nan, x.dtype)


def _select(ok: Value, x: Value, bad: Value) -> Value:
    """`select` by a predicate over the leading axes of `x`."""
    ok = lax.broadcast_in_dim(ok, x.shape, tuple(range(ok.ndim)))
    return lax.select(ok, x, lax.broadcast_in_dim(bad, x.shape, ()))


def _expand(ok: Value, x: Value) -> Value:
    shape = ok.shape + (1,) * (x.ndim - ok.ndim)
    return lax.broadcast_in_dim(ok, shape, tuple(range(ok.ndim)))


def _of_lowering(ok: Value, x: Value) -> Value:
    """The guard as today's lowering writes it."""
    return _select(_expand(ok, x), x, _bad(x))


def _where(ok: Value, x: Value, bad: Value) -> Value:
    return _select(ok, x, bad)


def _of_numpy(ok: Value, x: Value) -> Value:
    """The guard as `jnp.where(ok[..., None, None], x, nan)`."""
    return jax.jit(_where)(_expand(ok, x), x, _bad(x))


def _at_once(ok: Value, x: Value) -> Value:
    """The guard as the lowering wrote it around the start of 2025."""
    return _select(ok, x, _bad(x))


# The forms of a guard, and whether all results share one test.
_GUARDS = (
    (_of_lowering, True),
    (_of_numpy, False),
    (_at_once, False),
    (_of_numpy, True),
    (_at_once, True),
)


def _guarded(site: Site) -> Iterator[Call]:
    """`where(status == 0, x, nan) -> x`, already `NaN` where the routine failed."""
    routine = _checked(site)
    if routine is None or routine.status is None:
        return
    status = routine.status
    params = site.eqn.params
    if any(site.eqn.outvars[i].aval.dtype.kind not in "fc" for i in routine.results):
        return

    def function(*operands: Value) -> Values:
        values = _values(site, routine, operands)
        return [values[i] for i in routine.results]

    options = tuple(scalar(site, i) for i in range(routine.first))
    for guard, shared in _GUARDS:

        def before(*operands: Value, guard: JaxFunction = guard, shared: bool = shared) -> Values:
            values = template_call_p.bind(*operands, **params)
            zero = lax.full(values[status].shape, 0, values[status].dtype)
            one = [lax.eq(values[status], zero)] * len(routine.results)
            tests = one if shared else [lax.eq(values[status], zero) for _ in one]
            pairs = zip(tests, routine.results, strict=True)
            return [guard(ok, values[i]) for ok, i in pairs]

        key = (params["target"], params["attributes"], options, guard.__name__, shared)
        yield Call(key, function, tuple(map(site.aval, site.eqn.invars)), before=before)


def _threefry(site: Site) -> Iterator[Call]:
    """The GPU kernel, whose key has the counter's shape -> `threefry2x32`."""
    params, operands = site.eqn.params, site.eqn.invars[:4]
    if params["target"] not in _HASHES or len(site.eqn.invars) != 4:
        return
    shape = site.out.shape
    keys = []
    for atom in operands[:2]:
        eqn = site.producer(atom)
        if eqn is not None and eqn.primitive is lax.broadcast_in_dim_p:
            atom = eqn.invars[0]
        keys.append(site.aval(atom))

    def before(*words: Value) -> Values:
        widened = [
            lax.broadcast_in_dim(w, shape, range(len(shape) - w.ndim, len(shape))) for w in words
        ]
        return template_call_p.bind(*widened, **params)

    key = ("threefry", params["target"], params["attributes"])
    for kinds in (keys, [site.aval(a) for a in operands[:2]]):
        avals = (*kinds, *map(site.aval, operands[2:]))
        yield Call(key, threefry2x32_p.bind, avals, before=before)


_HASHES = frozenset(f"{p}_threefry2x32{s}" for p in ("cu", "hip") for s in ("", "_ffi"))


def _fallback(site: Site) -> JaxFunction | None:
    """Inline `jit[xla_fallback_qr]`: before 2024 the lowering wrapped calls in such functions."""
    if not str(site.eqn.params["name"]).startswith("xla_fallback_"):
        return None
    closed = site.eqn.params["jaxpr"]
    return lambda *operands: eval_closed(closed, operands)


HASHES = (Pattern("dated_threefry2x32", ("custom_call",), _threefry),)
FALLBACKS = (EquationPattern("dated_fallback", ("jit",), _fallback),)
GUARDED = (Pattern("dated_linalg_guarded", ("custom_call",), _guarded),)
ALONE = (EquationPattern("dated_linalg", ("custom_call",), _call_alone),)
