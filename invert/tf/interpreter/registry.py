"""The registry of TensorFlow ops: their rules and properties.

Besides operands and attributes, a rule may take `ctx`, `node` and `op` (the type). An attribute
that it does not take is refused if it differs from its default.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from invert._config import Config
from invert._errors import Problem
from invert.ir.types import Value as Value
from invert.primitives import binding, registry
from invert.protos.tensors import decode_dtype
from invert.tf.ops.definition import type_at, types_of
from invert.tf.ops.node import Node
from invert.tf.values import constants

if TYPE_CHECKING:
    from invert.tf.interpreter.context import Context

Rule = Callable[["Context", Node, list[Value]], Sequence[Value]]
# How an op treats operands with a data-dependent number of rows; also receives the rule.
RowRule = Callable[[Rule, "Context", Node, list[Value]], list[Value]]
Check = Callable[["Context", Node], Iterable[Problem]]
Route = Literal["rule", "host", "none"]
# The side effect of a stateful op: none; it reads its handle; it returns the reference to a
# variable; or as its definition implies.
Effect = Literal["none", "reads", "passes", "any"]


# Attributes that do not affect values: where and how an op runs, names. Declared shapes are
# compared with the actual ones.
SILENT_ATTRIBUTES = frozenset(
    "config config_proto container debug_name executor_type message output_shapes "
    "parallel_iterations shared_name swap_memory use_cudnn_on_gpu use_locking".split()
)


@dataclasses.dataclass(frozen=True)
class Entry:
    """How an op is raised, and its properties.

    **Arguments:**

    - `call`: takes `(ctx, node, values)` and returns the list of results.
    - `route`: how it is raised: by a rule, on the host, or not at all.
    - `check`: finds problems before anything is traced.
    - `draws`: whether it draws from the key of the call, or a function of a node that says so.
        Stateful ops with the attributes `seed` and `seed2` always do.
    - `effect`: see `Effect`.
    - `rows`: how it treats operands with a data-dependent number of rows; `None`: not supported.
    - `takes_sizes`: whether `rows` also takes shapes that hold such a number.
    - `folds_sizes`: whether it is arithmetic on sizes, which its rule folds.
    - `folds_operands`: whether operands that follow from constants are folded for it, since the
        size of a result depends on them.
    - `size_operands`: operands that determine the size of the result.
    - `repeats_to`: the operand that holds the shape to which the other is repeated, if any.
    - `idempotent`: whether repeated elements do not change the result.
    - `reads_shape`: whether the result follows from the shapes of the operands alone.
    - `chooses`: whether its first operand selects which of its functions runs.
    - `pads_rows`: whether a result marks missing rows by index -1.
    - `on_host`: whether TensorFlow itself computes a node, which then needs known operands.
    - `names_attributes`: whether the rule names all attributes that it takes.
    - `needs_tensorflow`: whether TensorFlow itself computes it.
    - `ignores`: further attributes that do not affect values.
    """

    call: Rule
    route: Route = "rule"
    check: Check | None = None
    draws: bool | Callable[[Node], bool] = False
    effect: Effect = "any"
    rows: RowRule | None = None
    takes_sizes: bool = False
    folds_sizes: bool = False
    folds_operands: bool = False
    size_operands: tuple[int, ...] = ()
    repeats_to: int | None = None
    idempotent: bool = False
    reads_shape: bool = False
    chooses: bool = False
    pads_rows: Callable[[Config, Node], bool] | None = None
    on_host: Callable[[Node], bool] | None = None
    names_attributes: bool = False
    needs_tensorflow: bool = False
    ignores: frozenset[str] = frozenset()

    def is_silent(self, attribute: str) -> bool:
        """Return whether an attribute does not affect values, so that a rule may ignore it."""
        return attribute in self.ignores or attribute in SILENT_ATTRIBUTES


# Returns the entry of a node without a rule of its own; `None` for an unknown op.
Fallback = Callable[[Node], Entry | None]
# Returns TensorFlow's reason for rejecting a node on these operands; `None` if it accepts.
Diagnosis = Callable[["Context", Node, Sequence[Value]], Problem | None]


class Registry(registry.Registry[Entry]):
    """The entries of TensorFlow ops, with overrides and fallbacks."""

    def __init__(self) -> None:
        super().__init__(
            "the TensorFlow op", functools.partial(Entry, names_attributes=True), _BINDER
        )
        self._overrides: tuple[Fallback, ...] = ()
        self._fallbacks: tuple[Fallback, ...] = ()
        self.diagnose: Diagnosis = lambda ctx, node, values: None

    def complete(
        self,
        *,
        overrides: Sequence[Fallback] = (),
        fallbacks: Sequence[Fallback] = (),
        diagnose: Diagnosis,
    ) -> None:
        """End registration.

        **Arguments:**

        - `overrides`: consulted before the rules; `fallbacks`: consulted after them.
        - `diagnose`: see `Diagnosis`.
        """
        self._overrides, self._fallbacks = tuple(overrides), tuple(fallbacks)
        self.diagnose = diagnose
        self.freeze()

    def entry(self, node: Node) -> Entry | None:
        """How to raise `node`; `None` where nothing can."""
        for find in self._overrides:
            if (entry := find(node)) is not None:
                return entry
        if (entry := self.get(node.op)) is not None:
            return entry
        return next((e for find in self._fallbacks if (e := find(node)) is not None), None)


def _array(ctx: Context, node: Node, values: Sequence[Value], index: int) -> Value:
    value = values[index]
    if isinstance(value, np.ndarray) and value.dtype == object:
        # Sizes, some of them symbolic: integers of the type that the op declares.
        return constants.array(value, _declared(ctx, node, index))
    return constants.array(value)


def _declared(ctx: Context, node: Node, index: int) -> np.dtype:
    definition = ctx.graph.op_def(node.op)
    runs = types_of(definition.input_arg, node.attrs) if definition is not None else ()
    kind = type_at(runs, index)
    return decode_dtype(kind) if kind else np.dtype(np.int32)


def _ints(ctx: Context, node: Node, values: Sequence[Value], index: int) -> tuple[Value, ...]:
    return constants.ints(constants.static(node, values, index))


def _int(ctx: Context, node: Node, values: Sequence[Value], index: int) -> Value:
    numbers = _ints(ctx, node, values, index)
    if len(numbers) != 1:
        reason = f"operand {index} must be one number, but has {len(numbers)}"
        raise node.error(reason, "Pass one number there.")
    return numbers[0]


# How an operand is converted, by its annotation; `Array` where there is none.
_CONVERSIONS: dict[str, binding.Conversion] = {
    "": _array,
    "Array": _array,  # a JAX operand
    "Value": lambda ctx, node, values, i: values[i],  # unchanged: static, traced, a handle, a list
    "Static": lambda ctx, *operand: constants.static(*operand),  # known while raising
    "Ints": _ints,  # a vector that is known while raising: numbers and symbolic sizes
    "Int": _int,  # one such number
}

# The annotations, for type checkers.
Array = Value
Static = np.ndarray
Ints = tuple[Value, ...]
Int = Value


def _attribute(node: Node, name: str, note: str) -> Value:
    return node.attr(name) if name in node.attrs else binding.ABSENT


_BINDER = binding.Binder(
    _CONVERSIONS,
    # Parameters that are not operands: the context, the node, and the type of the op.
    {"ctx": lambda ctx, node: ctx, "node": lambda ctx, node: node, "op": lambda ctx, node: node.op},
    _attribute,
    lambda node: (f"tf.{node.op}", node.location),
)


REGISTRY = Registry()
bound, rule, rules = REGISTRY.bound, REGISTRY.rule, REGISTRY.rules


def row_rule(*ops: str, takes_sizes: bool = False) -> Callable[[RowRule], RowRule]:
    """Register how `ops` treat operands with a data-dependent number of rows; see `Entry`."""

    def register(rows: RowRule) -> RowRule:
        for op in ops:
            REGISTRY.declare(op, rows=rows, takes_sizes=takes_sizes)
        return rows

    return register
