"""The walk over a StableHLO module: its ops become `lax` primitives.

Rules run while JAX traces: their operands are tracers, or NumPy arrays for constants, and the
primitives they bind become the raw jaxpr. A function's ops are walked once, so the cost is linear.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

import jax
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec

from invert._config import Config
from invert._errors import REPORT, InvertError, Problem, UnsupportedOpError, defect_of
from invert._private.jax import dce, name_stack, open_jaxpr, trace_closed
from invert._private.mlir import MlirObject, ir
from invert.ir.avals import fits_shape, type_text
from invert.ir.hints import Hint, decode, is_hint
from invert.ir.size_algebra import Sizes
from invert.ir.sizes import DimSize, call_dimension, require
from invert.ir.types import Eqn, JaxFunction
from invert.stablehlo.ops import attributes as op_attributes
from invert.stablehlo.ops.devices import Devices, ManualMesh, Shards, shards_of, split_values
from invert.stablehlo.ops.regions import walk
from invert.stablehlo.ops.registry import REGISTRY, Op, entry_of, has_rule, sizes_of
from invert.stablehlo.ops.values import (
    KnownSize,
    Value,
    are_known,
    data,
    is_constant,
    is_splat,
    sizes,
)

# Calls a function and marks its results with its derivative. Takes the open sizes by name, the
# operands and the function.
MarkedCall: TypeAlias = Callable[
    [Mapping[str, DimSize], Sequence[Value], Callable[..., list[Value]]], list[Value]
]


@dataclasses.dataclass
class Context:
    """The context of rules: the module's functions, the configuration and the values."""

    functions: Mapping[str, ir.Operation]
    config: Config
    jitted: dict[Hashable, JaxFunction]
    env: dict[ir.Value, Value]
    # results of functions of sizes: name and numbers -> results
    sizes: dict[Hashable, list[Value]] = dataclasses.field(default_factory=dict)
    # broadcast scalars: id of the broadcast -> (broadcast, scalar)
    scalars: dict[int, tuple[Value, Value]] = dataclasses.field(default_factory=dict)
    # the same for values that repeat dimensions of size one
    stretched: dict[int, tuple[Value, Value]] = dataclasses.field(default_factory=dict)
    # broadcasts written by the author, by location: id -> number
    explicit: dict[int, int] = dataclasses.field(default_factory=dict)
    # results of constants that were decoded before their region
    hoisted: set[ir.Value] = dataclasses.field(default_factory=set)
    # constants that a branch takes as arguments, where it makes shapes of them
    numbers: dict[ir.Value, np.ndarray] = dataclasses.field(default_factory=dict)
    devices: Devices = dataclasses.field(default_factory=lambda: Devices({}))
    # the mesh on whose shards ops run; `None` if they run on whole values
    manual: ManualMesh | None = None
    # large constants, which the module only numbers
    large: Sequence[np.ndarray] = ()
    # derivatives of functions, by name
    rules: Mapping[str, MarkedCall] = dataclasses.field(default_factory=dict)

    def scalar(self, value: Value) -> tuple[Value, Value] | None:
        """`(value, scalar)` if the value is a broadcast scalar; otherwise `None`."""
        return self.scalars.get(id(value))

    def region(self, region: ir.Region) -> Callable[..., list[Value]]:
        """The one-block `region` as a function of its block arguments, on JAX values."""
        call = self.raw_region(region)
        return lambda *args: list(map(data, call(*args)))

    def raw_region(self, region: ir.Region) -> Callable[..., list[Value]]:
        """The same, but results may be sizes."""
        block = region.blocks[0]

        def call(*args: Value) -> list[Value]:
            for parameter, arg in zip(block.arguments, args, strict=True):
                self.env[parameter] = arg
            return self.run(block)

        return call

    def run(self, block: ir.Block) -> list[Value]:
        """Raise the ops of `block` in order; return the operands of its terminator."""
        shards = shards_of(block) if self.devices.has_shards else {}
        results = self._walk((view.operation for view in block.operations), shards)
        if results is None:
            raise InvertError("a block without a terminator")
        return results

    def _walk(
        self, operations: Iterable[ir.Operation], shards: Mapping[ir.Operation, Shards]
    ) -> list[Value] | None:
        """Raise ops in order; return the operands of a terminator."""
        env = self.env
        names: tuple[str, ...] = ()
        splats: dict[ir.Value, Value] = {}
        with contextlib.ExitStack() as scopes:
            for op in operations:
                name = op.name
                if name == "stablehlo.constant" and op.results[0] in self.hoisted:
                    continue
                part = shards.get(op) if shards else None
                if part is not None and op != part.exits[0]:
                    continue
                operands = [] if part else [self._array(v, splats) for v in op.operands]
                if self.numbers and not self.numbers.keys().isdisjoint(op.operands):
                    operands = self._with_numbers(op, operands)
                if name in _TERMINATORS:
                    return operands
                found = _scopes(op_attributes.location_name(op.location))
                if self.explicit:
                    found = self._with_broadcasts(found, operands)
                if found is not names:
                    scopes.close()
                    scopes.enter_context(name_stack(found))
                    names = found
                if part is not None:
                    self._on_shards(part)
                    continue
                for result, value in zip(op.results, self.apply(op, operands), strict=True):
                    env[result] = value
        return None

    def _on_shards(self, part: Shards) -> None:
        """Raise the sharded part of a block once its first result is joined."""
        outer = frozenset() if self.manual is None else self.manual.axes
        where, ins, outs = part.specs(self.devices, outer)
        cut = [r for e in part.entries for r in e.results]
        joined = [
            (v, r) for e in part.exits for v, r in zip(split_values(e), e.results, strict=True)
        ]

        def body(inner: Context, *values: Value) -> list[Value]:
            self.env.update(zip(cut, values, strict=True))
            inner._walk(part.inside, {})
            return [self.env[v] for v, _ in joined]

        results = self.sharded(where, ins, outs, body, [self.env[v] for v in part.operands()])
        self.env.update(zip((whole for _, whole in joined), results, strict=True))

    def sharded(
        self,
        where: ManualMesh,
        in_specs: Sequence[PartitionSpec],
        out_specs: Sequence[PartitionSpec],
        body: Callable[..., Sequence[Value]],
        operands: Sequence[Value],
    ) -> list[Value]:
        """Bind a `shard_map` of `body`, a function of a context and shards.

        Sizes are the same on all shards, and stay known inside.
        """
        outer = frozenset() if self.manual is None else self.manual.axes
        # Functions that were traced on whole values are traced again.
        inner = dataclasses.replace(
            self, manual=ManualMesh(where.mesh, where.axes | outer), jitted={}, sizes={}
        )
        known = {
            i: x
            for i, (x, spec) in enumerate(zip(operands, in_specs, strict=True))
            if isinstance(x, (KnownSize, Sizes)) and not any(spec)
        }
        shards = [i for i in range(len(operands)) if i not in known]

        def run(*values: Value) -> tuple[Value, ...]:
            held = known | dict(zip(shards, values, strict=True))
            return tuple(map(data, body(inner, *(held[i] for i in range(len(operands))))))

        mapped = jax.shard_map(
            run,
            mesh=None if outer else where.mesh,
            in_specs=tuple(in_specs[i] for i in shards),
            out_specs=tuple(out_specs),
            axis_names=set(where.axes),
            check_vma=False,
        )
        # JAX lowers `axis_index` to such a part if some axes are not manual.
        index = _index_alone(mapped) if outer and not operands else None
        if index is not None:
            return [lax.axis_index(index)]
        return list(mapped(*(operands[i] for i in shards)))

    def _array(self, v: ir.Value, splats: dict[ir.Value, Value]) -> Value:
        """The value of `v`; a splat constant becomes a broadcast, one per block.

        Lowering moves such constants out of the regions that use them. This moves them back, so
        that the program of a region does not depend on its position.
        """
        value = self.env[v]
        if not is_splat(value):
            return value
        if v not in splats:
            scalar = value[(0,) * value.ndim]
            with name_stack((Hint(is_array=True).encode(),)):
                splats[v] = lax.broadcast_in_dim(scalar, value.shape, ())
            self.scalars[id(splats[v])] = (splats[v], scalar)
        return splats[v]

    def _with_numbers(self, op: ir.Operation, operands: list[Value]) -> list[Value]:
        """The operands, as known numbers where the op makes a shape of them."""
        if not _assembles_shape(op):
            return operands
        return [self.numbers.get(v, x) for v, x in zip(op.operands, operands, strict=True)]

    def _with_broadcasts(
        self, names: tuple[str, ...], operands: Sequence[Value]
    ) -> tuple[str, ...]:
        """Add to the hint which operands the author broadcast explicitly."""
        numbers = [(i, self.explicit.get(id(x))) for i, x in enumerate(operands)]
        numbered = tuple((i, number) for i, number in numbers if number is not None)
        if not numbered or not names or not is_hint(names[-1]):
            return names
        hint = dataclasses.replace(decode(names[-1]), operands=numbered)
        return (*names[:-1], hint.encode())

    def apply(self, operation: ir.Operation, operands: Sequence[Value]) -> Sequence[Value]:
        """Raise one op and check each result against the op's declared type."""
        op = Op(operation)
        entry = entry_of(op)
        if entry is None or entry.call is None:
            raise UnsupportedOpError([_problem(operation)])
        if any(isinstance(x, Sizes) for x in operands):
            size = sizes_of(entry, op, operands)
            if size is not None:
                return [KnownSize.of(size.value(), size.dtype) if size.is_known() else size]
        computes_size = _computes_size(operation, operands)
        try:
            with jax.ensure_compile_time_eval() if computes_size else contextlib.nullcontext():
                results = entry.call(self, op, operands)
        except InvertError as error:
            if type(error) is not InvertError:
                raise
            # A rule knows the reason, and not its place.
            raise op.error(error.reason.removeprefix(f"{op.name}: "), REPORT) from error
        except _NOT_TAKEN as error:
            if defect := defect_of(error, f"while raising {op.name} at {op.location}"):
                raise defect from error
            raise op.error(f"{type(error).__name__}: {error}", REPORT) from error
        if unknown := entry.unknown_attributes(op):
            raise op.error(f"unknown attributes {unknown}", REPORT)
        self._check(op, results)
        if computes_size:
            return [x if isinstance(x, Sizes) else KnownSize.of(x, x.dtype) for x in results]
        return results

    def _check(self, op: Op, results: Sequence[Value]) -> None:
        types = op.result_types()
        if len(types) != len(results):
            raise InvertError(f"{op.name}: rule returned {len(results)} results, not {len(types)}")
        for i, (type_, value) in enumerate(zip(types, results, strict=True)):
            if op_attributes.is_token(type_) or isinstance(value, tuple):
                continue
            shape, dtype = op_attributes.shape_of(type_), op_attributes.element_dtype(type_)
            if not fits_shape(value.shape, shape) or value.dtype != dtype:
                raise op.error(
                    f"result {i} was raised as {type_text(value.dtype, value.shape)}, but the "
                    f"module declares {type_text(dtype, shape)}",
                    "This is a defect of invert; please report the module.",
                )
            if None in shape:
                require_bounds(type_, value.shape)


def require_bounds(type_: ir.Type, shape: Sequence[DimSize]) -> None:
    """Record that sizes are within the bounds of their type.

    **Raises:** `SignatureError` if they are not.
    """
    for axis, most in op_attributes.largest_sizes(type_).items():
        require(shape[axis], "le", most, f"a size is more than {most}, the bound in {type_}")


def _index_alone(mapped: Callable[[], object]) -> str | None:
    """The axis, if a function on shards computes nothing but its index."""
    eqns = open_jaxpr(trace_closed(mapped)).eqns
    inner: list[Eqn] = list(dce(eqns[0].params["jaxpr"]).eqns) if len(eqns) == 1 else []
    alone = len(inner) == 1 and inner[0].primitive.name == "axis_index"
    return inner[0].params["axis_name"] if alone else None


# Exceptions that mean JAX does not support an op of the module: `bind` of a primitive and the
# functions of `jax.lax` check shapes, dtypes and parameters by `TypeError`, `ValueError` and
# `NotImplementedError`; NumPy refuses sizes and numbers out of its bounds by `OverflowError` and
# `MemoryError`. Any other exception is a defect of a rule, not of the module.
_NOT_TAKEN = (TypeError, ValueError, NotImplementedError, OverflowError, MemoryError)

# Shapes and paddings do not have more elements than this.
_MOST_SIZES = 64


def _computes_size(operation: ir.Operation, operands: Sequence[Value]) -> bool:
    """Return whether an op computes integers from sizes alone, in an array of static shape."""
    return (
        all(is_constant(x) for x in operands)
        and (any(isinstance(x, KnownSize) for x in operands) or _assembles_shape(operation))
        and not operation.regions
        and operation.name != "func.call"
        and len(operation.results) > 0
        and all(_is_small(r.type) for r in operation.results)
        # Indices counted from the end are data, although sizes are added to them.
        and all(r.type.rank == 0 or is_shape(r) for r in operation.results)
        and all(op_attributes.element_dtype(r.type).kind in "iub" for r in operation.results)
    )


# A shape is assembled in fewer steps.
_MOST_STEPS = 8


def _assembles_shape(operation: ir.Operation, steps: int = _MOST_STEPS) -> bool:
    """Return whether the result of an op is a shape, made of others or of numbers."""
    entry = REGISTRY.get(operation.name)
    makes = entry is not None and entry.makes_shapes
    return makes and is_shape(operation.results[0], steps)


def is_shape(value: ir.Value, steps: int = _MOST_STEPS) -> bool:
    """Return whether a value is used only as a shape, or to compute one."""
    if not steps or not _is_small(value.type):
        return False
    owners = [use.owner.operation for use in value.uses]
    return bool(owners) and all(_takes_shape(o) or _assembles_shape(o, steps - 1) for o in owners)


def _takes_shape(operation: ir.Operation) -> bool:
    if operation.name != "stablehlo.custom_call":
        # JAX assembles shapes from numbers one by one, so a shape without open sizes is made only
        # of constants.
        entry = REGISTRY.get(operation.name)
        return entry is not None and entry.takes_shape()
    attributes = operation.attributes
    target = op_attributes.string(attributes["call_target_name"])
    return target.startswith("stablehlo.dynamic_") or "indices_of_shape_operands" in attributes


def _is_small(type_: ir.Type) -> bool:
    return (
        isinstance(type_, ir.RankedTensorType)
        and type_.has_static_shape
        and math.prod(type_.shape) <= _MOST_SIZES
    )


_TERMINATORS = frozenset(
    {"func.return", "stablehlo.return", "sdy.return", "chlo.return", "mhlo.return"}
)


# Scopes that name no layer: transforms and calls have parentheses, and the formulas of `jnp.einsum`
# arrows; Equinox names the class of each of its layers.
_NO_LAYER = re.compile(r".*(\(|->)|(checkpoint|rematted_computation)$|eqx\.nn\.")
# A method of a module of Flax other than `__call__`, outside of all modules.
_METHOD = re.compile(r"([A-Z]\w*)\.\w+")


@functools.lru_cache(maxsize=65536)
def _scopes(name: str) -> tuple[str, ...]:
    """An op's name scopes and hint, from its name stack, without those that name no layer."""
    if "/" not in name:
        return (Hint(name).encode(),) if name else ()
    *parts, last = name.split("/")
    scopes: list[str] = []
    for part in parts:
        if not part or _NO_LAYER.match(part) or part.endswith(":"):
            continue
        # In `VAE/VAE.decode/decoder` the method is a part of its module.
        if scopes and part.rpartition(".")[0] == scopes[-1]:
            continue
        method = None if scopes else _METHOD.fullmatch(part)
        scopes.append(part if method is None else method[1])
    return (*scopes, Hint(last).encode())


def _problem(op: ir.Operation) -> Problem:
    location = op_attributes.location_text(op.location)
    entry = REGISTRY.get(op.name)
    if entry is not None and entry.refusal is not None:
        reason, remedy = entry.refusal
        return Problem(op.name, reason, location, remedy)
    return Problem(op.name, "no raising rule", location, "Please report the op and the module.")


# Authors do not write these functions. JAX wraps the first two around a program with open sizes and
# the body of a `shard_map`; the last holds a region while a module moves between partitioners.
WRAPPED = "_wrapped_jax_export_main"
_WRAPPERS = (WRAPPED, "shmap_body", "xla.sdy.manual_computation_body")


def call_function(ctx: Context, name: str, args: Sequence[Value]) -> list[Value]:
    """Call the function `@name` of the module as a named inner `jit`.

    One `jit` per function, so that JAX's own cache traces a function called often only once. Known
    numbers become constants instead of arguments, since they determine branches and shapes inside.
    """
    function = ctx.functions[name]
    if (call_marked := ctx.rules.get(name) or ctx.rules.get(_jit_name(name))) is not None:
        named = _dimensions(function, args)
        known = {n: sizes(x, name)[0] for n, x in named if are_known(x)}
        run = functools.partial(_fresh(ctx).region(function.regions[0]), *args[: len(named)])
        return call_marked(known, list(map(data, args[len(named) :])), run)
    fixed = {i: x for i, x in enumerate(args) if isinstance(x, (KnownSize, Sizes))}
    function_type: MlirObject = function.attributes["function_type"]
    small = all(map(_is_small, function_type.value.results))
    if fixed and small and all(is_constant(x) or isinstance(x, Sizes) for x in args):
        # It computes sizes, which the caller needs to know.
        args = [x if isinstance(x, Sizes) else KnownSize.of(x, x.dtype) for x in args]
        key = (name, tuple(map(_key, args)))
        if key not in ctx.sizes:
            results = _fresh(ctx).raw_region(function.regions[0])(*args)
            if not all(isinstance(x, (np.ndarray, Sizes)) for x in results):
                return results  # values of the current trace
            ctx.sizes[key] = results
        return ctx.sizes[key]
    if name.startswith(_WRAPPERS):
        _call_dimensions(function, args)
        return _fresh(ctx).raw_region(function.regions[0])(*args)
    key = (name, tuple((i, _key(x)) for i, x in fixed.items()))
    if key not in ctx.jitted:

        def call(*rest: Value) -> list[Value]:
            values = iter(rest)
            all_args = [fixed[i] if i in fixed else next(values) for i in range(len(args))]
            return _fresh(ctx).region(function.regions[0])(*all_args)

        # Callees that the serializer split off end in _<number>; the author's name precedes it.
        call.__name__ = call.__qualname__ = _jit_name(name)
        ctx.jitted[key] = jax.jit(call)
    return list(ctx.jitted[key](*(x for i, x in enumerate(args) if i not in fixed)))


def _call_dimensions(function: MlirObject, args: Sequence[Value]) -> None:
    """Record the exporter's names of the dimensions that it passes on."""
    for name, value in _dimensions(function, args):
        if isinstance(value, Sizes):
            for size in value.sizes() or ():
                call_dimension(size, name)


def _dimensions(function: MlirObject, args: Sequence[Value]) -> list[tuple[str, Value]]:
    """The exporter's names of the dimensions that a function takes, with their values."""
    if "arg_attrs" not in function.attributes:
        return []
    return [
        (op_attributes.string(op_attributes.discardable(a, "jax.global_constant")), value)
        for value, a in zip(args, function.attributes["arg_attrs"], strict=False)
        if "jax.global_constant" in a
    ]


def _key(value: Value) -> Hashable:
    return value.key if isinstance(value, Sizes) else (value.shape, value.tobytes())


def _fresh(ctx: Context) -> Context:
    """The context of a function's own values."""
    return dataclasses.replace(
        ctx, env={}, scalars={}, stretched={}, explicit={}, hoisted=set(), numbers={}
    )


def _jit_name(name: str) -> str:
    stem, _, suffix = name.rpartition("_")
    return stem if stem and suffix.isdigit() else name


def free_values(region: ir.Region) -> list[ir.Value]:
    """The free values of a region, each once, in order of use."""
    defined: set[ir.Value] = set()
    used: dict[ir.Value, None] = {}

    def visit(region: ir.Region) -> None:
        for block in region.blocks:
            defined.update(block.arguments)
            for view in block.operations:
                op = view.operation
                for operand in op.operands:
                    used.setdefault(operand)
                defined.update(op.results)
                for inner in op.regions:
                    visit(inner)

    visit(region)
    return [v for v in used if v not in defined]


def reachable(functions: Mapping[str, ir.Operation], entry: str) -> Iterator[ir.Operation]:
    """The ops of a function and of its callees, each function once, without terminators."""
    seen = {entry}
    pending = [entry]
    while pending:
        for op in walk(functions[pending.pop()]):
            if op.name in _TERMINATORS:
                continue
            yield op
            for name in _callees(op):
                if name not in seen and name in functions:
                    seen.add(name)
                    pending.append(name)


def reachable_problems(
    functions: Mapping[str, ir.Operation],
    entry: str,
    extra: Callable[[ir.Operation], Problem | None],
) -> list[Problem]:
    """The ops reachable from `entry` that cannot be raised, once per op and location."""
    problems: dict[Problem, None] = {}
    problems.update(dict.fromkeys(_call_problems(functions, entry)))
    for op in reachable(functions, entry):
        if not has_rule(op.name):
            problems.setdefault(_problem(op))
        elif (problem := extra(op)) is not None:
            problems.setdefault(problem)
    return list(problems)


def _call_problems(functions: Mapping[str, ir.Operation], entry: str) -> Iterator[Problem]:
    """Calls of undefined functions, and recursive calls."""
    # Depth first without recursion: a file may nest calls deeper than Python does.
    path = {entry: callees(functions[entry])}
    done = set()
    while path:
        name = next(reversed(path))
        callee = next(path[name], None)
        if callee is None:
            done.add(name)
            del path[name]
        elif callee in path:
            reason = f"@{callee} calls itself, directly or through others, and would never end"
            yield Problem("func.call", reason, remedy="Write it as a loop.")
        elif callee not in done:
            if callee not in functions or not len(functions[callee].regions[0].blocks):
                reason = f"@{callee}, called by @{name}, has no body in the module"
                yield Problem("func.call", reason, remedy="Link the module that defines it.")
                done.add(callee)
            else:
                path[callee] = callees(functions[callee])


def callees(function: ir.Operation) -> Iterator[str]:
    """Names of the functions that a function refers to, each once."""
    return iter(dict.fromkeys(name for op in walk(function) for name in _callees(op)))


def _callees(op: ir.Operation) -> list[str]:
    """Names of the functions an op refers to."""
    if op.name == "func.call":
        return [op_attributes.symbol_name(op.attributes["callee"])]
    if op.name == "stablehlo.composite":
        return [op_attributes.symbol_name(op.attributes["decomposition"])]
    if op.name == "stablehlo.custom_call" and "called_computations" in op.attributes:
        called: MlirObject = op.attributes["called_computations"]
        return [op_attributes.symbol_name(s) for s in called]
    return []
