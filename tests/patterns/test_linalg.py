"""Linear algebra comes back from the custom calls of LAPACK, cuSOLVER and XLA:TPU."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.lax import linalg

import invert
from invert._private.jax import default_platform, geqp3_p, geqrf_p

# Targets JAX does not vouch for in serialized modules.
UNSTABLE = [f"lapack_{t}{k}_ffi" for t in "sdcz" for k in ("ormqr", "unmqr", "geqp3", "gesvd")] + [
    "cuhybrid_geqp3",
    "cuhybrid_eig_comp",
    "cuhybrid_eig_real",
    "cusolver_geev_ffi",
    "cusolver_ormqr_ffi",
    "cusolver_syrk_ffi",
    "cu_cholesky_update_ffi",
]


# The platform of this process: on a GPU, its custom calls are tested.
HERE = default_platform()


def exported(fn: Callable[..., Any], *args: Any, platform: str = HERE) -> jax.export.Exported:
    checks = jax.export.DisabledSafetyCheck
    disabled = [checks.platform(), *map(checks.custom_call, UNSTABLE)]
    try:
        return jax.export.export(jax.jit(fn), platforms=[platform], disabled_checks=disabled)(*args)
    except NotImplementedError as error:
        pytest.skip(f"JAX does not lower it for {platform}: {error}")


def recover(fn: Callable[..., Any], *args: Any, platform: str = HERE) -> Any:
    return invert.from_exported(exported(fn, *args, platform=platform))


def matrix(*shape: int, dtype: str = "float32", seed: int = 0) -> np.ndarray:
    """Random; square ones are well conditioned with distinct eigenvalues."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=shape)
    if np.dtype(dtype).kind == "c":
        x = x + 1j * rng.normal(size=shape)
    if len(shape) > 1 and shape[-1] == shape[-2]:
        x = x @ np.swapaxes(x.conj(), -1, -2) + np.diag(np.arange(1.0, shape[-1] + 1))
    return x.astype(dtype)


def check(fn: Callable[..., Any], args: Sequence[Any], primitive: str, **found: Any) -> Any:
    """`primitive` occurs once, nothing is opaque, and values equal those of `fn`, bit for bit."""
    module = recover(fn, *args, **found)
    counts = module.report.primitives
    assert counts.get(primitive) == 1, counts
    assert not module.report.opaque
    assert module.report.certificate.kind == "exact", module.report.certificate
    if not found:
        got, want = module(*args), jax.jit(fn)(*args)
        jax.tree.map(np.testing.assert_array_equal, jax.tree.leaves(got), jax.tree.leaves(want))
    return module


DTYPES = ("float32", "complex64")


def by_turns(names: Iterable[str], kinds: Sequence[Any]) -> Any:
    """Each name with one of the kinds, in rotation; with the other kinds in slow tests."""
    return [
        pytest.param(name, kind, marks=[] if i % len(kinds) == j else [pytest.mark.slow])
        for i, name in enumerate(names)
        for j, kind in enumerate(kinds)
    ]


SQUARE: dict[str, tuple[Callable[..., Any], str]] = {
    "cholesky": (linalg.cholesky, "cholesky"),
    "eig": (lambda a: linalg.eig(a, compute_left_eigenvectors=True), "eig"),
    "eig_left": (lambda a: linalg.eig(a, compute_right_eigenvectors=False), "eig"),
    "eigvals": (jnp.linalg.eigvals, "eig"),
    "eigh": (linalg.eigh, "eigh"),
    "eigh_upper": (lambda a: linalg.eigh(a, lower=False, symmetrize_input=False), "eigh"),
    "eigvalsh": (jnp.linalg.eigvalsh, "eigh"),
    "hessenberg": (linalg.hessenberg, "hessenberg"),
    "schur": (linalg.schur, "schur"),
    "schur_form": (lambda a: linalg.schur(a, compute_schur_vectors=False), "schur"),
    "tridiagonal": (linalg.tridiagonal, "tridiagonal"),
    "tridiagonal_upper": (lambda a: linalg.tridiagonal(a, lower=False), "tridiagonal"),
}


@pytest.mark.parametrize(("name", "dtype"), by_turns(SQUARE, DTYPES))
def test_square(name: str, dtype: str) -> None:
    fn, primitive = SQUARE[name]
    check(fn, [matrix(*((3, 3) if dtype == "float32" else (2, 3, 3)), dtype=dtype)], primitive)


TALL_AND_WIDE: dict[str, tuple[Callable[..., Any], str]] = {
    "lu": (linalg.lu, "lu"),
    "lu_factor": (lambda a: linalg.lu(a)[0], "lu"),
    "lu_permutation": (lambda a: linalg.lu(a)[2], "lu"),
    "qr": (jnp.linalg.qr, "qr"),
    "qr_complete": (lambda a: jnp.linalg.qr(a, mode="complete"), "qr"),
    "qr_q": (lambda a: jnp.linalg.qr(a)[0], "qr"),
    "qr_r": (lambda a: jnp.linalg.qr(a, mode="r"), "qr"),
    "qr_raw": (lambda a: jnp.linalg.qr(a, mode="raw"), "geqrf"),
    "qr_pivoted": (lambda a: linalg.qr(a, pivoting=True, full_matrices=False), "qr"),
    "qr_pivoted_complete": (lambda a: linalg.qr(a, pivoting=True), "qr"),
    "svd": (linalg.svd, "svd"),
    "svd_reduced": (lambda a: linalg.svd(a, full_matrices=False), "svd"),
    "svd_values": (lambda a: linalg.svd(a, compute_uv=False), "svd"),
    "svd_factor": (lambda a: linalg.svd(a)[2], "svd"),
    "svd_by_qr": (lambda a: linalg.svd(a, algorithm=linalg.SvdAlgorithm.QR), "svd"),
}


@pytest.mark.parametrize(("name", "shape"), by_turns(TALL_AND_WIDE, [(4, 2), (2, 4, 4)]), ids=str)
def test_tall_and_square(name: str, shape: tuple[int, ...]) -> None:
    fn, primitive = TALL_AND_WIDE[name]
    check(fn, [matrix(*shape, dtype="complex64" if len(shape) > 2 else "float32")], primitive)


@pytest.mark.parametrize("name", ["lu", "qr", "qr_pivoted", "svd_values"])
def test_wide(name: str) -> None:
    fn, primitive = TALL_AND_WIDE[name]
    check(fn, [matrix(2, 4)], primitive)


@pytest.mark.parametrize(
    ("left", "lower", "transpose", "unit"),
    [
        (True, True, "N", False),
        (True, False, "T", True),
        (False, True, "C", False),
        (False, False, "conj", True),
    ],
)
def test_triangular_solve(left: bool, lower: bool, transpose: str, unit: bool) -> None:
    params = {
        "left_side": left,
        "lower": lower,
        "transpose_a": transpose in "TC",
        "conjugate_a": transpose in ("C", "conj"),
        "unit_diagonal": unit,
    }
    args = [
        matrix(3, 3, dtype="complex64"),
        matrix(*((3, 2) if left else (2, 3)), dtype="complex64"),
    ]
    module = check(lambda a, b: linalg.triangular_solve(a, b, **params), args, "triangular_solve")
    (eqn,) = (e for e in module.jaxpr.eqns if e.primitive.name == "triangular_solve")
    if HERE == "cpu":  # elsewhere, a conjugation alone is an equation of its own
        assert {name: eqn.params[name] for name in params} == params


def test_several_operands() -> None:
    a, taus = jax.jit(lambda x: geqrf_p.bind(x))(matrix(4, 2))
    c = matrix(4, 3, seed=1)
    check(linalg.householder_product, [a, taus], "householder_product")
    for left, transpose in ((True, True), (False, False)):
        operand = c if left else np.ascontiguousarray(c.T)
        multiply = lambda a, t, c, s=left, x=transpose: linalg.ormqr(a, t, c, left=s, transpose=x)  # noqa: E731
        check(multiply, [a, taus, operand], "ormqr")
    pivots = np.zeros((2, 3), np.int32)
    check(lambda a, p: geqp3_p.bind(a, p, use_magma=None), [matrix(2, 4, 3), pivots], "geqp3")
    swaps = np.array([[1, 2, 2], [2, 1, 2]], np.int32)
    check(lambda p: linalg.lu_pivots_to_permutation(p, 5), [swaps], "lu_pivots_to_permutation")
    diagonals = [matrix(3, seed=i) for i in (1, 2, 3)]
    check(linalg.tridiagonal_solve, [*diagonals, matrix(3, 2)], "tridiagonal_solve")


def test_written_out() -> None:
    product = lambda a, c: linalg.symmetric_product(a, c, alpha=0.1, beta=0.7)  # noqa: E731
    check(product, [matrix(3, 2), matrix(3, 3)], "symmetric_product")
    check(
        linalg.cholesky_update, [np.linalg.cholesky(matrix(3, 3)).T, matrix(3)], "cholesky_update"
    )


@pytest.mark.parametrize("name", ["lu", "qr", "svd", "eigh", "lu_pivots"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
def test_with_64_bit_types_enabled(name: str, dtype: str) -> None:
    fns: dict[str, tuple[Callable[..., Any], str]] = {**SQUARE, **TALL_AND_WIDE}
    with jax.enable_x64(True):
        if name == "lu_pivots":
            fn = lambda p: linalg.lu_pivots_to_permutation(p, 4)  # noqa: E731
            check(fn, [np.array([1, 2, 2], np.int32)], "lu_pivots_to_permutation")
        else:
            check(fns[name][0], [matrix(3, 3, dtype=dtype)], fns[name][1])


SOLVES: dict[str, tuple[Callable[..., Any], tuple[int, ...], tuple[int, ...]]] = {
    "vector": (jnp.linalg.solve, (3, 3), (3,)),
    "matrix": (jnp.linalg.solve, (3, 3), (3, 2)),
    "batches": (jnp.linalg.solve, (2, 3, 3), (2, 3, 4)),
    "one matrix, many sides": (jnp.linalg.solve, (3, 3), (2, 3, 4)),
    "many matrices, one side": (jnp.linalg.solve, (2, 3, 3), (3, 4)),
    "mapped vectors": (jax.vmap(jnp.linalg.solve), (2, 3, 3), (2, 3)),
    "mapped side": (jax.vmap(jnp.linalg.solve, (None, 0)), (3, 3), (2, 3)),
    "one mapped": (jax.vmap(jnp.linalg.solve), (1, 3, 3), (1, 3)),
    "one mapped, one side": (jax.vmap(jnp.linalg.solve, (0, None)), (1, 3, 3), (3, 2)),
}


@pytest.mark.parametrize("name", SOLVES)
def test_solve_is_a_linear_solve_again(name: str) -> None:
    fn, *shapes = SOLVES[name]
    args = [matrix(*shapes[0]), matrix(*shapes[1], seed=1)]
    module = check(fn, args, "custom_linear_solve")

    def loss(f: Callable[..., Any]) -> Any:
        return jax.jit(jax.grad(lambda *xs: jnp.sin(f(*xs)).sum(), argnums=(0, 1)))(*args)

    for got, want in zip(loss(module), loss(fn), strict=True):
        np.testing.assert_array_equal(got, want)


def test_inverse_holds_a_linear_solve() -> None:
    check(jnp.linalg.inv, [matrix(3, 3)], "custom_linear_solve")


@pytest.mark.parametrize("fn", [linalg.cholesky, jnp.linalg.eigvalsh, linalg.lu, jnp.linalg.qr])
def test_second_derivatives(fn: Callable[..., Any]) -> None:
    a = matrix(3, 3)
    module = recover(fn, a)

    def second(f: Callable[..., Any]) -> Any:
        def loss(x: Any) -> Any:
            leaves = jax.tree.leaves(f(x))
            return sum(
                (y**2 * jnp.arange(1, y.size + 1.0).reshape(y.shape)).sum()
                for y in leaves
                if y.dtype == x.dtype
            )

        return jax.jit(jax.hessian(loss))(a)

    want = second(fn)
    np.testing.assert_allclose(second(module), want, rtol=1e-3, atol=1e-4 * np.abs(want).max())


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
@pytest.mark.parametrize("name", ["lu", "qr", "eigh"])
def test_module_of_another_platform_runs_here(name: str, platform: str) -> None:
    fns: dict[str, tuple[Callable[..., Any], str]] = {**SQUARE, **TALL_AND_WIDE}
    a = matrix(3, 3)
    module = check(fns[name][0], [a], fns[name][1], platform=platform)
    for got, want in zip(jax.tree.leaves(module(a)), jax.tree.leaves(fns[name][0](a)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["cholesky", "svd", "svd_factor", "vectors", "tridiagonal"])
def test_cuda_module(name: str) -> None:
    fns: dict[str, tuple[Callable[..., Any], str]] = {**SQUARE, **TALL_AND_WIDE}
    fns["vectors"] = (lambda a: linalg.svd(a)[1:], "svd")
    check(fns[name][0], [matrix(2, 4, 4)], fns[name][1], platform="cuda")


def test_platform_is_known_without_custom_calls() -> None:
    args = [matrix(3, 3), matrix(3, 2)]
    check(jax.scipy.linalg.solve_triangular, args, "triangular_solve", platform="cuda")


def test_inside_loops_and_branches() -> None:
    def fn(a: jax.Array, steps: int) -> Any:
        def body(carry: jax.Array, _: None) -> tuple[jax.Array, None]:
            return jnp.linalg.qr(carry)[0] @ carry, None

        a, _ = lax.scan(body, a, None, length=3)
        a = lax.cond(a[0, 0] > 0, linalg.cholesky, lambda x: linalg.lu(x)[0], a)
        return lax.while_loop(
            lambda s: s[0] < steps, lambda s: (s[0] + 1, jnp.linalg.inv(s[1])), (0, a)
        )

    args = (matrix(3, 3), 3)
    module = recover(fn, *args)
    counts = module.report.primitives
    assert not module.report.opaque
    assert {n: counts[n] for n in ("qr", "cholesky", "custom_linear_solve")} == {
        "qr": 1,
        "cholesky": 1,
        "custom_linear_solve": 1,
    }
    jax.tree.map(np.testing.assert_array_equal, module(*args), jax.jit(fn)(*args))


# Programs that come close, what they must not become, and what they are instead.
def _tril_of_qr(a: jax.Array) -> Any:
    r, taus = geqrf_p.bind(a)
    return linalg.householder_product(r, taus), jnp.tril(r)


def _raw_beside_qr(a: jax.Array) -> Any:
    r, taus = geqrf_p.bind(a)
    return linalg.householder_product(r, taus), r


def _other_reflectors(a: jax.Array) -> Any:
    r, taus = geqrf_p.bind(a)
    return linalg.householder_product(r, 2 * taus), jnp.triu(r)


def _swaps_from_one(p: jax.Array) -> jax.Array:
    def swap(i: Any, order: jax.Array) -> jax.Array:
        return order.at[i].set(order[p[i]]).at[p[i]].set(order[i])

    return lax.fori_loop(1, p.shape[0], swap, jnp.arange(5, dtype=np.int32))


def _not_symmetric(a: jax.Array, c: jax.Array) -> jax.Array:
    product = lax.dot_general(a, a + 1, (((1,), (1,)), ((), ())), precision="highest")
    return 0.5 * product + 2.0 * c


def _lower_precision(a: jax.Array, c: jax.Array) -> jax.Array:
    return 0.5 * lax.batch_matmul(a, a.T, precision=lax.Precision.DEFAULT) + 2.0 * c


def _solve_of_another_order(a: jax.Array, b: jax.Array) -> jax.Array:
    factors, _, order = linalg.lu(a)
    return jax.scipy.linalg.lu_solve((factors, order[::-1]), b)


_REFLECTORS = {"geqrf": 1, "householder_product": 1}
_SWAPS = [np.array([1, 2, 2], np.int32)]
_PAIR = [matrix(3, 2), matrix(3, 3)]
NEAR_MISSES: dict[str, tuple[Callable[..., Any], list[Any], str, dict[str, int]]] = {
    "lower triangle": (_tril_of_qr, [matrix(3, 3)], "qr", _REFLECTORS),
    "raw factor used": (_raw_beside_qr, [matrix(3, 3)], "qr", _REFLECTORS),
    "other scalars": (_other_reflectors, [matrix(3, 3)], "qr", {}),
    "swaps from 1": (_swaps_from_one, _SWAPS, "lu_pivots_to_permutation", {}),
    "not symmetric": (_not_symmetric, _PAIR, "symmetric_product", {}),
    "precision": (_lower_precision, _PAIR, "symmetric_product", {}),
    "order reversed": (
        _solve_of_another_order, [matrix(3, 3), matrix(3)], "custom_linear_solve", {"lu": 1}
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_near_miss(name: str) -> None:
    fn, args, refused, kept = NEAR_MISSES[name]
    module = recover(fn, *args)
    counts = module.report.primitives
    assert refused not in counts
    assert {n: counts.get(n) for n in kept} == kept
    assert module.report.certificate.kind == "exact"
    jax.tree.map(np.testing.assert_array_equal, module(*args), jax.jit(fn)(*args))


def _text(fn: Callable[..., Any], *args: Any) -> str:
    return exported(fn, *args, platform="cpu").mlir_module()


def test_failure_is_part_of_the_match() -> None:
    """If another status than 0 means success, the program is not JAX's Cholesky."""
    text = _text(linalg.cholesky, matrix(3, 3))
    assert invert.from_stablehlo(text).report.primitives.get("cholesky") == 1
    changed = re.sub(r"stablehlo.compare( )+EQ", "stablehlo.compare  NE", text)
    assert changed != text
    module = invert.from_stablehlo(changed)
    assert "cholesky" not in module.report.primitives
    assert module.report.opaque == {"lapack_spotrf_ffi": 1}
    if HERE == "cpu":  # other platforms have no LAPACK
        assert np.isnan(np.asarray(module(matrix(3, 3)))[np.tril_indices(3)]).all()


def test_interior_value_used_outside() -> None:
    """A factor that is returned before the check for failure is left alone."""
    text = _text(linalg.cholesky, matrix(3, 3))
    factor = re.search(r"(%\w+):2 = stablehlo.custom_call @lapack_spotrf_ffi", text)
    assert factor is not None
    changed = re.sub(r"return %\w+", f"return {factor[1]}#0", text)
    module = invert.from_stablehlo(changed)
    assert "cholesky" not in module.report.primitives
    assert module.report.opaque == {"lapack_spotrf_ffi": 1}


def test_matrices_without_elements() -> None:
    for fn in (linalg.lu, jnp.linalg.qr, linalg.svd):
        args = [np.zeros((0, 3), np.float32)]
        module = recover(fn, *args)
        assert not module.report.opaque
        jax.tree.map(np.testing.assert_array_equal, list(module(*args)), list(fn(*args)))
