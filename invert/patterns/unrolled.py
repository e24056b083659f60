"""Scans that JAX lowers to a loop over blocks: `scan[unroll=k]`.

The body of that loop calls the body of the scan `k` times, on one block of the inputs, and writes a
block of the outputs. What is left of the length is done after the loop, or before it in reverse
(jax/_src/lax/control_flow/loops.py, `_scan_impl`, jax 0.10). The body of the scan is read off one
of the calls; that the rest is the lowering of the scan is proved by lowering it.

A scan that is unrolled as a whole leaves no loop, and stays the calls that it is.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from jax import lax

from invert import _compat
from invert._pattern import Call, Graph, Pattern, Site, is_var
from invert.patterns.loops import Counted, access, counted, read, write


@dataclasses.dataclass(frozen=True)
class _Block:
    """What the calls of a block pass on.

    **Arguments:**

    - `function`: the body of the scan, over its own arguments.
    - `arguments`: for each of them `("const" | "carry" | "x", number)`, or `("value", literal)`.
    - `carry`: for each carried value the result of the function that is its next value.
    - `outputs`: the results of the function that are stacked.
    - `times`: how often the block calls it.
    - `reverse`: whether blocks are read or written from the last to the first.
    """

    function: Any
    arguments: tuple[tuple[str, Any], ...]
    carry: tuple[int, ...]
    outputs: tuple[int, ...]
    times: int
    reverse: bool


def _unrolled(site: Site) -> Iterator[Call]:
    """`while { f(f(carry, x[0]), x[1]) }` over blocks `x` -> `scan[unroll=2]`."""
    loop = counted(site.eqn)
    if loop is None or loop.length < 1:
        return
    reads, indices = _reads(loop)
    positions = [i for i in range(len(loop.carry)) if i != loop.counter]
    writes = {i: w for i in positions if (w := _written(loop, i)) is not None}
    backwards = {loop.direction(i) for i in (*indices, *(w.index for w in writes.values()))}
    if len(backwards) > 1 or None in backwards:
        return
    carried = [i for i in positions if i not in writes]
    for calls in _repeated(loop.body):
        block = _block(loop, calls, reads, carried, writes, backwards == {True})
        if block is not None:
            yield from _calls(site, loop, block, list(reads), carried)


def _reads(loop: Counted) -> tuple[dict[Any, Any], list[Any]]:
    """The blocks that a loop reads: array -> block; and at which indices."""
    reads, indices = {}, []
    for eqn in loop.body.eqns:
        found = access(eqn, loop.body, read)
        if found is not None and any(found.array is c for c in loop.consts):
            reads[found.array] = found.result
            indices.append(found.index)
    return reads, indices


def _written(loop: Counted, position: int) -> Any:
    result = loop.body.jaxpr.outvars[position]
    eqn = loop.body.producers.get(result) if is_var(result) else None
    found = None if eqn is None else access(eqn, loop.body, write)
    return found if found is not None and found.array is loop.carry[position] else None


def _repeated(graph: Graph) -> list[list[Any]]:
    """The calls of one function, for each function that is called more than once."""
    found: dict[int, list[Any]] = collections.defaultdict(list)
    for eqn in graph.by_primitive.get("jit", ()):
        found[id(eqn.params["jaxpr"])].append(eqn)
    return sorted((calls for calls in found.values() if len(calls) > 1), key=len)


def _block(
    loop: Counted,
    calls: Sequence[Any],
    reads: dict[Any, Any],
    carried: Sequence[int],
    writes: dict[int, Any],
    reverse: bool,
) -> _Block | None:
    blocks = list(reads.values())
    for call in calls:
        arguments = tuple(_argument(loop, a, blocks, carried) for a in call.invars)
        if None not in arguments:
            break
    else:
        return None
    results = loop.body.jaxpr.outvars
    places = {v: i for call in calls for i, v in enumerate(call.outvars)}
    carry = tuple(places.get(results[i]) for i in carried)
    outputs = tuple(_stacked(loop.body, writes[i].value, places) for i in sorted(writes))
    if None in carry or None in outputs:
        return None
    function = calls[0].params["jaxpr"]
    return _Block(function, arguments, carry, outputs, len(calls), reverse)  # pyright: ignore


def _argument(
    loop: Counted, atom: Any, blocks: Sequence[Any], carried: Sequence[int]
) -> tuple[str, Any] | None:
    """What the first call of a block gets: a constant, what is carried, or a slice of the block."""
    if not is_var(atom):
        return "value", atom.val
    for kind, among in (("const", loop.consts), ("carry", [loop.carry[i] for i in carried])):
        for number, v in enumerate(among):
            if v is atom:
                return kind, number
    for _ in range(2):  # the slice, without its leading axis
        eqn = loop.body.producers.get(atom)
        if eqn is None or eqn.primitive.name not in ("reshape", "squeeze", "slice"):
            return None
        atom = eqn.invars[0]
    return next((("x", i) for i, b in enumerate(blocks) if b is atom), None)


def _stacked(graph: Graph, atom: Any, places: dict[Any, int]) -> int | None:
    """Which result of the calls an output stacks."""
    eqn = graph.producers.get(atom) if is_var(atom) else None
    if eqn is None or eqn.primitive.name != "concatenate":
        return None
    part = graph.producers.get(eqn.invars[0])
    return None if part is None else places.get(part.invars[0])


def _calls(
    site: Site, loop: Counted, block: _Block, arrays: Sequence[Any], carried: Sequence[int]
) -> Iterator[Call]:
    params = site.eqn.params
    n_cond, n_body = params["cond_nconsts"], params["body_nconsts"]
    consts = [site.aval(a) for a in site.eqn.invars[n_cond : n_cond + n_body]]
    init = [site.aval(site.eqn.invars[n_cond + n_body + i]) for i in carried]
    numbers = [next(i for i, c in enumerate(loop.consts) if c is a) for a in arrays]
    used = [i for i in range(n_body) if i not in numbers]
    everything = tuple(range(len(init)))
    # What is left over does not count further where nobody asks for the last count.
    counters = tuple(i for i, v in enumerate(init) if not v.shape and v.dtype.kind in "iu")
    uncounted = tuple(i for i in everything if i not in counters)
    # The longest first: of what is left over, a shorter scan would leave some.
    for rest, results in itertools.product(
        reversed(range(block.times)), dict.fromkeys((everything, uncounted))
    ):
        length = loop.length * block.times + rest
        xs = [
            jax.ShapeDtypeStruct((length, *consts[i].shape[2:]), consts[i].dtype) for i in numbers
        ]
        key = ("unrolled", _compat.open_jaxpr(block.function), block.arguments, block.carry)
        yield Call(
            (*key, block.outputs, block.times, block.reverse, length, tuple(used), results),
            _scan(block, length, used, len(init), results),
            (*[consts[i] for i in used], *init, *xs),
        )


def _scan(
    block: _Block, length: int, used: Sequence[int], n_carry: int, results: Sequence[int]
) -> Callable[..., Any]:
    """The scan as a function; `results` are the carried values that it returns."""

    def call(*operands: Any) -> list[Any]:
        consts = dict(zip(used, operands, strict=False))
        init = operands[len(used) : len(used) + n_carry]

        def step(carry: Sequence[Any], slices: Sequence[Any]) -> tuple[list[Any], list[Any]]:
            kinds = {"const": consts, "carry": carry, "x": slices}
            values = [v if kind == "value" else kinds[kind][v] for kind, v in block.arguments]
            found = _compat.eval_closed(block.function, values)
            return [found[i] for i in block.carry], [found[i] for i in block.outputs]

        final, ys = lax.scan(
            step,
            list(init),
            list(operands[len(used) + n_carry :]),
            length=length,
            reverse=block.reverse,
            unroll=block.times,
        )
        return [*(final[i] for i in results), *ys]

    return call


PATTERNS = (Pattern("unrolled_scan", ("while",), _unrolled),)
