"""Custom calls as older JAX releases wrote them, with their operands, options and status."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import jax
import jax.extend
import numpy as np
import pytest

import invert
from invert.patterns import dated

_NAMES = {"float32": "f32", "float64": "f64", "complex64": "complex<f32>", "int32": "i32"}


def _type(shape: Sequence[int], dtype: str) -> str:
    return f"tensor<{''.join(f'{n}x' for n in shape)}{_NAMES.get(dtype, dtype)}>"


def _module(
    target: str,
    options: Sequence[int | tuple[float, str]],
    arrays: Sequence[np.ndarray],
    results: Sequence[str],
    kept: Sequence[int],
    config: bytes | str | None = None,
    tail: str = "",
) -> str:
    """A module of one custom call that returns the results at `kept`.

    `tail` may define values `%r0`, `%r1`, ... from the results `%0#0`, ...; these are then returned
    instead.
    """
    lines, operands, types = [], [], []
    for i, option in enumerate(options):
        value, kind = option if isinstance(option, tuple) else (option, "i32")
        lines.append(f"%o{i} = stablehlo.constant dense<{value}> : tensor<{kind}>")
        operands.append(f"%o{i}")
        types.append(f"tensor<{kind}>")
    arguments = [f"%a{i}: {_type(a.shape, str(a.dtype))}" for i, a in enumerate(arrays)]
    operands += [f"%a{i}" for i in range(len(arrays))]
    types += [_type(a.shape, str(a.dtype)) for a in arrays]
    attributes = ""
    if isinstance(config, bytes):
        packed = "".join(f"\\{b:02X}" for b in config)
        attributes = f'{{api_version = 2 : i32, backend_config = "{packed}"}}'
    elif config:
        attributes = f"{{{config}}}"
    several = f":{len(results)}" if len(results) > 1 else ""
    one = "" if len(results) > 1 else None
    lines.append(
        f"%0{several} = stablehlo.custom_call @{target}({', '.join(operands)}) {attributes} : "
        f"({', '.join(types)}) -> {'(' if one is not None else ''}{', '.join(results)}"
        f"{')' if one is not None else ''}"
    )
    lines += tail.splitlines()
    outs = [results[i] for i in kept]
    names = [f"%r{i}" if f"%r{i} =" in tail else f"%0#{i}" if several else "%0" for i in kept]
    lines.append(f"return {', '.join(names)} : {', '.join(outs)}")
    body = "\n    ".join(lines)
    return (
        f"module @m {{\n  func.func public @main({', '.join(arguments)}) -> ({', '.join(outs)}) "
        f"{{\n    {body}\n  }}\n}}"
    )


def _recover(text: str, *arrays: np.ndarray) -> tuple[Any, list[np.ndarray]]:
    module = invert.from_stablehlo(text, config=invert.Config(verify=False))
    with jax.enable_x64(True):
        values = [np.asarray(x) for x in jax.tree_util.tree_leaves(module(*arrays))]
    return module, values


_RNG = np.random.default_rng(0)
_A = _RNG.standard_normal((4, 4)).astype(np.float32)
_SPD = (_A @ _A.T + 4 * np.eye(4)).astype(np.float32)
_TALL = _RNG.standard_normal((5, 3)).astype(np.float32)
_C = (_A + 1j * _A.T).astype(np.complex64)
_M, _V, _I = "tensor<4x4xf32>", "tensor<4xf32>", "tensor<i32>"
_W = "tensor<64xf32>"
_MC, _VC = "tensor<4x4xcomplex<f32>>", "tensor<4xcomplex<f32>>"
_TRI = ["tensor<3xf32>"] * 2
_RIGHT = "left = false, right = true"


def _packed(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}i", *numbers)


# Target, options, arrays, types of the results, positions of those returned, config, primitive.
_CALLS = [
    ("lapack_spotrf", (1, 1, 4), (_SPD,), (_M, _I), (0,), None, "cholesky"),
    ("lapack_sgetrf", (1, 4, 4), (_A,), (_M, "tensor<4xi32>", _I), (0, 1), None, "lu"),
    ("lapack_sgeqrf", (1, 4, 4, 64), (_A,), (_M, _V, _I, _W), (0, 1), None, "geqrf"),
    (
        "lapack_sorgqr",
        (1, 4, 4, 4, 64),
        (_A, _A[0]),
        (_M, _I, _W),
        (0,),
        None,
        "householder_product",
    ),
    ("lapack_ssyevd", (1, 1, 4), (_SPD,), (_M, _V, _I, _W, "tensor<9xi32>"), (1,), None, "eigh"),
    ("lapack_ssyevd", (0, 1, 4), (_A,), (_M, _V, _I, _W, "tensor<9xi32>"), (1,), None, "eigh"),
    (
        "lapack_sgesdd",
        (0, 1, 1, 5, 3, 64),
        (_TALL,),
        ("tensor<5x3xf32>", "tensor<3xf32>", "tensor<5x3xf32>", "tensor<3x3xf32>", _I, _W),
        (1, 2, 3),
        None,
        "svd",
    ),
    (
        "lapack_sgeev",
        (1, 4, (86, "ui8"), (78, "ui8")),
        (_A,),
        (_M, _M, _M, _V, _V, _MC, _MC, _I),
        (3, 4),
        None,
        "eig",
    ),
    (
        "lapack_cgeev",
        (1, 4, (78, "ui8"), (78, "ui8")),
        (_C,),
        (_MC, "tensor<8xf32>", _VC, _MC, _MC, _I),
        (2,),
        None,
        "eig",
    ),
    # The routine for GPUs depends on the libraries of the machine that exports.
    *(
        (target, (), (_A,), results, kept, f"mhlo.backend_config = {{{options}}}", "eig")
        for target, results, kept, options in (
            ("cuhybrid_eig_real", (_V, _V, _MC, _MC, _I), (0, 1), 'magma = "auto", ' + _RIGHT),
            ("cusolver_geev_ffi", (_M, _VC, _M, _M, _I), (1,), _RIGHT),
        )
    ),
    (
        "lapack_sgees",
        (1, 4, (86, "ui8"), (78, "ui8")),
        (_A,),
        (_M, _V, _V, _M, _I, _I),
        (0, 3),
        None,
        "schur",
    ),
    (
        "lapack_sgehrd",
        (4, 1, 4, 4, 1, 64),
        (_A,),
        (_M, "tensor<3xf32>", _I, _W),
        (0, 1),
        None,
        "hessenberg",
    ),
    (
        "lapack_ssytrd",
        (4, 1, 4, 1, 64),
        (_SPD,),
        (_M, _V, *_TRI, _I, _W),
        (0, 1, 2, 3),
        None,
        "tridiagonal",
    ),
    (
        "blas_strsm",
        (1, 1, 0, 0, 4, 4, 1, (1.0, "f32")),
        (_SPD, _A),
        (_M,),
        (0,),
        None,
        "triangular_solve",
    ),
    ("cusolver_getrf", (), (_A,), (_M, "tensor<4xi32>", _I, _W), (0, 1), b"", "lu"),
    ("hipblas_geqrf_batched", (), (_A,), (_M, _V, _W, _W), (0, 1), b"", "geqrf"),
    ("cusolver_syevj", (), (_A,), (_M, _V, _I, _W), (1,), _packed(0, 1, 1, 4, 64), "eigh"),
    ("hipsolver_syevd", (), (_A,), (_M, _V, _I, _W), (1,), _packed(0, 122, 1, 4, 64), "eigh"),
    (
        "cusolver_gesvdj",
        (),
        (_A,),
        (_M, _V, _M, _M, _I, _W),
        (1, 2, 3),
        _packed(0, 1, 4, 4, 64, 1, 0),
        "svd",
    ),
    ("LuDecomposition", (), (_A,), (_M, "tensor<4xi32>", "tensor<4xi32>"), (0, 1, 2), None, "lu"),
    ("Eigh", (), (_A,), (_M, _V), (1,), 'backend_config = "1,1,15,0.000010"', "eigh"),
]


def _expected(case: tuple[Any, ...]) -> list[np.ndarray]:
    """The results of a routine, by functions of another library or of JAX."""
    target, options, arrays, _, _, config, primitive = case
    a = arrays[0]
    solve = jax.lax.linalg
    if primitive == "cholesky":
        return [np.tril(np.linalg.cholesky(a)) + np.triu(a, 1)]
    if primitive == "lu":
        lu, pivots, permutation = map(np.asarray, solve.lu(a))
        return [lu, pivots, permutation] if target == "LuDecomposition" else [lu, pivots + 1]
    if primitive == "eigh":
        lower = options[0] == 1 if options else config is None or config != _packed(0, 1, 1, 4, 64)
        return [np.linalg.eigvalsh(a, UPLO="L" if lower else "U")]
    if primitive == "svd":
        u, s, vh = np.linalg.svd(a, full_matrices=False)
        return [s, np.abs(u), np.abs(vh.T if target == "cusolver_gesvdj" else vh)]
    if primitive == "eig":
        w = np.asarray(jax.numpy.linalg.eigvals(a))
        return [w] if a.dtype.kind == "c" or case[0].startswith("cusolver") else [w.real, w.imag]
    if primitive == "triangular_solve":
        return [np.linalg.solve(np.tril(a), arrays[1])]
    if primitive == "schur":
        t, v = map(np.asarray, solve.schur(a))
        return [t, v]
    if primitive == "geqrf":
        packed, taus = map(np.asarray, np.linalg.qr(a, mode="raw"))
        return [packed.T, taus]
    if primitive == "hessenberg":
        return [np.asarray(x) for x in solve.hessenberg(a)]
    if primitive == "householder_product":
        return [np.asarray(solve.householder_product(*arrays))]
    assert primitive == "tridiagonal"
    return [np.asarray(x) for x in solve.tridiagonal(a)]


@pytest.mark.parametrize("case", _CALLS, ids=lambda c: f"{c[0]}-{len(c[1])}-{c[1][:1]}")
def test_old_calls(case: tuple[Any, ...]) -> None:
    target, options, arrays, results, kept, config, primitive = case
    module, got = _recover(_module(target, options, arrays, results, kept, config), *arrays)
    assert not module.report.opaque
    assert primitive in module.report.primitives, module.report.primitives
    if primitive == "svd":
        got = [got[0], *(np.abs(x) for x in got[1:])]
    for g, w in zip(got, _expected(case), strict=True):
        np.testing.assert_allclose(g, w, rtol=2e-4, atol=2e-4)


def test_eigenvectors_of_cusolver() -> None:
    """Those of a real matrix are real: a pair holds real and imaginary parts."""
    kinds = (_M, _VC, _M, _M, _I)
    config = f"mhlo.backend_config = {{{_RIGHT}}}"
    text = _module("cusolver_geev_ffi", (), (_A,), kinds, (1, 3), config)
    w, packed = _recover(text, _A)[1]
    assert np.any(w.imag > 0) and np.any(w.imag == 0)
    vectors = packed.astype(np.complex64)
    for j in np.flatnonzero(w.imag > 0):
        assert w[j] == np.conj(w[j + 1])
        vectors[:, j] = packed[:, j] + 1j * packed[:, j + 1]
        vectors[:, j + 1] = np.conj(vectors[:, j])
    np.testing.assert_allclose(_A @ vectors, vectors * w, atol=1e-5)
    # The other vectors were not computed.
    text = _module("cusolver_geev_ffi", (), (_A,), kinds, (2,), 'mhlo.backend_config = "other"')
    assert invert.from_stablehlo(text).report.opaque == {"cusolver_geev_ffi": 1}


_LOWERED = """%zero = stablehlo.constant dense<0> : tensor<i32>
%ok = stablehlo.compare EQ, %0#1, %zero, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
%p = stablehlo.broadcast_in_dim %ok, dims = [] : (tensor<i1>) -> tensor<1x1xi1>
%nan = stablehlo.constant dense<0x7FC00000> : tensor<f32>
%bad = stablehlo.broadcast_in_dim %nan, dims = [] : (tensor<f32>) -> tensor<4x4xf32>
%q = stablehlo.broadcast_in_dim %p, dims = [0, 1] : (tensor<1x1xi1>) -> tensor<4x4xi1>
%r0 = stablehlo.select %q, %0#0, %bad : tensor<4x4xi1>, tensor<4x4xf32>"""
_POTRF = ("lapack_spotrf", (1, 1, 4), (_SPD,), (_M, _I), (0,))


def test_guard_goes_with_the_call() -> None:
    module, got = _recover(_module(*_POTRF, tail=_LOWERED), _SPD)
    assert set(module.report.primitives) == {"cholesky"}
    assert module.report.rewrites["dated_linalg_guarded"] == 1
    np.testing.assert_allclose(
        got[0], _expected((*_POTRF, None, "cholesky"))[0], rtol=1e-5, atol=1e-6
    )
    assert np.isnan(np.asarray(module(-_SPD))).any()


@pytest.mark.parametrize(
    "old, new",
    [
        ("0x7FC00000", "1.0"),
        ("compare EQ", "compare NE"),
        ("%q, %0#0, %bad", "%q, %bad, %0#0"),
        ("%zero = stablehlo.constant dense<0>", "%zero = stablehlo.constant dense<1>"),
    ],
)
def test_other_guards_stay(old: str, new: str) -> None:
    assert old in _LOWERED
    module, got = _recover(_module(*_POTRF, tail=_LOWERED.replace(old, new)), _SPD)
    assert "dated_linalg_guarded" not in module.report.rewrites
    assert module.report.rewrites["dated_linalg"] == 1
    # The status is success, which is 0.
    factor = _expected((*_POTRF, None, "cholesky"))[0]
    fails = old != "0x7FC00000"
    want = np.full_like(factor, np.nan) if fails else factor
    np.testing.assert_allclose(got[0], want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "case",
    [
        ("lapack_spotrf", (0, 1, 4), (_SPD,), (_M, _I), (0,)),  # the upper triangle
        ("lapack_spotrf", (1, 1, 4), (_SPD,), (_M, _I), (0, 1)),  # the status comes out
        ("lapack_sgeqrf", (1, 4, 4, 64), (_A,), (_M, _V, _I, _W), (0, 3)),  # work space comes out
        ("lapack_sgehrd", (4, 2, 4, 4, 1, 64), (_A,), (_M, _TRI[0], _I, _W), (0, 1)),  # a part
        ("lapack_sgees", (1, 4, (86, "ui8"), (83, "ui8")), (_A,), (_M, _V, _V, _M, _I, _I), (0,)),
        ("lapack_ssyevd", (7, 1, 4), (_SPD,), (_M, _V, _I, _W, "tensor<9xi32>"), (1,)),
        ("blas_strsm", (1, 1, 0, 0, 4, 4, 1, (2.0, "f32")), (_SPD, _A), (_M,), (0,)),
        ("cusolver_syevj", (), (_A,), (_M, _V, _I, _W), (1,), _packed(0, 5, 1, 4, 64)),
        ("Eigh", (), (_A,), (_M, _V), (1,), 'backend_config = "other"'),
        ("my_potrf", (1, 1, 4), (_SPD,), (_M, _I), (0,)),
    ],
    ids=lambda c: c[0],
)
def test_calls_without_a_primitive_stay(case: tuple[Any, ...]) -> None:
    module = invert.from_stablehlo(_module(*case), config=invert.Config(verify=False))
    assert module.report.opaque == {case[0]: 1}


_WORDS = np.arange(6, dtype=np.uint32).reshape(2, 3)


@pytest.mark.parametrize("target", ["cu_threefry2x32", "hip_threefry2x32_ffi"])
@pytest.mark.parametrize("shared", [False, True])
def test_threefry_of_gpus(target: str, shared: bool) -> None:
    kind, key = "tensor<2x3xui32>", "tensor<ui32>"
    text = f"""module @m {{
  func.func public @main(%k: {key}, %l: {key}, %x: {kind}) -> ({kind}, {kind}) {{
    %b = stablehlo.broadcast_in_dim %k, dims = [] : ({key}) -> {kind}
    %c = stablehlo.broadcast_in_dim %l, dims = [] : ({key}) -> {kind}
    %0:2 = stablehlo.custom_call @{target}(%b, %{"b" if shared else "c"}, %x, %x)
      : ({kind}, {kind}, {kind}, {kind}) -> ({kind}, {kind})
    return %0#0, %0#1 : {kind}, {kind}
  }}
}}"""
    key = np.array([7, 7 if shared else 8], np.uint32)
    module, got = _recover(text, *key, _WORDS)
    # One broadcast that serves both words of the key has to stay.
    assert set(module.report.primitives) == {"threefry2x32", *["broadcast_in_dim"] * shared}
    flat = np.concatenate([_WORDS.reshape(-1)] * 2)
    want = jax.extend.random.threefry_2x32(key, flat)
    np.testing.assert_array_equal(np.concatenate([g.reshape(-1) for g in got]), want)


@pytest.mark.parametrize("platform", ["cuda", "rocm", "tpu"])
def test_random_numbers_of_accelerators(platform: str) -> None:
    def f(key: jax.Array) -> Any:
        return jax.random.uniform(key, (3,)), jax.random.split(key)

    key = np.array([1, 2], np.uint32)
    exported = jax.export.export(jax.jit(f), platforms=[platform])(key)
    module = invert.from_exported(exported)
    assert str(module.report.certificate) == "exact"
    assert {"random_bits", "random_split"} <= set(module.report.primitives)


def _singular_values(a: jax.Array) -> Any:
    return jax.lax.linalg.svd(a, compute_uv=False)


@pytest.mark.parametrize(
    "f, shape, primitive",
    [
        (jax.lax.linalg.cholesky, (3, 3), "cholesky"),
        (jax.lax.linalg.svd, (5, 3), "svd"),
        (jax.lax.linalg.svd, (3, 3), "svd"),
        (_singular_values, (3, 3), "svd"),
        (jax.lax.linalg.lu, (3, 3), "lu"),
        (jax.lax.linalg.qr, (5, 3), "qr"),
    ],
)
def test_linear_algebra_of_tpus(f: Any, shape: tuple[int, ...], primitive: str) -> None:
    a = np.ones(shape, np.float32)
    module = invert.from_exported(jax.export.export(jax.jit(f), platforms=["tpu"])(a))
    assert str(module.report.certificate) == "exact"
    assert module.report.primitives[primitive] == 1
    assert "while" not in module.report.primitives


_TOP_K = """module @m {{
  func.func private @above(%a: tensor<f32>, %b: tensor<f32>, %i: tensor<i32>, %j: tensor<i32>)
      -> tensor<i1> {{
    %0 = stablehlo.compare {comparison}, %a, %b, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    return %0 : tensor<i1>
  }}
  func.func public @main(%x: tensor<7xf32>) -> (tensor<3xf32>, tensor<3xi32>) {{
    {positions}
    %low = stablehlo.constant dense<{start}> : tensor<f32>
    %none = stablehlo.constant dense<-1> : tensor<i32>
    %0:2 = stablehlo.custom_call @ApproxTopK(%x, %i, %low, %none) {{
      called_computations = [@above], mhlo.backend_config = {{aggregate_to_topk = true,
      recall_target = 0.949999988 : f32, reduction_dim = 0 : i64,
      reduction_input_size_override = -1 : i64, top_k = 3 : i64}}}}
      : (tensor<7xf32>, tensor<7xi32>, tensor<f32>, tensor<i32>) -> (tensor<3xf32>, tensor<3xi32>)
    return %0#0, %0#1 : tensor<3xf32>, tensor<3xi32>
  }}
}}"""
_IOTA = "%i = stablehlo.iota dim = 0 : tensor<7xi32>"


@pytest.mark.parametrize("comparison, sign", [("GT", 1), ("LT", -1)])
def test_approximate_top_k(comparison: str, sign: int) -> None:
    x = np.array([3, 1, 4, 1.5, 9, 2, 6], np.float32)
    start = "0xFF800000" if comparison == "GT" else "0x7F800000"
    text = _TOP_K.format(comparison=comparison, positions=_IOTA, start=start)
    module, (values, where) = _recover(text, x)
    assert not module.report.opaque
    np.testing.assert_array_equal(values, sign * np.sort(-sign * x)[:3] * -1)
    np.testing.assert_array_equal(x[where], values)


@pytest.mark.parametrize(
    "comparison, positions, start",
    [
        ("GE", _IOTA, "0xFF800000"),
        ("GT", "%i = stablehlo.constant dense<5> : tensor<7xi32>", "0xFF800000"),
        ("GT", _IOTA, "0.0"),
    ],
)
def test_other_top_k_stays(comparison: str, positions: str, start: str) -> None:
    text = _TOP_K.format(comparison=comparison, positions=positions, start=start)
    module = invert.from_stablehlo(text, config=invert.Config(verify=False))
    assert module.report.opaque == {"ApproxTopK": 1}


def test_a_bug_in_a_routine_is_not_a_near_miss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dated, "_values", lambda: None)  # called with arguments by the pattern
    with pytest.warns(invert.DefectWarning, match=r"TypeError in invert\.patterns\.dated"):
        invert.from_stablehlo(_module(*_POTRF))
