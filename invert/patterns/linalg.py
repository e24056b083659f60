"""Linear algebra: custom calls of LAPACK, cuSOLVER and their kin."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import jax

from invert._rewrite import Call, Pattern, Site, bind


def _cholesky(site: Site) -> Iterator[Call]:
    yield bind(jax.lax.linalg.cholesky_p, site.aval(site.eqn.invars[0]))


_BY_TARGET: dict[str, Callable[[Site], Iterator[Call]]] = {
    f"lapack_{t}potrf_ffi": _cholesky for t in "sdcz"
}


def _custom_call(site: Site) -> Iterator[Call]:
    propose = _BY_TARGET.get(site.eqn.params["target"])
    if propose is not None:
        yield from propose(site)


PATTERNS = (Pattern("linalg", ("custom_call",), _custom_call),)
