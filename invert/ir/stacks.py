"""Stacked arrays whose new axis a reshape merges with the next one: a concatenation."""

from __future__ import annotations

from collections.abc import Sequence

from jax import lax

from invert.ir.graph import Graph, is_var
from invert.ir.passes import cleaned, in_place_of, replaced
from invert.ir.types import Atom, Eqn, Jaxpr, Var


def with_concatenations(jaxpr: Jaxpr) -> Jaxpr:
    """Write `jnp.stack([x, y], axis=-2).reshape(n, 2 * m)` as `jnp.concatenate([x, y], axis=-1)`.

    TensorFlow's rotary embeddings rotate the halves of heads this way.
    """
    graph = Graph(jaxpr)

    def joined(eqn: Eqn) -> Sequence[Eqn] | None:
        moved = eqn.primitive.name == "reshape" and len(eqn.invars) == 1
        stacked = graph.alone(eqn.invars[0], "concatenate", "stack") if moved else None
        if stacked is None:
            return None
        parts, axis = _parts(stacked, graph)
        shape = list(parts[0].aval.shape) if parts else []
        if axis >= len(shape):
            return None
        shape[axis] = len(parts) * shape[axis]
        if tuple(shape) != tuple(eqn.outvars[0].aval.shape):
            return None
        return in_place_of(eqn, parts, lambda *x: lax.concatenate(x, axis))

    return cleaned(jaxpr, replaced(jaxpr, joined))


def _parts(eqn: Eqn, graph: Graph) -> tuple[Sequence[Atom], int]:
    """The arrays that are stacked, none for other concatenations, and the new axis."""
    if eqn.primitive.name == "stack":
        return eqn.invars, eqn.params["axis"]
    axis = eqn.params["dimension"]
    parts = [_without_axis(a, axis, graph) for a in eqn.invars]
    found = [a for a in parts if a is not None]
    return found if len(found) == len(parts) else [], axis


def _without_axis(atom: Atom, axis: int, graph: Graph) -> Var | None:
    """The array to which an axis of size one was added, if it was."""
    eqn = graph.producer(atom, "broadcast_in_dim", "reshape", "expand_dims")
    if eqn is None or not is_var(eqn.invars[0]):
        return None
    old, new = eqn.invars[0].aval.shape, atom.aval.shape
    if new[axis] != 1 or tuple(old) != (*new[:axis], *new[axis + 1 :]):
        return None
    kept = tuple(i for i in range(len(new)) if i != axis)
    if eqn.primitive.name == "broadcast_in_dim" and eqn.params["broadcast_dimensions"] != kept:
        return None
    return eqn.invars[0]
