"""Calls of `tf.linalg`, its operators, and `tf.signal`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tests.tf.api.calls import (
    SPD,
    TRI,
    WELL,
    Arg,
    B,
    Call,
    F,
    Table,
    U,
    V,
    Z,
    call,
    each,
    left_out,
    of,
)  # fmt: skip

L = tf.linalg
BOTH = "float32 float64 complex64 complex128"


def _signless(name: str, **options: Any) -> Callable[[Any], Any]:
    """The unique part of a decomposition whose factors are unique up to signs."""

    def svd(x: Any) -> Any:
        s, u, v = L.svd(x, **options)
        k = tf.shape(s)[-1]
        low = u[..., :, :k] * tf.cast(s, u.dtype)[..., None, :]
        return s, tf.matmul(low, v[..., :, :k], adjoint_b=True)

    def qr(x: Any) -> Any:
        q, r = L.qr(x, **options)
        return tf.matmul(q, r), tf.abs(r)

    def eigh(x: Any) -> Any:
        w, v = L.eigh(x)
        return w, tf.matmul(v * tf.cast(w, v.dtype)[..., None, :] ** 2, v, adjoint_b=True)

    def eig(x: Any) -> Any:
        w, v = L.eig(x)
        order = tf.argsort(tf.math.real(w))
        w, v = tf.gather(w, order, batch_dims=1), tf.gather(v, order, axis=-1, batch_dims=1)
        return w, tf.abs(v) / tf.norm(tf.abs(v), axis=-2, keepdims=True)

    return {"svd": svd, "qr": qr, "eigh": eigh, "eig": eig}[name]


def _symmetric(*shape: Any) -> Arg:
    def make(g: np.random.Generator, s: tuple[int, ...]) -> Any:
        a = g.normal(size=s)
        return a + np.swapaxes(a, -1, -2) + 3 * np.diag(np.arange(s[-1]))

    return Arg(shape, None, make)


def _spread(*shape: Any) -> Arg:
    """Matrices with real, well separated eigenvalues."""
    return Arg(
        shape, None, lambda g, s: 0.3 * g.normal(size=s) + np.diag(4.0 * np.arange(1, s[-1] + 1))
    )


_NO_EIG = "TensorFlow's gradient of eig is of another normalization of the vectors"

LINALG: Table = {
    **each("adjoint matrix_transpose", call(F(B, 2, 3)).of(BOTH)),
    "band_part": (call(F(B, 4, 3), 1, 0).of(BOTH + " int32"), call(F(B, 4, 4), 0, -1), call(F(4, 5), -1, 1), call(F(B, 4, 4), -1, 0)),
    "banded_triangular_solve": (
        call(V(np.array([[2.0, 3, 2, 4], [1, 0.5, 1, 0]])), F(4, 2)),
        call(V(np.array([[0.0, 0.5, 1, 1], [2, 3, 2, 4]])), F(4, 2), lower=False),
        call(V(np.array([[2.0, 3, 2, 4], [1, 0.5, 1, 0]])), F(4, 2), adjoint=True),
    ),
    "cholesky": (call(SPD(B, 3, 3)).of(BOTH).near(3),),
    "cholesky_solve": (call(TRI(B, 3, 3), F(B, 3, 2)).of("float32 float64 complex64"),),
    "cross": (call(F(B, 3), F(B, 3)),),
    "det": (call(WELL(B, 3, 3)).of(BOTH).near(3), call(V([[1.0, 2], [2, 4]])).but(gradient="singular")),
    "logdet": (call(SPD(B, 3, 3)).near(3),),
    "slogdet": (call(F(B, 3, 3)).of(BOTH).near(3),),
    "diag": (call(F(B, 3)).of(BOTH + " int32"), call(F(B, 2, 3), k=(-1, 0)), call(F(B, 3), k=1, num_rows=4, num_cols=4, padding_value=9.0), call(F(B, 2, 3), k=(0, 1), align="LEFT_LEFT")),
    "diag_part": (call(F(B, 3, 4)).of(BOTH), call(F(B, 3, 4), k=(-1, 1), padding_value=7.0), call(F(B, 4, 3), k=-2), call(F(B, 4, 4), k=(-2, 0), align="LEFT_RIGHT")),
    "set_diag": (call(F(B, 3, 4), F(B, 3)).of(BOTH), call(F(B, 4, 4), F(B, 2, 3), k=(-2, -1)).closed(), call(F(B, 4, 4), F(B, 2, 4), k=(0, 1), align="LEFT_RIGHT").closed()),
    "tensor_diag": (call(F(3)).of(BOTH), call(F(2, 3)), call(F(B))),
    "tensor_diag_part": (call(F(3, 3)).of(BOTH), call(F(2, 3, 2, 3))),
    "trace": (call(F(B, 3, 4)).of(BOTH + " int32"),),
    "eye": (of(lambda x: x * L.eye(3, 4, batch_shape=[2], dtype=x.dtype), F()), of(lambda x: L.eye(tf.shape(x)[0]), F(B, 2))),
    "eig": (of(_signless("eig"), _spread(2, 3, 3)).but(gradient=_NO_EIG, vmap="").near(3),),
    "eigvals": (of(lambda x: tf.sort(tf.math.real(L.eigvals(x))), _spread(2, 3, 3)).but(gradient=_NO_EIG).near(3),),
    "eigh": (of(_signless("eigh"), _symmetric(B, 3, 3)).near(10),),
    "eigvalsh": (call(_symmetric(B, 3, 3)).near(10),),
    "eigh_tridiagonal": (call(F(5), F(4)).near(3), call(F(5), F(4), select="i", select_range=(1, 2)).near(3)),
    "einsum": "tested with random equations",
    "matmul": (
        call(F(B, 2, 3), F(B, 3, 4)).of(BOTH + " int32"), call(F(B, 3, 2), F(3, 4), transpose_a=True), call(F(2, 3), F(4, 3), transpose_b=True),
        call(F(B, 3, 2), F(B, 4, 3), adjoint_a=True, adjoint_b=True).of("complex64 float32"), call(F(2, 1, 2, 3), F(4, 3, 2)),
        call(F(2, 3), F(3, 4), a_is_sparse=True).of("float32"), call(F(2, 3, dtype="int32"), F(3, 4, dtype="int32"), output_type=tf.int32).of("int32"),
    ),
    "matvec": (call(F(B, 2, 3), F(B, 3)).of(BOTH), call(F(B, 3, 2), F(B, 3), transpose_a=True)),
    "expm": (call(F(B, 3, 3)).near(10), call(U(-9, 9, 2, 2)).near(30), call(V([[0.0, 0], [0, 0]])), call(V([[float("inf"), 1], [1, 2]]))),
    "logm": (call(SPD(B, 3, 3)).of("complex64 complex128").near(10),),
    "sqrtm": (call(SPD(B, 3, 3)).of("float32 float64 complex64").near(10),),
    "global_norm": (call([F(B, 3), F(2)]), call([F(3), None])),
    "inv": (call(WELL(B, 3, 3)).of(BOTH).near(3), call(WELL(3, 3), adjoint=True)),
    "pinv": (call(F(B, 4, 3)).near(10), call(F(B, 2, 3), rcond=0.1).near(10)),
    "lstsq": (
        call(F(B, 4, 3), F(B, 4, 2)).near(10), call(F(B, 3, 4), F(B, 3, 2), l2_regularizer=0.3).near(10),
        call(F(4, 3), F(4, 2), fast=False).near(10).but(gradient="TensorFlow has none"),
    ),
    "lu": (call(WELL(B, 3, 3)).of(BOTH), call(F(3, 3), output_idx_type=tf.int64)),
    "lu_matrix_inverse": (of(lambda x: L.lu_matrix_inverse(*L.lu(x)), WELL(B, 3, 3)),),
    "lu_reconstruct": (of(lambda x: L.lu_reconstruct(*L.lu(x)), F(B, 3, 3)),),
    "lu_solve": (of(lambda x, y: L.lu_solve(*L.lu(x), y), WELL(B, 3, 3), F(B, 3, 2)),),
    "matrix_rank": (call(F(B, 4, 3)), call(V([[1.0, 2], [2, 4]])), call(F(B, 3, 3), tol=0.5)),
    "norm": (
        call(F(B, 3)), call(F(B, 3, 2), axis=[1, 2]).of(BOTH), call(F(B, 3), ord=1, axis=1), call(F(B, 3), ord=np.inf, axis=1, keepdims=True),
        call(F(B, 3, 3), ord="fro", axis=[-2, -1]), call(F(B, 3), ord=3, axis=0),
        call(F(B, 3, 3), ord=1, axis=(1, 2)), call(F(B, 3, 4), ord=2, axis=(1, 2)).near(3), call(F(B, 3, 3), ord=2, axis=[-2, -1], keepdims=True).near(3), call(V([[0.0, 0.0], [1.0, 2.0]]), axis=1),
    ),
    "normalize": (call(F(B, 3), axis=1), call(F(B, 3), ord=1, axis=0), call(F(B, 3))),
    "qr": (of(_signless("qr"), F(B, 4, 3)).of("float32 float64").near(10), of(_signless("qr", full_matrices=True), F(B, 3, 3)).near(10)),
    "svd": (
        of(_signless("svd"), F(B, 4, 3)).of("float32 float64 complex64").near(10), of(_signless("svd", full_matrices=True), F(3, 3)).near(10),
        call(F(B, 3, 4), compute_uv=False).near(10),
    ),
    "solve": (call(WELL(B, 3, 3), F(B, 3, 2)).of(BOTH).near(3), call(WELL(3, 3), F(3, 2), adjoint=True).of("float32 complex64")),
    "triangular_solve": (
        call(TRI(B, 3, 3), F(B, 3, 2)).of(BOTH), call(TRI(B, 3, 3), F(B, 3, 2), lower=False), call(TRI(3, 3), F(2, 3, 2), adjoint=True).of("float32 complex64"),
        call(WELL(3, 3), F(3, 2)),
    ),
    "tensordot": (call(F(B, 2, 3), F(3, 4), 1), call(F(2, 3, 4), F(4, 3), [[1, 2], [1, 0]]), call(F(B, 2), F(3), 0)),
    "tridiagonal_matmul": (
        call(F(B, 3, 4), F(B, 4, 2)), call(F(3, 4), F(4, 2)),
        call(F(4, 4), F(4, 2), diagonals_format="matrix"),
    ),
    "tridiagonal_solve": (
        of(lambda d, r: L.tridiagonal_solve(d + tf.constant([[0.0], [9.0], [0.0]], d.dtype), r), F(B, 3, 4), F(B, 4, 2)),
        of(lambda d, r: L.tridiagonal_solve(d + tf.constant([[0.0], [9.0], [0.0]], d.dtype), r, transpose_rhs=True), F(3, 4), F(2, 4)),
        of(lambda d, r: L.tridiagonal_solve(d + tf.constant([[0.0], [9.0], [0.0]], d.dtype), r, partial_pivoting=False), F(B, 3, 4), F(B, 4)),
        call(WELL(4, 4), F(4), diagonals_format="matrix"),
    ),
    **{f"LinearOperator{n}": "tested with the operators" for n in (
        "", "Adjoint", "BlockDiag", "BlockLowerTriangular", "Circulant", "Circulant2D", "Circulant3D", "Composition", "Diag", "FullMatrix", "Householder",
        "Identity", "Inversion", "Kronecker", "LowRankUpdate", "LowerTriangular", "Permutation", "ScaledIdentity", "Toeplitz", "Tridiag", "Zeros")},
}  # fmt: skip

EXPERIMENTAL: Table = {
    "conjugate_gradient": (
        of(lambda a, y: L.experimental.conjugate_gradient(L.LinearOperatorFullMatrix(a, is_self_adjoint=True, is_positive_definite=True), y, max_iter=5)[1:3], SPD(3, 3), F(3)).near(10),
    )
}  # fmt: skip

# Operators by the name of their class: how one is made of arguments, and the arguments.
_sa = {"is_self_adjoint": True, "is_positive_definite": True}
OPERATORS: dict[str, tuple[Callable[..., Any], tuple[Arg, ...]]] = {
    "Adjoint": (lambda a: L.LinearOperatorAdjoint(L.LinearOperatorFullMatrix(a, is_square=True)), (WELL(B, 3, 3),)),
    "BlockDiag": (lambda a, b: L.LinearOperatorBlockDiag([L.LinearOperatorFullMatrix(a), L.LinearOperatorDiag(b)]), (WELL(B, 2, 2), U(1, 2, B, 1))),
    "BlockLowerTriangular": (
        lambda a, b, c: L.LinearOperatorBlockLowerTriangular([[L.LinearOperatorFullMatrix(a)], [L.LinearOperatorFullMatrix(b), L.LinearOperatorDiag(c)]]),
        (WELL(B, 2, 2), F(B, 1, 2), U(1, 2, B, 1)),
    ),
    "Circulant": (lambda s: L.LinearOperatorCirculant(tf.cast(s, tf.complex64), is_self_adjoint=True), (V([3.0, 1.5, 1.5]),)),
    "Circulant2D": (lambda s: L.LinearOperatorCirculant2D(tf.cast(s, tf.complex64)), (U(1, 2, 3, 1),)),
    "Circulant3D": (lambda s: L.LinearOperatorCirculant3D(tf.cast(s, tf.complex64)), (U(1, 2, 3, 1, 1),)),
    "Composition": (lambda a, b: L.LinearOperatorComposition([L.LinearOperatorFullMatrix(a), L.LinearOperatorDiag(b)]), (WELL(B, 3, 3), U(1, 2, B, 3))),
    "Diag": (lambda d: L.LinearOperatorDiag(d, **_sa), (U(1, 2, B, 3),)),
    "FullMatrix": (lambda a: L.LinearOperatorFullMatrix(a, is_square=True), (WELL(B, 3, 3),)),
    "FullMatrix of positive numbers": (lambda a: L.LinearOperatorFullMatrix(a, **_sa), (SPD(B, 3, 3),)),
    "Householder": (lambda v: L.LinearOperatorHouseholder(v), (U(1, 2, B, 3),)),
    "Identity": (lambda x: L.LinearOperatorIdentity(3, dtype=x.dtype), (F(),)),
    "Inversion": (lambda a: L.LinearOperatorInversion(L.LinearOperatorFullMatrix(a, is_non_singular=True)), (WELL(B, 3, 3),)),
    "Kronecker": (lambda a, b: L.LinearOperatorKronecker([L.LinearOperatorFullMatrix(a), L.LinearOperatorDiag(b)]), (WELL(1, 1), U(1, 2, 3))),
    "LowRankUpdate": (
        lambda d, u, v: L.LinearOperatorLowRankUpdate(L.LinearOperatorDiag(d, is_positive_definite=True), u, diag_update=v, is_diag_update_positive=True),
        (U(1, 2, B, 3), F(B, 3, 2), U(1, 2, B, 2)),
    ),
    "LowerTriangular": (lambda a: L.LinearOperatorLowerTriangular(a), (TRI(B, 3, 3),)),
    "Permutation": (lambda x: L.LinearOperatorPermutation([2, 0, 1], dtype=x.dtype), (F(),)),
    "ScaledIdentity": (lambda m: L.LinearOperatorScaledIdentity(3, m, **_sa), (U(1, 2, B),)),
    "Toeplitz": (lambda c, r: L.LinearOperatorToeplitz(tf.concat([c[:1] + 9, c[1:]], 0), tf.concat([c[:1] + 9, r[1:]], 0)), (F(3), F(3))),
    "Tridiag": (lambda d: L.LinearOperatorTridiag(d + tf.constant([[0.0], [9.0], [0.0]], d.dtype), diagonals_format="compact"), (F(B, 3, 3),)),
    "Zeros": (lambda x: L.LinearOperatorZeros(3, dtype=x.dtype), (F(),)),
}  # fmt: skip

METHODS: dict[str, Callable[[Any, Any], Any]] = {
    "matmul": lambda o, x: o.matmul(x),
    "matmul, adjoint": lambda o, x: o.matmul(x, adjoint=True),
    "matvec": lambda o, x: o.matvec(x[..., 0]),
    "solve": lambda o, x: o.solve(x),
    "solve, adjoint": lambda o, x: o.solve(x, adjoint=True),
    "solvevec": lambda o, x: o.solvevec(x[..., 0]),
    "determinant": lambda o, x: o.determinant(),
    "log_abs_determinant": lambda o, x: o.log_abs_determinant(),
    "trace": lambda o, x: o.trace(),
    "to_dense": lambda o, x: o.to_dense(),
    "diag_part": lambda o, x: o.diag_part(),
    "adjoint": lambda o, x: o.adjoint().matmul(x),
    "inverse": lambda o, x: o.inverse().matmul(x),
    "add_to_tensor": lambda o, x: o.add_to_tensor(tf.ones(o.shape_tensor(), o.dtype)),
    "cond": lambda o, x: o.cond(),
    "eigvals": lambda o, x: o.eigvals(),
    "cholesky": lambda o, x: o.cholesky().to_dense(),
    "shape_tensor": lambda o, x: (o.shape_tensor(), o.batch_shape_tensor(), o.range_dimension_tensor(), o.domain_dimension_tensor(), o.tensor_rank_tensor()),
    "assert_non_singular": lambda o, x: o.assert_non_singular(),
}  # fmt: skip
_SINGULAR = ("solve", "inverse", "determinant", "log_abs", "cond", "assert")
_SYMMETRIC = frozenset(("Diag", "FullMatrix of positive numbers", "Identity", "ScaledIdentity"))


def _operator_calls(kind: str) -> list[Call]:
    make, args = OPERATORS[kind]
    calls = []
    for method, fn in METHODS.items():
        if kind == "Zeros" and method.startswith(_SINGULAR):
            continue  # it is singular
        if method in ("eigvals", "cholesky") and kind not in _SYMMETRIC:
            continue  # defined for those that are known to be self-adjoint
        if method.startswith("assert"):
            continue  # it only checks
        x = F(3, 2) if not any(B in a.shape for a in args) else F(B, 3, 2)

        def run(*values: Any, make: Any = make, fn: Any = fn) -> Any:
            operator = make(*values[:-1])
            return fn(operator, tf.cast(values[-1], operator.dtype))

        one = of(run, *args, x).near(10)
        calls.append(one.of("float32") if "Circulant" in kind else one)
    return calls


OPERATOR_CALLS: Table = {kind: _operator_calls(kind) for kind in OPERATORS}

S = tf.signal

SIGNAL: Table = {
    **each("fft ifft", call(Z(B, 6)).of("complex64 complex128"), call(Z(2, B, 5)).of("complex64")),
    **each("fft2d ifft2d", call(Z(B, 4, 6)).of("complex64 complex128")),
    **each("fft3d ifft3d", call(Z(B, 2, 4, 6)).of("complex64 complex128")),
    "rfft": (call(F(B, 6)), call(F(B, 6), [9]), call(F(B, 7), [4])),
    "irfft": (call(Z(B, 4)).of("complex64"), call(Z(B, 4), [7]).of("complex64").but(gradient="of an odd length; fails in TensorFlow")),
    "rfft2d": (call(F(B, 4, 6)), call(F(B, 4, 6), [6, 4])),
    "irfft2d": (call(Z(B, 4, 4)).of("complex64"), call(Z(B, 4, 4), [4, 4]).of("complex64")),
    "rfft3d": (call(F(B, 2, 4, 6)).but(gradient="TensorFlow has none"),),
    "irfft3d": (call(Z(B, 2, 4, 4)).of("complex64").but(gradient="TensorFlow has none"),),
    **left_out("TensorFlow has no kernel for the CPU; tested with the ops", "fftnd ifftnd rfftnd irfftnd"),
    **each("fftshift ifftshift", call(F(B, 5)), call(Z(B, 4, 5), axes=[-1]).of("complex64"), call(F(B, 4, 3), axes=(1, 2))),
    **each("dct idct", *[call(F(B, 8), type=t, norm=n) for t, n in ((1, None), (2, None), (2, "ortho"), (3, None), (3, "ortho"), (4, None), (4, "ortho"))]),
    "dct": (*[call(F(B, 8), type=t, norm=n).near(3) for t, n in ((1, None), (2, None), (2, "ortho"), (3, None), (3, "ortho"), (4, None), (4, "ortho"))], call(F(B, 8), n=5), call(F(B, 8), n=12, type=2)),
    "mdct": (call(F(B, 24), 8), call(F(B, 24), 8, norm="ortho", pad_end=True), call(F(B, 24), 8, window_fn=None)),
    "inverse_mdct": (call(F(B, 3, 4)), call(F(B, 3, 4), norm="ortho")),
    "stft": (call(F(B, 24), 8, 4), call(F(B, 24), 10, 3, fft_length=16, window_fn=None, pad_end=True), call(F(B, 24), 8, 4, window_fn=S.hamming_window)),
    "inverse_stft": (call(Z(B, 5, 5), 8, 4).of("complex64"), call(Z(B, 5, 5), 8, 4, window_fn=S.inverse_stft_window_fn(4)).of("complex64")),
    "inverse_stft_window_fn": (of(lambda x: x * S.inverse_stft_window_fn(2)(8, x.dtype), F(8)),),
    "frame": (call(F(B, 11), 4, 3), call(F(B, 11), 4, 3, pad_end=True, pad_value=1.5), call(F(B, 9, 2), 4, 2, axis=1), call(F(B, 11), 4, 2).of("int32")),
    "overlap_and_add": (call(F(B, 4, 6), 2).of("float32 float64 int32"), call(F(B, 4, 6), 4), call(F(B, 4, 6), 7)),
    "linear_to_mel_weight_matrix": (of(lambda x: tf.matmul(x, S.linear_to_mel_weight_matrix(4, 9, 8000, 125.0, 3800.0, x.dtype)), F(B, 9)),),
    "mfccs_from_log_mel_spectrograms": (call(F(B, 4)),),
    **{
        f"{n}_window": tuple(of(lambda x, n=n, k=k: x * getattr(S, f"{n}_window")(k, dtype=x.dtype), F(k)) for k in (8, 4))
        for n in ("hann", "hamming", "vorbis", "kaiser", "kaiser_bessel_derived")
    },
}  # fmt: skip
