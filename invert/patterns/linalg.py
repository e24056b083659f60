"""Linear algebra: custom calls of LAPACK, cuSOLVER and their kin.

The lowering of a decomposition is a custom call and a few equations around it (a `NaN` where the
routine failed, pivots counted from 0, the upper triangle of a factor). The custom call is the
root; its target and attributes give the parameters of the primitive.

Lowerings: jax/_src/lax/linalg.py, jax 0.10.2 and 0.12.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
from jax.lax import linalg

from invert import _compat
from invert._rewrite import Call, Pattern, Site, bind

# Names of the attributes that hold the parameters of a routine: FFI calls, and those before them.
_CONFIGS = ("mhlo.backend_config", "backend_config")


def attributes(eqn: Any) -> Mapping[str, Any]:
    """The parameters a custom call passes to its routine: `{uplo = 76 : ui8}` -> `{"uplo": "L"}`.

    LAPACK takes its options as the numbers of characters.
    """
    texts = dict(eqn.params["attributes"])
    text = next((texts[name] for name in _CONFIGS if name in texts), "")
    found = re.findall(r"(\w+) = (?:(\d+) : ui8|(-?\d+) : \w+|(true|false))", text)
    return {
        name: chr(int(char)) if char else int(number) if number else flag == "true"
        for name, char, number, flag in found
    }


def _operands(site: Site) -> list[jax.ShapeDtypeStruct]:
    return [site.aval(a) for a in site.eqn.invars]


def _is_complex(aval: jax.ShapeDtypeStruct) -> bool:
    return aval.dtype.kind == "c"


def _cholesky(site: Site) -> Iterator[Call]:
    yield bind(linalg.cholesky_p, *_operands(site))


def _eig(site: Site) -> Iterator[Call]:
    a = attributes(site.eqn)
    left = a.get("compute_left", a.get("left")) in ("V", True)
    right = a.get("compute_right", a.get("right")) in ("V", True)
    # The lowering does not say whether the author vouched for the derivatives of eigenvectors.
    # They are those of simple eigenvalues, as they are for eigh and svd.
    yield bind(
        linalg.eig_p,
        *_operands(site),
        compute_left_eigenvectors=left,
        compute_right_eigenvectors=right,
        enable_eigvec_derivs=True,
        implementation=None,
    )


def _eigh(site: Site) -> Iterator[Call]:
    a = attributes(site.eqn)
    implementations = linalg.EighImplementation
    algorithm = {1: implementations.QR, 2: implementations.JACOBI}.get(_code(a, "algorithm"))
    yield bind(
        linalg.eigh_p,
        *_operands(site),
        lower=a.get("uplo", "L") == "L" and a.get("lower", True),
        sort_eigenvalues=True,
        subset_by_index=None,
        algorithm=algorithm,
    )


def _code(found: Mapping[str, Any], name: str) -> int:
    """An option that is a number, not the number of a character."""
    value = found.get(name, 0)
    return ord(value) if isinstance(value, str) else int(value)


def _qr(site: Site) -> Iterator[Call]:
    """`geqrf` or `geqp3`, the triangle, the product of the reflectors -> `qr`."""
    pivoting = kernel_of(site.eqn) == "geqp3"
    if not pivoting and kernel_of(site.eqn) != "geqrf":
        return
    a = _operands(site)[0]
    for full in (False, True) if a.shape[-2] >= a.shape[-1] else (False,):
        yield bind(linalg.qr_p, a, pivoting=pivoting, full_matrices=full, use_magma=None)


def _geqrf(site: Site) -> Iterator[Call]:
    yield bind(_compat.geqrf_p, *_operands(site))


def _geqp3(site: Site) -> Iterator[Call]:
    yield bind(_compat.geqp3_p, *_operands(site), use_magma=None)


def _householder_product(site: Site) -> Iterator[Call]:
    yield bind(linalg.householder_product_p, *_operands(site))


def _ormqr(site: Site) -> Iterator[Call]:
    a = attributes(site.eqn)
    yield bind(
        linalg.ormqr_p,
        *_operands(site),
        left=a.get("left", True),
        transpose=a.get("transpose", False),
    )


def _lu(site: Site) -> Iterator[Call]:
    yield bind(linalg.lu_p, *_operands(site))


def _pivots(site: Site) -> Iterator[Call]:
    """`lu_pivots_to_permutation` where it is one custom call."""
    size = site.out.shape[-1]
    yield bind(linalg.lu_pivots_to_permutation_p, *_operands(site), permutation_size=size)


def _pivots_loop(site: Site) -> Iterator[Call]:
    """`while { swap(permutation, i, pivots[i]) }` from the identity."""
    eqn = site.eqn
    shape = eqn.outvars[-1].aval.shape
    for atom in eqn.invars[: eqn.params["body_nconsts"] + eqn.params["cond_nconsts"]]:
        aval = site.aval(atom)
        if str(aval.dtype) == "int32" and aval.shape[:-1] == shape[:-1] and aval.shape and shape:
            yield bind(linalg.lu_pivots_to_permutation_p, aval, permutation_size=shape[-1])


def _schur(site: Site) -> Iterator[Call]:
    yield bind(
        linalg.schur_p,
        *_operands(site),
        compute_schur_vectors=attributes(site.eqn).get("mode") == "V",
        sort_eig_vals=False,
        select_callable=None,
    )


def _svd(algorithm: str | None) -> Callable[[Site], Iterator[Call]]:
    def propose(site: Site) -> Iterator[Call]:
        a = attributes(site.eqn)
        x, mode = site.aval(site.eqn.invars[0]), a.get("mode")
        m, n = x.shape[-2:]
        vectors = a.get("compute_uv", mode != "N")
        factors = sorted(v.aval.shape[-2:] for v in site.eqn.outvars[2:4])
        full = mode == "A" or (mode != "S" and factors == sorted([(m, m), (n, n)]))
        # Routines that know full factors only are cut to the reduced ones; and where no factor
        # is asked for, their shapes alone tell what was written.
        reduced = (False,) if mode is None and full and m != n else ()
        for full_matrices in (*reduced, full):
            yield bind(
                linalg.svd_p,
                x,
                full_matrices=full_matrices if vectors or m != n else False,
                compute_uv=vectors,
                subset_by_index=None,
                algorithm=None if algorithm is None else linalg.SvdAlgorithm[algorithm],
            )

    return propose


def _triangular_solve(site: Site) -> Iterator[Call]:
    a, b = _operands(site)
    options = attributes(site.eqn)
    side, lower = options.get("side") == "L", options.get("uplo") == "L"
    unit, trans = options.get("diag") == "U", options.get("trans_x")
    conjugates = (trans == "C",)
    if trans == "N" and _is_complex(a):  # conjugation alone is an equation before the call
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


def _tridiagonal(site: Site) -> Iterator[Call]:
    a = attributes(site.eqn)
    lower = a.get("uplo", "L") == "L" and a.get("lower", True)
    yield bind(linalg.tridiagonal_p, *_operands(site), lower=lower)


def _tridiagonal_solve(perturb: bool) -> Callable[[Site], Iterator[Call]]:
    def propose(site: Site) -> Iterator[Call]:
        yield bind(linalg.tridiagonal_solve_p, *_operands(site), perturb_singular=perturb)

    return propose


def _hessenberg(site: Site) -> Iterator[Call]:
    yield bind(linalg.hessenberg_p, *_operands(site))


# Routine, without the library's prefix and the type -> the calls it may come from.
_KERNELS: dict[str, Callable[[Site], Iterator[Call]]] = {
    "potrf": _cholesky,
    "geev": _eig,
    "syevd": _eigh,
    "heevd": _eigh,
    "geqrf": _geqrf,
    "geqp3": _geqp3,
    "orgqr": _householder_product,
    "ungqr": _householder_product,
    "ormqr": _ormqr,
    "unmqr": _ormqr,
    "getrf": _lu,
    "lu_pivots_to_permutation": _pivots,
    "gees": _schur,
    "gesdd": _svd(None),
    "gesvd": _svd("QR"),
    "trsm": _triangular_solve,
    "sytrd": _tridiagonal,
    "hetrd": _tridiagonal,
    "gtsv": _tridiagonal_solve(perturb=False),
    "tridiagonal_solve_perturbed": _tridiagonal_solve(perturb=True),
    "gehrd": _hessenberg,
}

_TARGET = re.compile(r"(?:lapack_[sdcz])?(\w+?)(?:_ffi)?")


def kernel_of(eqn: Any) -> str | None:
    """The routine of a custom call: `"potrf"` for `lapack_spotrf_ffi`; `None` for others."""
    if eqn.primitive.name != "custom_call":
        return None
    found = _TARGET.fullmatch(eqn.params["target"])
    return found[1] if found and found[1] in _KERNELS else None


def _custom_call(site: Site) -> Iterator[Call]:
    kernel = kernel_of(site.eqn)
    if kernel is not None:
        yield from _KERNELS[kernel](site)


PATTERNS = (
    # The larger first: qr holds geqrf and householder_product, lu holds the loop.
    Pattern("qr", ("custom_call",), _qr),
    Pattern("linalg", ("custom_call",), _custom_call),
    Pattern("lu_pivots_to_permutation", ("while",), _pivots_loop),
)
