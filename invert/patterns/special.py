"""Special functions that the lowering expands into polynomials and loops."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from jax import lax

from invert._rewrite import Call, Pattern, Site, bind


def _elementwise(primitive: Any, arity: int) -> Callable[[Site], Iterator[Call]]:
    """Proposes `primitive` with operands of the type of the result."""

    def propose(site: Site) -> Iterator[Call]:
        yield bind(primitive, *[site.out] * arity)

    return propose


# name -> (primitive, number of operands, primitives that give its result, a number it contains)
_TABLE = {
    "erf_inv": (lax.erf_inv_p, 1, ("select_n", "convert_element_type"), 1.50140941),
}

PATTERNS = tuple(
    Pattern(name, roots, _elementwise(primitive, arity), marker)
    for name, (primitive, arity, roots, marker) in _TABLE.items()
)
