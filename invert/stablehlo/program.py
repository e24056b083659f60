"""A parsed StableHLO module, callable under a trace."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence

import jax
import numpy as np
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from invert._config import Config
from invert._entry import OpUse, Shardings
from invert._errors import MalformedModelError, Problem, SignatureError, UnsupportedOpError
from invert._opaque import platform_of
from invert._private.jax import default_platform, full_tracebacks
from invert._private.mlir import MlirObject, ir, text_of
from invert.ir.arrays import KnownBytes
from invert.ir.avals import fits_shape, type_text
from invert.ir.types import Aval
from invert.primitives.stablehlo import calls
from invert.stablehlo.ops import interpreter
from invert.stablehlo.ops.attributes import (
    discardable,
    element_dtype,
    is_token,
    location_text,
    shape_of,
    string,
)
from invert.stablehlo.ops.devices import Devices, devices_of
from invert.stablehlo.ops.interpreter import Context, MarkedCall
from invert.stablehlo.ops.registry import CUSTOM_CALL, has_rule
from invert.stablehlo.ops.shardings import Sharding, closed, of_rank
from invert.stablehlo.ops.values import KnownSize, Value
from invert.stablehlo.parse import Blob, entry_function, parse_module

_PLATFORM_INDEX = "_platform_index"


# A shape, `None` for an open size, and a dtype.
ArrayType = tuple[tuple[int | None, ...], np.dtype]


@dataclasses.dataclass(frozen=True)
class Program:
    """A parsed module with its entry point; calling it raises it.

    **Arguments:**

    - `module`: the verified MLIR module.
    - `platforms`: the platforms it was lowered for; if several, it takes a platform index.
    - `mesh`: the mesh of devices stated by its container.
    - `large`: the bytes of large constants, which the module only numbers.
    - `start`: the entry function; by default `main`, or the only public function.
    """

    module: ir.Module
    config: Config
    platforms: tuple[str, ...] = ()
    mesh: AbstractMesh | None = None
    start: str = ""
    large: Sequence[np.ndarray] = dataclasses.field(default=(), compare=False)
    rules: Mapping[str, MarkedCall] = dataclasses.field(default_factory=dict, compare=False)

    @classmethod
    def from_bytes(
        cls,
        blob: Blob,
        *,
        config: Config,
        platforms: tuple[str, ...] = (),
        trusted: bool = False,
        mesh: AbstractMesh | None = None,
        known: KnownBytes | None = None,
    ) -> Program:
        """Parse MLIR text, bytecode, a portable artifact, or a function returning one.

        **Arguments:**

        - `trusted`: whether the bytes were made by this process. Others are first read by a child
            process, because jaxlib's reader can crash on damaged bytes.
        - `known`: large constants of other programs, by digest, to share equal ones; this program's
            are added.

        **Raises:** `MalformedModelError`.
        """
        large: list[np.ndarray] = []
        module = parse_module(blob, trusted=trusted, large=large, known=known)
        lower = tuple(p.lower() for p in platforms)
        return cls(module, config, lower, mesh, large=large)

    @functools.cached_property
    def functions(self) -> Mapping[str, MlirObject]:
        """Functions by name, and meshes as `sdy.mesh <name>`."""
        return functions_of(self.module)

    @functools.cached_property
    def devices(self) -> Devices:
        """The meshes of devices in the module."""
        return devices_of(self.module, self.functions, self.mesh)

    @functools.cached_property
    def entry(self) -> str:
        """The entry function.

        **Raises:** `MalformedModelError` if several are public and none is `main`.
        """
        return self.start or text_of(entry_function(self.module).attributes["sym_name"])

    @functools.cached_property
    def lowered(self) -> str:
        """The name of the JAX function that became `main`: that of the module."""
        attributes = self.module.operation.attributes
        if self.entry != "main" or "sym_name" not in attributes:
            return ""
        return text_of(attributes["sym_name"]).removeprefix("jit_")

    @functools.cached_property
    def public(self) -> tuple[str, ...]:
        """The names of the public functions."""
        # The symbols include meshes.
        functions = [(n, f) for n, f in self.functions.items() if f.name == "func.func"]
        return tuple(n for n, f in functions if is_public(f))

    @functools.cached_property
    def roots(self) -> tuple[str, ...]:
        """The public functions that no other function calls: hand-written text may omit `private`.

        All public functions if all are called, e.g. by themselves.
        """
        called = {
            name
            for caller, function in self.functions.items()
            if function.name == "func.func"  # not a mesh
            for name in interpreter.callees(function)
            if name != caller
        }
        return tuple(n for n in self.public if n not in called) or self.public

    @functools.cached_property
    def problems(self) -> list[Problem]:
        """Every reachable op that cannot be raised."""
        return interpreter.reachable_problems(self.functions, self.entry, calls.custom_call_problem)

    def ops(self) -> Iterator[OpUse]:
        """Every reachable op, those of each function once."""
        for op in interpreter.reachable(self.functions, self.entry):
            location = location_text(op.location)
            if op.name == CUSTOM_CALL:
                target = string(op.attributes["call_target_name"])
                yield OpUse(f"{op.name} @{target}", calls.route_of(op), location)
            else:
                yield OpUse(op.name, "rule" if has_rule(op.name) else "none", location)

    @functools.cached_property
    def takes_platform_index(self) -> bool:
        """True if the first argument is the platform index.

        Other arguments marked as constants, such as sizes, stay arguments: their meaning is
        unknown.
        """
        function = self.functions[self.entry]
        if "arg_attrs" not in function.attributes:
            return len(self.platforms) > 1
        first = next(iter(function.attributes["arg_attrs"]), {})
        if "jax.global_constant" not in first:
            return len(self.platforms) > 1
        # Printed, since it may not be a string.
        return str(discardable(first, "jax.global_constant")) == f'"{_PLATFORM_INDEX}"'

    @functools.cached_property
    def in_types(self) -> list[ArrayType]:
        """Shapes and dtypes of the arguments."""
        function = self.functions.get(self.entry)
        if function is None or not len(function.regions[0].blocks):
            raise MalformedModelError(
                f"@{self.entry}, the entry function of the module, has no body."
            )
        block = function.regions[0].blocks[0]
        return _array_types([a.type for a in block.arguments][int(self.takes_platform_index) :])

    @functools.cached_property
    def out_types(self) -> list[ArrayType]:
        """Shapes and dtypes of the results."""
        function = self.functions[self.entry]
        return _array_types(function.attributes["function_type"].value.results)

    @functools.cached_property
    def shardings(self) -> Shardings | None:
        """The shardings of arguments and results; `None` if unspecified."""
        function = self.functions[self.entry].attributes
        skipped = int(self.takes_platform_index)
        found: list[tuple[Sharding | None, ...]] = []
        for key, count in (("arg_attrs", len(self.in_types)), ("res_attrs", len(self.out_types))):
            named = list(function[key]) if key in function else []
            named = named[skipped:] if key == "arg_attrs" else named
            annotated = tuple(map(self.devices.of_attributes, named))
            found.append(annotated or (None,) * count)
        meshes = [s.mesh for part in found for s in part if s is not None]
        if not meshes or meshes[0].size == 1:
            return None
        mesh = meshes[0]
        ins, outs = (
            tuple(closed(s.spec, mesh.axis_names) if s and s.mesh == mesh else None for s in part)
            for part in found
        )
        return Shardings(mesh, ins, outs)

    def notes(self) -> list[str]:
        """Lines for the report, after the program was raised."""
        return [
            f"left out the sharding {text}, which no PartitionSpec can express"
            for text in self.devices.left_out
        ]

    @functools.cached_property
    def is_static(self) -> bool:
        return all(None not in shape for shape, _ in self.in_types)

    def likely_platform(self) -> str:
        """The platform it was lowered for, where the container does not say so.

        It is that of its custom calls, the configured one, or that of this process.
        """
        targets = (use.op.partition("@")[2] for use in self.ops())
        return platform_of(targets) or self.config.platform or default_platform()

    def platform_index(self) -> int:
        """The index of the configured platform, or of this process."""
        wanted = self.config.platform
        if wanted is None:
            here = default_platform()
            return self.platforms.index(here) if here in self.platforms else 0
        if wanted not in self.platforms:
            raise SignatureError(
                f"the module was lowered for {', '.join(self.platforms)}, not for {wanted!r}",
                remedy="Choose one of them in Config(platform=...).",
            )
        return self.platforms.index(wanted)

    def _check_platform(self) -> None:
        here = default_platform()
        if self.config.platform_check and self.platforms and here not in self.platforms:
            raise SignatureError(
                f"the module was lowered for {', '.join(self.platforms)}, but this process runs on "
                f"{here}",
                remedy="Config(platform_check=False) recovers it anyway.",
            )

    def __call__(self, *values: Value) -> list[Value]:
        """Raise the entry point on `values` (arrays or tracers); return the flat results.

        **Raises:** `UnsupportedOpError` with everything that cannot be raised; `SignatureError`
        if number, shape or dtype of the values do not fit.
        """
        if self.problems:
            raise UnsupportedOpError(self.problems)
        self._check_platform()
        self._check(values)
        ctx = Context(
            self.functions,
            self.config,
            jitted={},
            env={},
            devices=self.devices,
            large=self.large,
            rules=self.rules,
        )
        known = [KnownSize.of(self.platform_index())] if self.takes_platform_index else []
        (body,) = self.functions[self.entry].regions
        for argument, value in zip(body.blocks[0].arguments[len(known) :], values, strict=True):
            interpreter.require_bounds(argument.type, value.shape)
        with full_tracebacks():  # `defect_of` reads them
            return ctx.region(body)(*known, *values)

    def on_devices(self, *values: Value) -> list[Value]:
        """As `__call__`, with the module's shardings of arguments and results as constraints.

        `jax.jit` has these as `in_shardings` and `out_shardings`; an inner function needs
        constraints.
        """
        if self.shardings is None:
            return self(*values)
        mesh = self.shardings.mesh

        def lie(value: Value, spec: PartitionSpec | None) -> Value:
            if spec is None or mesh is None:
                return value
            whole = of_rank(spec, value.ndim)
            return jax.lax.with_sharding_constraint(value, NamedSharding(mesh, whole))

        results = self(*map(lie, values, self.shardings.arguments))
        return list(map(lie, results, self.shardings.results))

    def _check(self, values: Sequence[Value]) -> None:
        wrong = []
        if len(values) != len(self.in_types):
            raise SignatureError(
                f"the module takes {len(self.in_types)} arrays, but {len(values)} were given",
                remedy="Pass one for each argument of its entry function.",
            )
        for i, (value, (shape, dtype)) in enumerate(zip(values, self.in_types, strict=True)):
            if not fits_shape(value.shape, shape) or value.dtype != dtype:
                wrong.append(
                    f"argument {i} is {type_text(value.dtype, value.shape)}, "
                    f"but the module takes {type_text(dtype, shape)}"
                )
        if wrong:
            raise SignatureError("; ".join(wrong), remedy="Pass arrays of the types in the module.")


def functions_of(module: ir.Module) -> dict[str, MlirObject]:
    """The functions of a module by name, and its meshes as `sdy.mesh <name>`."""
    found = {}
    for view in module.body.operations:
        op = view.operation
        if op.name == "func.func":
            found[text_of(op.attributes["sym_name"])] = op
        elif op.name == "sdy.mesh":
            found[f"sdy.mesh {text_of(op.attributes['sym_name'])}"] = op
    return found


def is_public(function: ir.Operation) -> bool:
    """Return whether other modules may call a function."""
    attributes = function.attributes
    return "sym_visibility" not in attributes or text_of(attributes["sym_visibility"]) == "public"


def _array_types(types: Iterable[Aval]) -> list[ArrayType]:
    return [((), np.dtype(bool)) if is_token(t) else (shape_of(t), element_dtype(t)) for t in types]
