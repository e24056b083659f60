"""Unrolled scans, which JAX lowers to a loop over blocks: `scan[unroll=k]`.

The body of that loop holds `k` copies of the body of the scan. It works on the rows of one block of
the inputs, and writes a block of the outputs. Remaining steps follow the loop, or precede it in
reverse (jax/_src/lax/control_flow/loops.py, `_scan_impl`, jax 0.10 and 0.12). The body of the scan
is read off the first copy; lowering the scan proves the rest.

A scan that is unrolled completely leaves no loop, and is not recovered.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal as Tag
from typing import TypeAlias

import jax
from jax import lax

from invert.ir import kinds
from invert.ir.counted import Counted, counted
from invert.ir.graph import Graph, is_var
from invert.ir.interpret import evaluate, replacing
from invert.ir.loops import WhileParts
from invert.ir.sizes import is_open
from invert.ir.types import Atom, Eqn, JaxFunction, Value
from invert.patterns.loops import Access, access, read, write
from invert.rewriting.pattern import Call, Pattern, Site


@dataclasses.dataclass(frozen=True)
class _Loop:
    """A loop over blocks.

    **Arguments:**

    - `counted`: the loop; `carried`, `writes`: positions in its carry of values, and of blocks of
        outputs.
    - `rows`: a row of a block -> the indices of the block and of the row.
    - `arrays`: indices of the constants that are inputs, by index of the block.
    - `constants`: the equations without operands, shared by all copies.
    - `work`: the equations of the copies, one copy after the other.
    """

    counted: Counted
    carried: Sequence[int]
    writes: Mapping[int, Access]
    rows: Mapping[Atom, tuple[int, int]]
    arrays: Sequence[int]
    constants: Sequence[Eqn]
    work: Sequence[Eqn]
    reverse: bool

    def stacked(self, position: int) -> list[Atom] | None:
        """The rows of a block of outputs, one for each copy."""
        graph = self.counted.body
        value = self.writes[position].value
        if value is None or (eqn := graph.producer(value, "concatenate")) is None:
            return None
        parts = [graph.producer(a) for a in eqn.invars]
        sources = [p.invars[0] for p in parts if p is not None]
        return sources if len(sources) == len(parts) else None


def _loop(eqn: Eqn) -> _Loop | None:
    loop = counted(eqn)
    if loop is None or is_open(loop.length) or loop.length < 1:
        return None
    graph = loop.body
    found = [access(e, graph, read) for e in graph.eqns]
    reads = [r for r in found if r is not None and any(r.array is c for c in loop.consts)]
    positions = [i for i in range(len(loop.carry)) if i != loop.counter]
    writes = {i: w for i in positions if (w := _block_write(loop, i)) is not None}
    backwards = {loop.direction(a.index) for a in (*reads, *writes.values())}
    if len(backwards) > 1 or None in backwards:
        return None
    rows: dict[Atom, tuple[int, int]] = {
        e.outvars[0]: row for e in graph.eqns if (row := _row(graph, e, reads)) is not None
    }
    arrays = [next(i for i, c in enumerate(loop.consts) if c is r.array) for r in reads]
    carried = [i for i in positions if i not in writes]
    result = _Loop(loop, carried, writes, rows, arrays, [], [], backwards == {True})
    stacks = [result.stacked(i) for i in writes]
    if None in stacks:
        return None
    ends = [*(graph.jaxpr.outvars[i] for i in carried), *itertools.chain(*filter(None, stacks))]
    needed, _ = graph.needed(ends, set(rows))
    constants = [
        e
        for e in needed
        if not any(map(is_var, e.invars)) and e.primitive.name == "broadcast_in_dim"
    ]
    work = [e for e in needed if not any(e is c for c in constants)]
    return dataclasses.replace(result, constants=constants, work=work)


def _block_write(loop: Counted, position: int) -> Access | None:
    eqn = loop.body.producer(loop.body.jaxpr.outvars[position])
    found = None if eqn is None else access(eqn, loop.body, write)
    return found if found is not None and found.array is loop.carry[position] else None


def _row(graph: Graph, eqn: Eqn, reads: Sequence[Access]) -> tuple[int, int] | None:
    """The indices of the block and row that an equation reads: `reshape (slice block)`."""
    drops = eqn.primitive.name in kinds.DROPS
    if not drops or (part := graph.producer(eqn.invars[0], "slice")) is None:
        return None
    block = next((i for i, r in enumerate(reads) if r.result is part.invars[0]), None)
    return None if block is None else (block, part.params["start_indices"][0])


def _unrolled(site: Site) -> Iterator[Call]:
    """`while { f(f(carry, x[0]), x[1]) }` over blocks `x` -> `scan[unroll=2]`."""
    loop = _loop(site.eqn)
    if loop is None or not loop.work:
        return
    rows = {row for _, row in loop.rows.values()}
    stacks = {len(found) for i in loop.writes if (found := loop.stacked(i)) is not None}
    sizes = {max(rows) + 1} if rows else stacks or set(range(2, len(loop.work) + 1))
    for times in sorted(sizes):
        if times < 2 or not _repeats(loop.work, times):
            continue
        results = _results(loop, times)
        if results is not None and _is_closed(loop, times, results):
            yield from _calls(site, loop, times, results)


def _repeats(work: Sequence[Eqn], times: int) -> bool:
    """Return whether the equations form `times` groups with the same primitives and types.

    A cheap filter: lowering candidates dominates the time of programs with long loops.
    """
    size, rest = divmod(len(work), times)
    if rest:
        return False
    kinds = [(e.primitive, *((v.aval.shape, v.aval.dtype) for v in e.outvars)) for e in work]
    groups = (collections.Counter(kinds[i : i + size]) for i in range(0, len(work), size))
    first = next(groups)
    return all(group == first for group in groups)


# Where a result of a step comes from: `("eqn", equation, result)`, `("x", block)`,
# `("carry", number)` or `("atom", atom)`, which is the same in each step.
Source: TypeAlias = (
    tuple[Tag["eqn"], int, int] | tuple[Tag["x", "carry"], int] | tuple[Tag["atom"], Atom]
)


def _results(loop: _Loop, times: int) -> tuple[list[Source], list[Source]] | None:
    """The next carry and the outputs of one step, read off the last copy."""
    size = len(loop.work) // times
    made: dict[Atom, tuple[int, int]] = {
        v: (i, o) for i, e in enumerate(loop.work) for o, v in enumerate(e.outvars)
    }
    last = (times - 1) * size
    constants = {v for e in loop.constants for v in e.outvars}
    ends = [loop.counted.body.jaxpr.outvars[i] for i in loop.carried]
    carry = [("eqn", made[v][0] - last, made[v][1]) if _in(made, v, last) else None for v in ends]

    def source(atom: Atom) -> Source | None:
        if _in(made, atom, last):
            return "eqn", made[atom][0] - last, made[atom][1]
        if is_var(atom) and atom in loop.rows:
            return "x", loop.rows[atom][0]
        if _in(made, atom, last - size):  # a carried value, from the previous copy
            before = ("eqn", made[atom][0] - last + size, made[atom][1])
            return ("carry", carry.index(before)) if before in carry else None
        if not is_var(atom) or atom in constants or any(atom is c for c in loop.counted.consts):
            return "atom", atom
        # A value that leaves the loop unchanged is carried through all copies.
        return next(
            (("carry", n) for n, i in enumerate(loop.carried) if loop.counted.carry[i] is atom),
            None,
        )

    place = 0 if loop.reverse else -1
    stacks = [loop.stacked(i) or [] for i in sorted(loop.writes)]
    carry = [source(v) for v in ends]
    outputs = [source(s[place]) for s in stacks]
    results = [*carry, *outputs]
    if None in results:
        return None
    return results[: len(carry)], results[len(carry) :]  # pyright: ignore[reportReturnType]


def _is_closed(loop: _Loop, times: int, results: tuple[list[Source], list[Source]]) -> bool:
    """Return whether the first copy and its results depend on no other copy."""
    copy = loop.work[: len(loop.work) // times]
    given: set[Atom] = {c for i, c in enumerate(loop.counted.consts) if i not in loop.arrays}
    given.update(loop.counted.carry[i] for i in loop.carried)
    given.update(v for v, (_, row) in loop.rows.items() if row == _first(loop, times))
    given.update(v for e in (*loop.constants, *copy) for v in e.outvars)
    atoms = [a for e in copy for a in e.invars]
    atoms += [source[1] for source in itertools.chain(*results) if source[0] == "atom"]
    return all(a in given for a in atoms if is_var(a))


def _first(loop: _Loop, times: int) -> int:
    """The row of a block that the first copy reads."""
    return times - 1 if loop.reverse else 0


def _in(made: Mapping[Atom, tuple[int, int]], atom: Atom, start: int) -> bool:
    return is_var(atom) and atom in made and made[atom][0] >= start


def _calls(
    site: Site, loop: _Loop, times: int, results: tuple[list[Source], list[Source]]
) -> Iterator[Call]:
    parts = WhileParts.of(site.eqn)
    consts = [site.aval(a) for a in parts.body_consts]
    init = [site.aval(parts.init[i]) for i in loop.carried]
    used = [i for i in range(len(consts)) if i not in loop.arrays]
    everything = tuple(range(len(init)))
    # Remaining steps do not advance counters that are not used after the loop.
    counters = tuple(i for i, v in enumerate(init) if not v.shape and v.dtype.kind in "iu")
    uncounted = tuple(i for i in everything if i not in counters)
    # Lowering may have put the body into a function of its own.
    size = len(loop.work) // times
    whole = [True, False] if size == 1 and loop.work[0].primitive.name == "jit" else [False]
    # The longest first: a shorter scan would leave some remaining steps behind.
    for rest, kept, opened in itertools.product(
        reversed(range(times)), dict.fromkeys((everything, uncounted)), whole
    ):
        length = loop.counted.length * times + rest
        arrays = [consts[i] for i in loop.arrays]
        xs = [jax.ShapeDtypeStruct((length, *a.shape[2:]), a.dtype) for a in arrays]
        yield Call(
            ("unrolled", loop.counted.body.jaxpr, times, length, kept, opened),
            _scan(loop, times, results, length, used, kept, opened),
            (*[consts[i] for i in used], *init, *xs),
            of_site=True,
        )


def _scan(
    loop: _Loop,
    times: int,
    results: tuple[list[Source], list[Source]],
    length: int,
    used: Sequence[int],
    kept: Sequence[int],
    opened: bool,
) -> JaxFunction:
    """The scan as a function of the constants, the first carry and the inputs."""
    copy = loop.work[: len(loop.work) // times]
    first = _first(loop, times)
    on_eqn = replacing({copy[0]: copy[0].params["jaxpr"]} if opened else {})

    def call(*operands: Value) -> list[Value]:
        consts = {loop.counted.consts[i]: v for i, v in zip(used, operands, strict=False)}
        init = operands[len(used) : len(used) + len(loop.carried)]

        def step(
            carry: Sequence[Value], slices: Sequence[Value]
        ) -> tuple[list[Value], list[Value]]:
            env: dict[Atom, Value] = {**consts}
            env.update(zip((loop.counted.carry[i] for i in loop.carried), carry, strict=True))
            env.update((v, slices[n]) for v, (n, row) in loop.rows.items() if row == first)
            value = evaluate([*loop.constants, *copy], env, on_eqn)

            def of(source: Source) -> Value:
                match source:
                    case ("eqn", i, o):
                        return value(copy[i].outvars[o])
                    case ("x", n):
                        return slices[n]
                    case ("carry", n):
                        return carry[n]
                    case (_, atom):
                        return value(atom)

            return list(map(of, results[0])), list(map(of, results[1]))

        final, ys = lax.scan(
            step,
            list(init),
            list(operands[len(used) + len(loop.carried) :]),
            length=length,
            reverse=loop.reverse,
            unroll=times,
        )
        return [*(final[i] for i in kept), *ys]

    return call


PATTERNS = (Pattern("unrolled_scan", ("while",), _unrolled),)
