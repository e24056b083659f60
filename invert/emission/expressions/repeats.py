"""Idioms of `jnp.repeat`: elements several times each, or as often as counts say."""

from __future__ import annotations

from collections.abc import Iterator

from invert.emission.expressions import literals
from invert.emission.expressions.proposals import Proposal, placeholder
from invert.emission.expressions.spelling import axis_of, one_axis
from invert.emission.expressions.writer import Writer
from invert.emission.python.syntax import call
from invert.ir.graph import Graph, is_var
from invert.ir.types import Eqn


def repeat(eqn: Eqn, graph: Graph, writer: Writer) -> Iterator[Proposal]:
    """`jnp.repeat(x, 2, axis=1)`: the elements along an axis several times each."""
    wide = graph.producer(eqn.invars[0], "broadcast_in_dim")
    if wide is None or not is_var(wide.invars[0]):
        return
    x, shape = wide.invars[0], wide.params["shape"]
    added = [i for i in range(len(shape)) if i not in wide.params["broadcast_dimensions"]]
    if eqn.primitive.name == "squeeze" and eqn.params["dimensions"] != (0,):
        return
    if len(added) == 1 and added[0] > 0:
        times, axis = literals.size(shape[added[0]]), axis_of(added, len(shape))
        if len(x.aval.shape) > 1:
            axis = axis_of([added[0] - 1], len(x.aval.shape))
        keywords = {} if axis is None or len(x.aval.shape) == 1 else {"axis": axis}
        before = graph.producer(x, "reshape")
        again = before and graph.producer(before.invars[0], "broadcast_in_dim")
        hint = "upsampled" if again and len(x.aval.shape) == _IMAGES else "repeated"
        yield Proposal(call("jnp.repeat", placeholder(), times, **keywords), (x,), hint)


# The rank of a batch of images.
_IMAGES = 4


def repeat_each(eqn: Eqn, graph: Graph, writer: Writer) -> Iterator[Proposal]:
    """`jnp.repeat(x, counts, total_repeat_length=9)`: each element as often as its count says."""
    x, atom = eqn.invars
    for name, operand in _STEPS_OF_REPEAT:
        if (made := graph.producer(atom, name)) is None:
            return
        atom = made.invars[operand]
    old, new = x.aval.shape, eqn.outvars[0].aval.shape
    if not is_var(x) or not is_var(atom) or len(old) != len(new):
        return
    for axis in range(len(old)):
        if old[:axis] + old[axis + 1 :] == new[:axis] + new[axis + 1 :]:
            keywords = {} if len(old) == 1 else {"axis": one_axis(axis, len(old))}
            length = {"total_repeat_length": literals.size(new[axis])}
            repeated = call("jnp.repeat", placeholder(0), placeholder(1), **keywords, **length)
            yield Proposal(repeated, (x, atom), "repeated")


# From the indices that `jnp.repeat` looks up back to its counts: the primitive that makes each
# value, and the operand that leads on.
_STEPS_OF_REPEAT = (
    ("broadcast_in_dim", 0), ("select_n", 2), ("add", 0), ("sub", 0), ("jit", 0),
    ("scatter-add", 1), ("broadcast_in_dim", 0), ("select_n", 1), ("jit", 0), ("scatter", 0),
    ("jit", 0),
)  # fmt: skip
