"""Entry points, which front ends return: traceable functions with names, pytrees and parameters."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Literal

import jax
import numpy as np
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from invert._errors import Problem
from invert._private.jax import (
    Arguments,
    CallArguments,
    ClosedJaxpr,
    Keywords,
    Tree,
    Value,
    trace_closed,
)


@dataclasses.dataclass(frozen=True)
class ArgSpec:
    """One array argument or result: its name and type.

    **Arguments:**

    - `name`: the name in the original signature, which need not be an identifier.
    - `shape`: tuple of sizes; `None` for an open size, a string such as `"b"` for a named one.
    - `dtype`: a NumPy (or ml_dtypes) dtype.
    - `keys`: the author's keys to it in its argument, if the tree here need not have them.
    """

    name: str
    shape: tuple[int | str | None, ...]
    dtype: np.dtype
    keys: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Param:
    """One variable of the container.

    **Arguments:**

    - `name`: the original name, such as `dense/kernel`.
    - `trainable`: whether its library trains it.
    - `stated`: whether the container states that; otherwise `trainable` is the flag it was created
        with.
    - `sharding`: the devices that hold its parts, if the caller has chosen them.
    - `path`: where the program itself has it, such as `params/dense/kernel`, if `name` only numbers
        it: the name in the emitted source.
    """

    name: str
    value: np.ndarray
    trainable: bool = True
    stated: bool = True
    sharding: NamedSharding | None = None
    path: str = ""


@dataclasses.dataclass(frozen=True)
class Shardings:
    """The shardings of a function's arrays over a mesh of devices.

    **Arguments:**

    - `mesh`: the mesh of the original, without devices; `None` if it is for one device.
    - `arguments`: for each flat argument its spec, or `None` if unspecified.
    - `results`: the same for the flat results.
    - `params`: the specs of parameters that have one, by their names.
    """

    mesh: AbstractMesh | None
    arguments: tuple[PartitionSpec | None, ...]
    results: tuple[PartitionSpec | None, ...]
    params: Mapping[str, PartitionSpec] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class OpUse:
    """An op of a program, as read.

    **Arguments:**

    - `op`: its name, such as `tf.MatMul` or `stablehlo.dot_general`.
    - `route`: how it is raised: `"rule"`, by its own rule; `"host"`, by TensorFlow, which runs
        it at conversion, or on request at run time; `"opaque"`: it stays a custom call unless a
        pattern recovers it; `"none"`: not at all.
    - `location`: node name or source location, as the container states it.
    - `draws`: whether it draws random numbers with the key of the call.
    """

    op: str
    route: Literal["rule", "host", "opaque", "none"]
    location: str
    draws: bool = False


@dataclasses.dataclass(frozen=True)
class Trace:
    """One of several traces of a function.

    **Arguments:**

    - `of`: the name of the function.
    - `default`: whether a call without optional arguments runs this trace.
    - `pick`: `pick(args, kwargs, exact)` returns the positional and keyword arguments that a call
        passes to this trace; `None` if the call does not fit it. `exact`: whether shapes and dtypes
        must equal those of the trace instead of just fitting them.
    """

    of: str
    default: bool
    pick: Callable[[Arguments, Keywords, bool], CallArguments | None]


@dataclasses.dataclass(frozen=True)
class EntryPoint:
    """One callable of a container, before raising.

    **Arguments:**

    - `name`: name of the function or signature.
    - `fn`: `fn(param_values, *flat_args) -> list` of flat results; `param_values` is a sequence in
        the order of `params`. If `draws`, a typed PRNG key follows the flat arguments. The new
        values of the `assigned` parameters follow the results. It runs the raising rules on the
        given values, so tracing it yields the raw jaxpr.
    - `args`, `kwargs`: the signature as pytrees whose leaves are `ArgSpec`; `flat_args` of `fn` are
        the leaves of `(args, kwargs)` in `jax.tree_util` order.
    - `arg_names`: names of the positional arguments, one for each element of `args`.
    - `out_tree`: structure of the results; its leaves are the flat results of `fn`.
    - `outputs`: the numbers of the flat results in this structure, but with dictionaries in the
        order of the original, which `out_tree` sorts; `None` if it is unknown.
    - `params`: the variables the function reads or assigns.
    - `assigned`: indices of the parameters that the function assigns.
    - `draws`: whether the function draws random numbers, and so needs a key.
    - `notes`: returns lines for the report, once the function has run.
    - `problems`: what cannot be raised, if the front end was asked to accept such programs; `fn`
        then raises `UnsupportedOpError`.
    - `ops`: returns the ops of the program, those of called functions once.
    - `outside`: the steps before the raw jaxpr, which the certificate does not cover.
    - `checks`: messages of the assertions that are kept. For each, a boolean follows the results
        of `fn`, before the assigned parameters: whether it failed.
    - `source`: one line about its origin.
    - `lowered`: the name of the JAX function that was lowered, if the container states another.
    - `kind`: the class that its author wrote for it, if it is an instance of one.
    - `results`: types of the flat results, if the container states them.
    - `platform`: the platform it was lowered for, if the container states it.
    - `shardings`: shardings of arguments and results, if the container states them.
    - `defaults`: values of arguments that a call may leave out, by the names of the arguments.
    - `trace`: the calls that belong to this entry, if the container's function has several traces.
    - `attributes`: for layers without a name of their own, the attributes in which the original
        holds them, by the layers' generated names.
    - `keras`: whether its container says that Keras made its variables.
    - `reverse_loops`: how a loop whose number of steps depends on data gets the reverse derivative
        that the original may have; `""` if the original has none.
    - `promises_bounds`: whether its gathers of numbers promise that their indices are in bounds, as
        those of JAX do, rather than clip them.
    """

    name: str
    fn: Callable[..., Sequence[Value]]
    args: tuple[Tree, ...]
    kwargs: Keywords
    arg_names: tuple[str, ...]
    out_tree: jax.tree_util.PyTreeDef
    params: tuple[Param, ...] = ()
    source: str = ""
    lowered: str = ""
    kind: str = ""
    results: tuple[ArgSpec, ...] | None = None
    platform: str | None = None
    assigned: tuple[int, ...] = ()
    draws: bool = False
    notes: Callable[[], Sequence[str]] = tuple
    problems: tuple[Problem, ...] = ()
    ops: Callable[[], Iterable[OpUse]] = tuple
    checks: tuple[str, ...] = ()
    outside: str = ""
    shardings: Shardings | None = None
    defaults: Keywords = dataclasses.field(default_factory=dict)
    trace: Trace | None = None
    attributes: Mapping[str, str] = dataclasses.field(default_factory=dict)
    keras: bool = False
    promises_bounds: bool = False
    reverse_loops: str = ""
    outputs: Tree = None

    @functools.cached_property
    def specs(self) -> Sequence[ArgSpec]:
        """The types of the flat arguments."""
        return jax.tree_util.tree_leaves((self.args, dict(self.kwargs)))

    def named_specs(self) -> list[tuple[str, ArgSpec]]:
        """The arguments by name, such as `x['image'][0]`."""
        trees = [*zip(self.arg_names, self.args, strict=True), *self.kwargs.items()]
        return [
            (name + jax.tree_util.keystr(path), spec)
            for name, tree in trees
            for path, spec in jax.tree_util.tree_leaves_with_path(tree)
        ]

    @property
    def one_argument(self) -> bool:
        """True if it takes a single argument.

        That one may be passed by position, even if signatures of its container take keywords."""
        return not self.args and len(self.kwargs) == 1


def unique(name: str, taken: set[str]) -> str:
    """`name`, with a number appended if it is in `taken`; adds it to `taken`."""
    candidate = name
    if name in taken:
        # Layers of one kind share a name: numbers below a free one are taken and not tried again.
        low, high = 0, 1
        while f"{name}_{high}" in taken:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if f"{name}_{middle}" in taken else (low, middle)
        candidate = f"{name}_{high}"
    taken.add(candidate)
    return candidate


def free_name(wanted: str, taken: Container[str]) -> str:
    """A name for an unnamed argument, with a number if it is taken."""
    name, number = wanted, 1
    while name in taken:
        number += 1
        name = f"{wanted}_{number}"
    return name


def traced(entry: EntryPoint, avals: Sequence[object]) -> ClosedJaxpr:
    """The raw program of an entry point, over its parameters and the arguments.

    **Arguments:**

    - `avals`: types of the flat arguments, and of the key if it draws random numbers.
    """
    params = [jax.ShapeDtypeStruct(p.value.shape, p.value.dtype) for p in entry.params]

    def raised(*values: object) -> Sequence[Value]:
        return entry.fn(values[: len(params)], *values[len(params) :])

    return trace_closed(raised, *params, *avals)
