"""Lower triangles: positions of rows compared with those of columns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jax import lax

from invert.ir.graph import Graph, is_var
from invert.ir.passes import cleaned, replaced
from invert.ir.sizes import is_open
from invert.ir.types import Atom, Eqn, Jaxpr, Literal, ShapedArray, Var

_INT32 = np.dtype("int32")
_RESHAPED = ("broadcast_in_dim", "reshape")


def with_triangles(jaxpr: Jaxpr) -> Jaxpr:
    """Replace `rows[:, None] >= columns[None]` of two ranges by the equations of `jnp.tri`.

    At open sizes `jnp.tri` counts in 64 bits where these are enabled, so that the ranges stay.
    """
    graph = Graph(jaxpr)

    def triangle(eqn: Eqn) -> Sequence[Eqn] | None:
        operands = {"ge": eqn.invars, "le": eqn.invars[::-1]}.get(eqn.primitive.name, ())
        axes = [_axis(a, graph) for a in operands]
        shape = eqn.outvars[0].aval.shape
        is_square = axes == [0, 1] and len(shape) == 2 and not any(map(is_open, shape))
        return _triangle(eqn) if is_square else None

    return cleaned(jaxpr, replaced(jaxpr, triangle))


def _axis(atom: Atom, graph: Graph) -> int | None:
    """The axis along which a matrix counts from zero, if it does only that."""
    shape = atom.aval.shape if is_var(atom) else ()
    eqn = graph.producer(atom)
    if len(shape) != 2 or eqn is None:
        return None
    if eqn.primitive.name == "iota":
        return eqn.params["dimension"]
    made = graph.producer(eqn.invars[0], "iota") if eqn.primitive.name in _RESHAPED else None
    if made is None or len(made.outvars[0].aval.shape) != 1:
        return None
    if eqn.primitive.name == "broadcast_in_dim":
        return eqn.params["broadcast_dimensions"][0]
    return 0 if shape[1] == 1 else 1


def _triangle(eqn: Eqn) -> list[Eqn]:
    (out,) = eqn.outvars
    positions = ShapedArray(out.aval.shape, _INT32)
    rows, shifted, columns = Var(positions), Var(positions), Var(positions)

    def counted(v: Var, axis: int) -> Eqn:
        params = {
            "dtype": _INT32, "shape": tuple(out.aval.shape), "dimension": axis, "sharding": None,
        }  # fmt: skip
        return eqn.replace(primitive=lax.iota_p, invars=[], outvars=[v], params=params)

    zero = Literal(np.int32(0), ShapedArray((), _INT32))
    return [
        counted(rows, 0),
        eqn.replace(primitive=lax.add_p, invars=[rows, zero], outvars=[shifted], params={}),
        counted(columns, 1),
        eqn.replace(primitive=lax.ge_p, invars=[shifted, columns]),
    ]
