"""The rules that raise TensorFlow ops: a registry keyed by op type."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from invert._config import Config
from invert._errors import Problem
from invert.tf.ops.node import Body, Node
from invert.tf.ops.state import Resource, State


class Context(Protocol):
    """What a rule may use besides the node and its input values.

    A value is a JAX value, a static `np.ndarray` (see `tf.values.constants`), a `Resource`, or a
    registered pytree such as a `TensorList`.

    **Attributes:**

    - `config`: options of the conversion.
    - `state`: current values of all handles. Rules use `read`, `write` and `key`; only control
        flow looks at the whole.
    - `library`: the `FunctionDefLibrary` proto of the graph.
    - `reads_gradients`: whether gradient functions are read.
    - `plans`: what loops found out about their variables, so that a body which is traced again
        need not find it again.
    - `pads_rows`: whether rows may be looked up by an index of -1, which stands for none.
    - `compiled`: whether the function that is run is one that TensorFlow compiles by XLA.
    - `branch`: number of the branch of the innermost `If` or `Case` that is run.
    - `within`: the body whose nodes are run, if any.
    - `origins`: for the `id` of a value that is another one in a new shape, itself and that one.
    """

    config: Config
    state: State
    library: Any
    reads_gradients: bool
    plans: dict[Any, Any]
    branch: int
    within: Body | None
    origins: dict[int, tuple[Any, Any]]

    @property
    def compiled(self) -> bool: ...

    @property
    def pads_rows(self) -> bool: ...

    def call(self, function: str, values: Sequence[Any]) -> list[Any]:
        """Evaluates the library function `function` on the same state."""
        ...

    def on(self, state: State, branch: int | None = None) -> Context:
        """The same graph on another state, in the branch of a given number."""
        ...

    def body(self, function: str) -> Body:
        """The nodes of the library function `function`."""
        ...

    def read(self, resource: Any) -> Any:
        """The current value of a `Resource`; a value that is none stands for itself.

        **Raises:** `UnsupportedOpError` where nothing was written to it yet.
        """
        ...

    def write(self, resource: Resource, value: Any) -> None:
        """Sets the value of a `Resource` from here on in the order of execution."""
        ...

    def key(self) -> Any:
        """A new typed PRNG key, split off the key of the call."""
        ...

    def note(self, text: str) -> None:
        """Adds a line to the report, once."""
        ...

    def constant(self, node: Node) -> np.ndarray:
        """The decoded `value` attribute of `node`; decoded once."""
        ...

    def gradient(self, node: Node) -> Any | None:
        """The gradient function that `node` names; `None` where none is to be read."""
        ...

    def program(self, node: Node) -> Any:
        """The parsed module of an `XlaCallModule`; parsed once."""
        ...

    def graph_of(self, tf_graph: Any, inputs: list[str], outputs: list[str], nested: bool) -> Any:
        """A TensorFlow graph in the form that is evaluated; `nested`: gradients are read in it."""
        ...

    def parse(self, module: bytes, config: Config) -> Any:
        """A StableHLO module that this process made, as a callable program."""
        ...

    def op_def(self, op: str) -> Any | None:
        """The `OpDef` proto of an op type; `None` where it is unknown."""
        ...


Rule = Callable[[Context, Node, list[Any]], Sequence[Any]]
Check = Callable[[Context, Node], Iterable[Problem]]


@dataclasses.dataclass(frozen=True)
class Entry:
    """A rule for an op.

    **Arguments:**

    - `rule`: takes `(ctx, node, values)` and returns the list of results.
    - `check`: finds what the rule could not raise beforehand.
    - `draws`: whether the rule calls `ctx.key()`, or what tells so of a node. Ops that are stateful
        and have the attributes `seed` and `seed2` are known to.
    """

    rule: Rule
    check: Check | None = None
    draws: bool | Callable[[Node], bool] = False


class Registry:
    """Rules by op type. Refuses duplicates, and every change once frozen."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        self._frozen = False

    def add(self, op: str, entry: Entry) -> None:
        if self._frozen:
            raise RuntimeError(f"cannot add a rule for {op!r}: the registry is frozen")
        if op in self._entries:
            raise ValueError(f"there is already a rule for the TensorFlow op {op!r}")
        self._entries[op] = entry

    def freeze(self) -> None:
        self._frozen = True

    def get(self, op: str) -> Entry | None:
        return self._entries.get(op)

    def ops(self) -> tuple[str, ...]:
        return tuple(sorted(self._entries))


REGISTRY = Registry()


def raises_tf(
    *ops: str, check: Check | None = None, draws: bool | Callable[[Node], bool] = False
) -> Callable[[Rule], Rule]:
    """Registers the decorated function as the rule of `ops`; see `Entry`."""

    def register(rule: Rule) -> Rule:
        for op in ops:
            REGISTRY.add(op, Entry(rule, check, draws))
        return rule

    return register


def add_table(rows: Mapping[str, Rule], *, draws: bool = False) -> None:
    """Registers one rule for each row; see `Entry`."""
    for op, rule in rows.items():
        REGISTRY.add(op, Entry(rule, draws=draws))
