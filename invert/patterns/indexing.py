"""Gather and scatter modes that the lowering expands into masks and clamps."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from jax import lax

from invert.rewriting.pattern import Call, Pattern, Site, bind


def _gather_fill(site: Site) -> Iterator[Call]:
    """`select_n in_bounds fill (gather[mode=clip])` -> `gather[mode=fill]`."""
    eqn = site.eqn
    (out,) = eqn.outvars
    selects = [e for e in site.graph.users.get(out, ()) if e.primitive.name == "select_n"]
    if len(selects) != 1 or len(selects[0].invars) != 3 or selects[0].invars[2] is not out:
        return
    avals = [site.aval(a) for a in eqn.invars]
    number = site.graph.filling(selects[0].invars[1])
    for value in (None, None if number is None else np.asarray(number.val).item()):
        params = {**eqn.params, "mode": lax.GatherScatterMode.FILL_OR_DROP, "fill_value": value}
        yield bind(lax.gather_p, *avals, **params)


def _scatter_clip(site: Site) -> Iterator[Call]:
    """`scatter x (clamp 0 indices limit) updates` -> `scatter[mode=clip]`."""
    eqn = site.eqn
    if (clamp := site.producer(eqn.invars[1], "clamp", "min")) is None:
        return
    x, _, updates = (site.aval(a) for a in eqn.invars)
    params = {**eqn.params, "mode": lax.GatherScatterMode.CLIP}
    indices = clamp.invars[1] if clamp.primitive.name == "clamp" else clamp.invars[0]
    yield bind(eqn.primitive, x, site.aval(indices), updates, **params)


_SCATTERS = ("scatter", "scatter-add", "scatter-sub", "scatter-mul", "scatter-min", "scatter-max")

PATTERNS = (
    Pattern("gather_fill", ("gather",), _gather_fill),
    Pattern("scatter_clip", _SCATTERS, _scatter_clip),
)
