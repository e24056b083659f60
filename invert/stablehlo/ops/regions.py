"""Reducers and comparators: compares regions with JAX's own lowerings.

Regions with equal signatures compute the same. A signature holds the expressions of the results,
numbered in the order of a walk from the results.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Hashable, Iterator, Sequence

import jax
import numpy as np
from jax import lax

from invert._private.jax import lowered_module
from invert._private.mlir import ir
from invert.ir.order import postorder
from invert.ir.stored import Entry
from invert.ir.types import Value
from invert.stablehlo.ops.attributes import string

Signature = tuple[Hashable, ...]


def results_of(region: ir.Region) -> list[ir.Value]:
    """The results of a one-block region."""
    operations = region.blocks[0].operations
    return list(operations[len(operations) - 1].operation.operands)


def owner_of(value: ir.Value) -> ir.Operation | None:
    """The op that defines a value; `None` for arguments."""
    owner = getattr(value.owner, "operation", value.owner)
    return owner if isinstance(owner, ir.Operation) else None


def defining(value: ir.Value, name: str) -> ir.Operation | None:
    """The op that defines a value, if it has that name; otherwise `None`."""
    owner = owner_of(value)
    return owner if owner is not None and owner.name == name else None


def signature(region: ir.Region) -> Signature | None:
    """The computation of a one-block region; `None` if it captures anything but constants."""
    block = region.blocks[0]
    return expression(block, results_of(region), list(block.arguments))


def expression(
    block: ir.Block, values: Sequence[ir.Value], arguments: Sequence[ir.Value]
) -> Signature | None:
    """The computation of some values of a block from some of its arguments.

    `None` if they need other arguments, or captured values that are not constants.
    """
    definitions: dict[ir.Value, ir.Operation] = {
        r: v.operation for v in block.operations for r in v.operation.results
    }
    numbers: dict[ir.Value, int | None] = {a: i for i, a in enumerate(arguments)}
    lines: list[str | tuple[str | int | None, ...]] = [str(a.type) for a in arguments]
    unused = itertools.count(len(arguments))
    # Equal ops once: JAX writes a constant for each use, and an export merges them.
    known: dict[tuple[str | int | None, ...], list[int]] = {}

    def maker(value: ir.Value) -> ir.Operation | None:
        if value in numbers:
            return None
        # A captured value may be a constant.
        op = definitions.get(value) or defining(value, "stablehlo.constant")
        return None if op is None or len(op.regions) else op

    def operands_of(value: ir.Value) -> list[ir.Value]:
        op = maker(value)
        return [] if op is None else list(op.operands)

    for value in postorder(values, operands_of):
        if value in numbers:
            continue
        op = maker(value)
        operands = [] if op is None else [numbers[operand] for operand in op.operands]
        if op is not None and _is_annotation(op) and operands[0] is not None:
            # Partly manual programs have them in reducers too.
            numbers[value] = operands[0]
        elif op is None or None in operands:
            numbers[value] = None
        else:
            line = _head(op), *operands
            if line not in known:
                known[line] = [next(unused) for _ in op.results]
                lines.append(line)
            numbers.update(zip(op.results, known[line], strict=True))
    results = [numbers[v] for v in values]
    return None if None in results else (*lines, tuple(results))


def _is_annotation(op: ir.Operation) -> bool:
    if op.name == "stablehlo.custom_call":
        return string(op.attributes["call_target_name"]) == "Sharding"
    return op.name == "sdy.sharding_constraint"


def _head(op: ir.Operation) -> str:
    """An op without its operands: name, attributes and types as printed by MLIR."""
    # A copy outside of any function, since MLIR numbers the values of the whole function first.
    alone = op.clone(False)
    asm = alone.get_asm(use_local_scope=True, assume_verified=True, print_generic_op_form=True)
    text = str(asm)
    return text[text.index('"') :].split("(", 1)[0] + text[text.index(")") :]


def walk(operation: ir.Operation) -> Iterator[ir.Operation]:
    """All ops inside an op, those of nested regions included, in program order."""
    pending = [iter(b.operations) for region in operation.regions for b in region.blocks]
    while pending:
        view = next(pending[-1], None)
        if view is None:
            pending.pop()
            continue
        yield view.operation
        pending += [iter(b.operations) for region in view.operation.regions for b in region.blocks]


@functools.lru_cache(maxsize=512)
def reducer(function: Callable, dtype: np.dtype) -> Signature | None:
    """Signature of the reducer of a JAX reduction, such as `reduce_max`, at a dtype."""
    x = jax.ShapeDtypeStruct((1,), dtype)
    lowered = functools.partial(_lowered, "stablehlo.reduce", lambda x: function(x, (0,)), x)
    return Entry("reducer", function, dtype).stored(lowered)


@functools.lru_cache(maxsize=512)
def comparator(dtypes: tuple[np.dtype, ...], num_keys: int) -> Signature | None:
    """Signature of the comparator of `lax.sort` with `num_keys` keys."""
    xs = [jax.ShapeDtypeStruct((1,), d) for d in dtypes]
    sort = functools.partial(_sorted, num_keys)
    lowered = functools.partial(_lowered, "stablehlo.sort", sort, *xs)
    return Entry("comparator", dtypes, num_keys).stored(lowered)


def _sorted(num_keys: int, *xs: Value) -> Value:
    return lax.sort(xs, num_keys=num_keys)


def _lowered(name: str, function: Callable, *avals: jax.ShapeDtypeStruct) -> Signature | None:
    """The signature of the region of an op in a function's lowering."""
    with jax.enable_x64(True):
        module = lowered_module(function, *avals)
    return signature(next(op for op in walk(module.operation) if op.name == name).regions[0])
