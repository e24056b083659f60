"""Products, decompositions, einsum and Fourier transforms against TensorFlow."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
import tensorflow as tf

import invert
from tests.tf.ops.driver import conversion
from tests.tf.ops.raw import Suite, raw
from tests.tf.ops.samples import COMPLEX, INTS, dtypes, sample

FLOATS = ("float32", "float64", "complex64", "complex128")


def matmul_cases():
    for dtype in dtypes("MatMul"):
        how = {"rtol": None if dtype in INTS else 32, "atol": 256, "grad_rtol": 256, "grad": True}
        for ta in (False, True):
            for tb in (False, True):
                a = sample((4, 3) if ta else (3, 4), dtype)
                b = sample((5, 4) if tb else (4, 5), dtype, 1)
                yield raw("MatMul", {"a": a, "b": b}, {"transpose_a": ta, "transpose_b": tb}, **how)
        yield raw("MatMul", {"a": sample((3, 0), dtype), "b": sample((0, 2), dtype)}, grad=False)
    for dtype in dtypes("BatchMatMulV2"):
        how = {"rtol": None if dtype in INTS else 32, "atol": 256, "grad_rtol": 256}
        for ax in (False, True):
            for ay in (False, True):
                x = sample((2, 1, 4, 3) if ax else (2, 1, 3, 4), dtype)
                y = sample((3, 5, 4) if ay else (3, 4, 5), dtype, 1)
                yield raw("BatchMatMulV2", {"x": x, "y": y}, {"adj_x": ax, "adj_y": ay}, **how)
                if dtype not in dtypes("BatchMatMul"):
                    continue
                same = sample((2, 3, *y.shape[1:]), dtype, 1)
                x = sample((2, 3, *x.shape[2:]), dtype)
                yield raw("BatchMatMul", {"x": x, "y": same}, {"adj_x": ax, "adj_y": ay}, **how)
    for a, b, out in (
        ("float32", "float32", "float32"),
        ("int8", "int8", "int32"),
        ("uint8", "int8", "int32"),
    ):
        yield raw(
            "BatchMatMulV3",
            {"x": sample((2, 3, 4), a), "y": sample((4, 5), b, 1)},
            {"Tout": out},
            rtol=32,
            atol=256,
            grad_rtol=256,
        )
    for a in ("float32", "bfloat16"):
        for b in ("float32", "bfloat16"):
            inputs = {"a": sample((4, 3), a), "b": sample((5, 4), b)}
            flags = {"transpose_a": True, "transpose_b": True, "a_is_sparse": True}
            yield raw("SparseMatMul", inputs, flags, rtol=64, atol=256, grad=False)
    for dtype in dtypes("TridiagonalMatMul"):
        rows = {k: sample((2, 1, 5), dtype, k) for k in ("superdiag", "maindiag", "subdiag")}
        yield raw(
            "TridiagonalMatMul",
            {**rows, "rhs": sample((2, 5, 3), dtype)},
            rtol=32,
            atol=64,
            grad=dtype not in COMPLEX,
        )


EQUATIONS = [
    ("ij,jk->ik", (2, 3), (3, 4)),
    ("bij,bjk->bik", (2, 3, 4), (2, 4, 5)),
    ("...ij,...jk->...ik", (2, 1, 3, 4), (5, 4, 2)),
    ("ii->i", (3, 3)),
    ("ii->", (3, 3)),
    ("i->ii", (3,)),
    ("i->iii", (3,)),
    ("ij,j->iij", (2, 3), (3,)),
    ("ijk->kj", (2, 3, 4)),
    ("abc,cd->bad", (2, 3, 4), (4, 5)),
    ("i,j->ij", (2,), (3,)),
    ("...a->...", (2, 3, 4)),
    ("aab,ab->a", (2, 2, 3), (2, 3)),
    ("...i->...ii", (2, 3)),
    ("Ab,bC->AC", (2, 3), (3, 2)),
    (",i->i", (), (3,)),
]  # fmt: skip


def einsum_cases():
    for dtype in ("float32", "int32", "complex64", "bfloat16", "float64", "int64", "float16"):
        for equation, *shapes in EQUATIONS:
            inputs = [sample(shape, dtype, i) for i, shape in enumerate(shapes)]
            rtol = None if dtype in INTS else 32
            yield raw(
                "Einsum",
                {"inputs": inputs},
                {"equation": equation},
                rtol=rtol,
                atol=256,
                grad_rtol=256,
            )


PRODUCT = Suite([*matmul_cases(), *einsum_cases()])


def by_numpy(name):
    """TensorFlow has no kernels for these on the CPU."""
    fn = getattr(np.fft, f"{name.lower()}n")

    def reference(input, fft_length, axes, Tcomplex=None, Treal=None):
        out = fn(input.astype(complex if input.dtype.kind == "c" else float), fft_length, axes)
        single = input.dtype in (np.float32, np.complex64)
        kinds = {"c": ("complex64", "complex128"), "f": ("float32", "float64")}
        return [out.astype(kinds[out.dtype.kind][0 if single else 1])]

    return reference


def transform_cases():
    for dtype in COMPLEX:
        for name in ("FFT", "IFFT"):
            for end, shape in (("", (3, 8)), ("2D", (2, 5, 6)), ("3D", (2, 3, 4, 5))):
                x = sample(shape, dtype)
                yield raw(f"{name}{end}", {"input": x}, rtol=64, atol=64, grad_rtol=64)
            for axes, lengths in (([0, 2], [3, 6]), ([1], [5]), ([-1, 0], [8, 2])):
                attrs = {
                    "fft_length": np.array(lengths, np.int32),
                    "axes": np.array(axes, np.int32),
                }
                yield raw(
                    f"{name}ND",
                    {"input": sample((3, 5, 6), dtype)},
                    attrs,
                    rtol=64,
                    atol=64,
                    reference=by_numpy(name),
                )
    for dtype, pair in (("float32", "complex64"), ("float64", "complex128")):
        types = {"Tcomplex": pair}
        for end, shape, lengths in (
            ("", (3, 8), ([8], [5])),
            ("2D", (2, 5, 6), ([5, 6], [3, 4])),
            ("3D", (2, 3, 4, 5), ([3, 4, 5], [2, 3, 4])),
        ):
            for length in lengths:
                attrs = {"fft_length": np.array(length, np.int32)}
                yield raw(
                    f"RFFT{end}",
                    {"input": sample(shape, dtype)},
                    {**attrs, **types},
                    rtol=64,
                    atol=64,
                    grad_rtol=64,
                )
                yield raw(
                    f"IRFFT{end}",
                    {"input": sample(shape, pair)},
                    {**attrs, "Treal": dtype},
                    rtol=64,
                    atol=64,
                    grad=False,
                )
        for axes, lengths in (([0, 2], [3, 6]), ([1], [4]), ([2, 0], [8, 2])):
            attrs = {"fft_length": np.array(lengths, np.int32), "axes": np.array(axes, np.int32)}
            yield raw(
                "RFFTND",
                {"input": sample((3, 5, 6), dtype)},
                {**attrs, **types},
                rtol=64,
                atol=64,
                reference=by_numpy("RFFT"),
            )
            inputs = {"input": sample((3, 5, 6), pair)}
            yield raw(
                "IRFFTND",
                inputs,
                {**attrs, "Treal": dtype},
                rtol=64,
                atol=64,
                reference=by_numpy("IRFFT"),
            )


TRANSFORM = Suite(transform_cases())


def positive(shape, dtype):
    x = sample(shape, dtype)
    n = shape[-1]
    return (x @ x.conj().swapaxes(-1, -2) + 4 * np.eye(n)).astype(dtype)


def solvable(shape, dtype, key=0):
    return (sample(shape, dtype, key) + 6 * np.eye(shape[-2], shape[-1])).astype(dtype)


def decomposition_cases():
    for dtype in FLOATS:
        how = {"rtol": 2000, "atol": 500, "grad_rtol": 4000, "grad": dtype not in COMPLEX}
        spd = positive((2, 4, 4), dtype)
        a, b = solvable((2, 4, 4), dtype), sample((2, 4, 3), dtype, 1)
        garbage = spd + np.triu(np.full((4, 4), 50), 1).astype(dtype)
        yield raw("Cholesky", {"input": spd}, **how)
        yield raw("Cholesky", {"input": garbage}, label="upper triangle unread", **how)
        if dtype in ("float32", "float64"):
            low = np.linalg.cholesky(spd).astype(dtype)
            yield raw(
                "CholeskyGrad",
                {"l": low, "grad": sample((2, 4, 4), dtype)},
                **{**how, "grad": False},
            )
        yield raw(
            "SelfAdjointEigV2",
            {"input": garbage},
            {"compute_v": False},
            **{**how, "reference": eigenvalues},
        )
        yield raw("Svd", {"input": a}, {"compute_uv": False}, **{**how, "reference": singular})
        yield raw("Lu", {"input": a}, **how)
        # Eigen and LAPACK choose pivots by other norms of complex numbers.
        yield raw(
            "Lu",
            {"input": sample((3, 5, 5), dtype) if dtype not in COMPLEX else a},
            {"output_idx_type": tf.int64},
            **{**how, "grad": False},
        )
        yield raw("MatrixDeterminant", {"input": a}, **how)
        yield raw("LogMatrixDeterminant", {"input": a}, **how)
        for adjoint in (False, True):
            attrs = {"adjoint": adjoint}
            yield raw("MatrixInverse", {"input": a}, attrs, **how)
            yield raw("MatrixSolve", {"matrix": a, "rhs": b}, attrs, **how)
            for lower in (False, True):
                attrs = {"adjoint": adjoint, "lower": lower}
                yield raw("MatrixTriangularSolve", {"matrix": a, "rhs": b}, attrs, **how)
                yield raw("MatrixTriangularSolve", {"matrix": a[:1], "rhs": b}, attrs, **how)
                bands = sample((2, 3, 5), dtype) + np.array(5, dtype)
                yield raw(
                    "BandedTriangularSolve",
                    {"matrix": bands, "rhs": sample((2, 5, 2), dtype)},
                    attrs,
                    **{**how, "grad": False},
                )
        for fast in (True, False):
            for shape in ((5, 3), (3, 5)):
                inputs = {
                    "matrix": sample((2, *shape), dtype),
                    "rhs": sample((2, shape[0], 2), dtype),
                }
                attrs = {"fast": fast, "l2_regularizer": np.float64(0.3 if fast else 0)}
                yield raw(
                    "MatrixSolveLs", inputs, attrs, **{**how, "grad": fast and dtype not in COMPLEX}
                )
        for pivoting in (False, True):
            d = sample((2, 3, 5), dtype)
            d[:, 1] += np.array(9, dtype)
            inputs = {"diagonals": d, "rhs": sample((2, 5, 3), dtype)}
            yield raw("TridiagonalSolve", inputs, {"partial_pivoting": pivoting}, **how)
        yield raw("MatrixSquareRoot", {"input": spd}, **{**how, "grad": False})
        if dtype in COMPLEX:
            yield raw("MatrixLogarithm", {"input": spd}, **{**how, "grad": False})


def eigenvalues(input, compute_v):
    values = np.linalg.eigvalsh(input, "L").astype(input.dtype)
    return [values, np.zeros((0,), input.dtype)]


def singular(input, compute_uv):
    empty = np.zeros((0,), input.dtype)
    return [np.linalg.svd(input, compute_uv=False).astype(input.dtype), empty, empty]


DECOMPOSITION = Suite(decomposition_cases())


test_product = PRODUCT.test()
test_transform = TRANSFORM.test()


test_decomposition = DECOMPOSITION.test()


# Factors are unique up to signs or phases, which Eigen and LAPACK choose differently: what they
# multiply to is compared.
REBUILT = {
    "Qr": lambda x: tf.matmul(*tf.linalg.qr(x)),
    "Qr, full": lambda x: tf.matmul(*tf.linalg.qr(x, full_matrices=True)),
    "Svd": lambda x: rebuilt_svd(x, full=False),
    "Svd, full": lambda x: rebuilt_svd(x, full=True),
    "SelfAdjointEigV2": lambda x: rebuilt_eigh(square(x)),
    "Eig": lambda x: rebuilt_eig(x[..., :3, :3]),
    "Eigenvalues": lambda x: tf.sort(tf.abs(tf.linalg.eigvals(x[..., :3, :3]))),
}


def square(x):
    return tf.matmul(x, x, adjoint_b=True)


def rebuilt_svd(x, full):
    s, u, v = tf.linalg.svd(x, full_matrices=full)
    n = s.shape[-1]
    s = tf.cast(s, x.dtype)
    return tf.matmul(u[..., :n] * s[..., None, :], v[..., :n], adjoint_b=True), s


def rebuilt_eigh(x):
    e, v = tf.linalg.eigh(x)
    return tf.matmul(v * tf.cast(e, x.dtype)[..., None, :], v, adjoint_b=True), e


def rebuilt_eig(x):
    e, v = tf.linalg.eig(x)
    return tf.matmul(v * e[..., None, :], tf.linalg.inv(v))


@pytest.mark.parametrize("dtype", ["float32", pytest.param("complex128", marks=pytest.mark.slow)])
@pytest.mark.parametrize("shape", [(2, 4, 3), (2, 3, 4)])
def test_factors_multiply_to_the_matrix(dtype, shape):
    x = sample(shape, dtype, 4)

    def program(x):
        return [t for fn in REBUILT.values() for t in tf.nest.flatten(fn(x))]

    with jax.enable_x64(True):
        got = conversion(program, [tf.TensorSpec(x.shape, x.dtype)], module=True)(x)
    for g, w in zip(got, program(tf.constant(x)), strict=True):
        assert g.dtype == w.dtype.as_numpy_dtype
        np.testing.assert_allclose(g, w.numpy(), rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("of", ["values", "vectors"])
def test_derivatives_of_eigenvalues_and_eigenvectors(of):
    """To second order, also of the values alone that come with vectors."""
    x = sample((3, 3), "float32", 4)
    weights = np.arange(9, dtype=np.float32).reshape(3, 3)

    def fn(x):
        e, v = tf.linalg.eig(x)
        return tf.abs(e**2) if of == "values" else tf.abs(v) ** 2 * weights

    with tf.GradientTape() as outer:
        z = tf.constant(x)
        outer.watch(z)
        with tf.GradientTape() as inner:
            inner.watch(z)
            y = fn(z)
        first: Any = inner.gradient(y, z)
        total = tf.reduce_sum(first * weights)
    second: Any = outer.gradient(total, z)
    module = invert.convert(tf.function(fn, autograph=False), x)
    slope = jax.grad(lambda x: module(x).sum())
    np.testing.assert_allclose(slope(x), first, rtol=1e-4, atol=1e-4)
    again = jax.grad(lambda x: (slope(x) * weights).sum())(x)
    np.testing.assert_allclose(again, second, rtol=1e-3, atol=1e-3 * np.abs(second).max())


# Without a basis of eigenvectors, with equal, complex, negative and close eigenvalues.
MATRICES = {
    "jordan": [[2.0, 1, 0], [0, 2, 1], [0, 0, 2]],
    "of_motion": [[1.0, 0.1, 0.005], [0, 1, 0.1], [0, 0, 1]],
    "rotation": [[0.0, -1], [1, 0]],
    "negative": [[-1.0, 0.3], [0.3, -2]],
    "half_negative": [[4.0, 1], [0, -9]],
    "large": [[3e6, 1, 2], [1, 2e6, 5], [2, 5, 1e6]],
    "tiny": [[3e-6, 1e-7], [2e-7, 1e-6]],
    "not_finite": [[np.nan, 1], [0, 1]],
    "one": [[4.0]],
    "empty": np.zeros((0, 0)),
    "batch": [np.eye(2), [[1.0, 1], [0, 1]]],
}


@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_functions_of_matrices(name, dtype):
    x = np.asarray(MATRICES[name]).astype(dtype)
    functions = [tf.linalg.sqrtm]
    if x.dtype.kind == "c":
        functions.append(tf.linalg.logm)
    rtol = 1e-4 if dtype == "float32" else 1e-10
    for fn in functions:
        with jax.enable_x64(True):
            (got,) = conversion(fn, [tf.TensorSpec(x.shape, x.dtype)], module=True)(x)
        want = fn(tf.constant(x)).numpy()
        np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol * np.abs(want).max(initial=0))


def test_roots_of_singular_matrices():
    """They are roots where there are any, though TensorFlow's are NaN; their logarithms are NaN."""

    def program(x):
        return tf.linalg.sqrtm(x), tf.linalg.logm(tf.cast(x, tf.complex64))

    convert = conversion(program, [tf.TensorSpec([2, 2], tf.float32)], module=True)
    for x in ([[0, 0], [0, 0]], [[1, 2], [2, 4]], [[0, 1], [0, 0]]):
        x = np.asarray(x, np.float32)
        root, log = map(np.asarray, convert(x))
        if x.any() and not x.diagonal().any():
            assert np.isnan(root).all()
        else:
            np.testing.assert_allclose(root @ root, x, atol=1e-6)
        assert np.isnan(log).all() or np.linalg.det(x) != 0


@pytest.mark.parametrize("shape", [(6, 3), (6, 2)])
def test_bands_of_more_diagonals_than_the_matrix(shape):
    """The condition is part of the certificate; TensorFlow raises where it does not hold."""

    def halves(x):
        return tf.linalg.band_part(x, -1, tf.shape(x)[0] // 2)

    module = invert.convert(tf.function(halves), tf.TensorSpec([None, None]))
    assert "floordiv(batch, 2) <= length" in str(module.report.certificate)
    x = np.ones(shape, np.float32)
    if shape[1] == 3:
        np.testing.assert_array_equal(module(x), halves(x))
        return
    with pytest.raises(tf.errors.InvalidArgumentError, match="num_upper"):
        halves(x)
    with pytest.raises(invert.UnsupportedOpError, match="a band of 3 diagonals of a matrix of 2"):
        module(x)
