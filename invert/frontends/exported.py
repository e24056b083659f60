"""`jax.export` artifacts: `Exported` objects and their serialized form."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import cast

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax.lax import GatherScatterMode as Mode

from invert._config import Config
from invert._entry import ArgSpec, EntryPoint, Shardings, free_name
from invert._errors import MalformedModelError, Problem, UnsupportedOpError, in_short
from invert._private.artifact_bounds import readable
from invert._private.artifacts import exported_program, stated_mesh
from invert._private.jax import (
    from_nowhere,
    physical_type,
)
from invert.frontends.argument_names import argument_locations, keys_of, parameter_name
from invert.frontends.wrong_kind import wrong_kind
from invert.ir.avals import is_differentiable, type_text
from invert.ir.gradient_marker import Gradient, mark
from invert.ir.types import Aval, Value
from invert.stablehlo.author_rules import (
    differs_from_autodiff,
    flat_function,
    gather_modes,
    marked_function,
    may_have_rules,
    types_of,
)
from invert.stablehlo.program import ArrayType, Program

# The remedy for loops without a reverse derivative.
_REVERSE_LOOPS = (
    "The artifact holds no gradient. If the function has a derivative of its own, as an implicit"
    " solver has, save it with `exported.serialize(vjp_order=1)`."
)


def entry_point(exported: jax.export.Exported | bytes | bytearray, *, config: Config) -> EntryPoint:
    """The entry point of an exported function, with the pytrees of the original.

    **Raises:** `MalformedModelError` if the bytes are not a serialized `Exported`, or contradict
    their module; `UnsupportedOpError` for ordered effects.
    """
    artifact = _Artifact.opened(exported, config)
    exported, program = artifact.exported, artifact.program
    branch = program.platform_index() if program.takes_platform_index else 0
    # The function keeps only these parts of the artifact: the module has its weights already.
    run = artifact.function()
    kept = exported.module_kept_var_idx
    locations = dict(zip(kept, argument_locations(program), strict=True))
    names, arg_names = _names(exported, locations)
    specs = [
        ArgSpec(name, _shape(aval), aval.dtype, keys_of(locations.get(i, ""))[1:])
        for i, (name, aval) in enumerate(zip(names, exported.in_avals, strict=True))
    ]
    args, kwargs = jax.tree_util.tree_unflatten(exported.in_tree, specs)

    def fn(params: Sequence[Value], *values: Value) -> list[Value]:
        return run(values)

    return EntryPoint(
        name=exported.fun_name if exported.fun_name.isidentifier() else "main",
        fn=fn,
        args=args,
        kwargs=kwargs,
        arg_names=tuple(arg_names),
        out_tree=exported.out_tree,
        source="a jax.export artifact",
        results=tuple(
            ArgSpec(f"out{i}", _shape(a), a.dtype) for i, a in enumerate(exported.out_avals)
        ),
        platform=program.platforms[branch],
        problems=tuple(program.problems),
        ops=program.ops,
        notes=program.notes,
        shardings=_shardings(program, kept, len(exported.in_avals)),
        reverse_loops="" if exported.has_vjp() else _REVERSE_LOOPS,
        promises_bounds=gather_modes(exported_program(exported)) == {Mode.PROMISE_IN_BOUNDS},
    )


@dataclasses.dataclass(frozen=True, eq=False)
class _Artifact:
    """An artifact with its parsed module."""

    exported: jax.export.Exported
    program: Program
    config: Config
    trusted: bool

    @classmethod
    def opened(cls, exported: jax.export.Exported | bytes | bytearray, config: Config) -> _Artifact:
        if isinstance(exported, (bytes, bytearray)):
            # Under no name here, so that `_parsed` can free it.
            return cls._parsed([_deserialize(exported)], config, trusted=False)
        if not isinstance(exported, jax.export.Exported):
            raise wrong_kind("from_exported takes a jax.export.Exported or its bytes", exported)
        return cls._parsed([exported], config, trusted=True)

    @classmethod
    def _parsed(cls, holder: list[jax.export.Exported], config: Config, trusted: bool) -> _Artifact:
        exported = holder.pop()
        # Freed once it is parsed, with the artifact if it was made here.
        module = [exported.mlir_module_serialized]
        if not trusted:
            exported = dataclasses.replace(exported, mlir_module_serialized=b"")
        program = Program.from_bytes(
            module.pop,
            config=config,
            platforms=tuple(exported.platforms),
            trusted=trusted,
            mesh=stated_mesh(exported),
        )
        _check(exported, program)
        return cls(exported, program, config, trusted)

    def function(self, *, marked: bool = True) -> Callable[[Sequence[Value]], list[Value]]:
        """The function of the flat arguments, marked with its gradient if it holds one."""
        gradient = self._gradient() if marked else None
        if gradient is not None and gradient.problem and gradient.has_rule:
            function = marked_function(self.exported, self.config)
            if function is not None:
                return function
        plain = flat_function(self.exported, self.program)
        if gradient is None:
            return plain

        def run(values: Sequence[Value]) -> list[Value]:
            results = plain(values)
            integers = [r for r in results if not is_differentiable(r)]
            return mark(gradient, results, values, [*values, *integers])

        return run

    def _gradient(self) -> Gradient | None:
        if not self._holds_vjp:
            return None
        location = f"the VJP of {self.exported.fun_name}"
        has_rule = exported_program(self.exported) is not None
        vjp = self._vjp()
        if isinstance(vjp, str):
            return Gradient(location, lambda *_: [], vjp, has_rule=has_rule)
        own = _Artifact._parsed([vjp], self.config, self.trusted)
        self._check_vjp(own.exported)
        if problems := own.program.problems:
            return Gradient(location, lambda *_: [], str(problems[0]), has_rule=has_rule)
        results = self.exported.out_avals
        numbers = list(map(is_differentiable, self.exported.in_avals))
        plain, nested = own.function(marked=False), functools.cache(own.function)

        def run(
            captures: Sequence[Value], cotangents: Sequence[Value], inside: bool
        ) -> list[Value | None]:
            inputs, rest = captures[: len(numbers)], iter(cotangents)
            # Cotangents of integers are `float0`, which the module holds as booleans.
            zeros = (jnp.zeros(r.shape, bool) for r in captures[len(numbers) :])
            given = [next(rest if is_differentiable(a) else zeros) for a in results]
            gradients = (nested() if inside else plain)([*inputs, *given])
            return [
                x if is_number else None for x, is_number in zip(gradients, numbers, strict=True)
            ]

        inner = nested if own._holds_vjp else None
        first_only = not own.exported.has_vjp()
        return Gradient(
            location,
            run,
            convention="jax",
            read_nested=inner,
            # If the function has no rules but stops, those in its gradient are the same.
            compares_nested=inner is not None
            and may_have_rules(self.exported, ignored="stop_gradient")
            and may_have_rules(own.exported),
            first_only=first_only,
            has_rule=has_rule,
        )

    @property
    def _holds_vjp(self) -> bool:
        if self.config.custom_gradients == "ignore" or not self.exported.has_vjp():
            return False
        return differs_from_autodiff(self.exported)

    def _vjp(self) -> jax.export.Exported | str:
        """The artifact of the vector-Jacobian product, or why there is none."""
        if not self.trusted:
            return _read(self.exported.vjp)
        # An artifact of this process traces the author's function again, which need not have a
        # derivative.
        try:
            with types_of(self.exported):
                return self.exported.vjp()
        except Exception as error:  # noqa: BLE001  the author's code may raise anything
            return f"JAX cannot export it: {in_short(error)}"

    def _check_vjp(self, vjp: jax.export.Exported) -> None:
        """Check that the types of a vector-Jacobian product are those of the function."""
        arguments, results = self.exported.in_avals, self.exported.out_avals
        wanted = [*map(_type, arguments), *map(_tangent, results)], list(map(_tangent, arguments))
        if (list(map(_type, vjp.in_avals)), list(map(_type, vjp.out_avals))) != wanted:
            raise MalformedModelError(
                "The VJP of the jax.export artifact does not have the types of its function."
            )


def _type(aval: Aval) -> tuple[str, np.dtype]:
    """The type, with open sizes comparable between artifacts."""
    return str(aval.shape), aval.dtype


def _tangent(aval: Aval) -> tuple[str, np.dtype]:
    return str(aval.shape), aval.dtype if is_differentiable(aval) else jax.dtypes.float0


def _check(exported: jax.export.Exported, program: Program) -> None:
    """Check an artifact's statements about its module against the module before using them."""
    if exported.ordered_effects:
        problem = Problem(
            "jax.export",
            f"the program has ordered effects ({', '.join(map(str, exported.ordered_effects))})",
            remedy="Export the program without ordered effects.",
        )
        raise UnsupportedOpError([*program.problems, problem])
    wrong = []
    oldest = jax.export.minimum_supported_calling_convention_version
    newest = jax.export.maximum_supported_calling_convention_version
    if not oldest <= exported.calling_convention_version <= newest:
        wrong.append(
            f"its calling convention is version {exported.calling_convention_version}, but this "
            f"jax supports {oldest} to {newest}"
        )
    if exported.nr_devices < 1:
        wrong.append(f"it is for {exported.nr_devices} devices")
    platforms = program.platforms
    if not platforms or len(set(platforms)) < len(platforms):
        wrong.append(f"it is for the platforms {list(platforms)}")
    if program.takes_platform_index and not len(platforms) > 1:
        wrong.append("its module takes a platform index, but there is only one platform")

    kept, in_avals = exported.module_kept_var_idx, exported.in_avals
    if list(kept) != sorted({i for i in kept if 0 <= i < len(in_avals)}):
        wrong.append(f"its module keeps the arguments {list(kept)} of {len(in_avals)}")
    else:
        wrong += _differences("argument", [in_avals[i] for i in kept], program.in_types)
    wrong += _differences("result", exported.out_avals, program.out_types)
    nodes = [t.node_data() for t in (exported.in_tree, *exported.in_tree.children())]
    if [node and node[0] for node in nodes] != [tuple, tuple, dict]:
        wrong.append("the tree of its arguments is not a tuple and a dictionary")
    for name, tree, avals in (
        ("arguments", exported.in_tree, in_avals),
        ("results", exported.out_tree, exported.out_avals),
    ):
        if tree.num_leaves != len(avals):
            wrong.append(f"the tree of its {name} has {tree.num_leaves} leaves for {len(avals)}")
    if wrong:
        raise MalformedModelError(
            f"The jax.export artifact contradicts its module: {'; '.join(wrong)}"
        )


def _shardings(program: Program, kept: Sequence[int], count: int) -> Shardings | None:
    """The arguments that the module keeps, and their shardings."""
    shardings = program.shardings
    if shardings is None:
        return None
    specs = dict(zip(kept, shardings.arguments, strict=True))
    return Shardings(shardings.mesh, tuple(specs.get(i) for i in range(count)), shardings.results)


def _differences(what: str, avals: Sequence[Aval], types: Sequence[ArrayType]) -> list[str]:
    """Differences between an artifact's declared arrays and those of its module."""
    if len(avals) != len(types):
        return [f"it declares {len(avals)} {what}s, but its module has {len(types)}"]
    wrong = []
    for i, (aval, (shape, dtype)) in enumerate(zip(avals, types, strict=True)):
        sizes, held = physical_type(aval)
        if tuple(n if isinstance(n, int) else None for n in sizes) != shape or held != dtype:
            wrong.append(
                f"{what} {i} is {type_text(aval.dtype, aval.shape)}, "
                f"and {type_text(dtype, shape)} in its module"
            )
    return wrong


def _names(exported: jax.export.Exported, stated: Mapping[int, str]) -> tuple[list[str], list[str]]:
    """Names of the leaves of the arguments, and of the positional arguments.

    They are those of the function's parameters where the module states them, as in `p['w'][0]`.
    """
    positions = jax.tree_util.tree_unflatten(exported.in_tree, range(exported.in_tree.num_leaves))
    args, kwargs = positions
    found = [parameter_name(tree, stated) for tree in args]
    taken = {*kwargs, *found}
    names = [
        name if name and found.count(name) == 1 and name not in kwargs
        else free_name(f"arg{i}", taken)
        for i, name in enumerate(found)
    ]  # fmt: skip
    leaves = []
    for path, _ in jax.tree_util.tree_leaves_with_path(positions):
        kind, first, *rest = (jax.tree_util.keystr((k,), simple=True) for k in path)
        leaves.append(".".join([first if kind == "1" else names[int(first)], *rest]))
    return leaves, names


def _shape(aval: Aval) -> tuple[int | str | None, ...]:
    return tuple(n if isinstance(n, int) else str(n) for n in aval.shape)


def _deserialize(blob: bytes | bytearray) -> jax.export.Exported:
    def read() -> jax.export.Exported:
        return jax.export.deserialize(cast(bytearray, readable(blob)))  # read-only

    return _read(read)


def _read(read: Callable[[], jax.export.Exported]) -> jax.export.Exported:
    # Some flatbuffer reads are not bounds-checked; the reader then fails in many ways.
    try:
        with from_nowhere():
            exported = read()
        for aval in (*exported.in_avals, *exported.out_avals):
            str(aval.shape)  # Python does not print numbers of thousands of digits
        return exported
    except Exception as error:
        raise MalformedModelError(
            f"The bytes are not a serialized jax.export.Exported that this jax ({jax.__version__}) "
            f"can read: {type(error).__name__}: {error}",
            remedy=f"Copy it again, or export the function with jax {jax.__version__} or older.",
        ) from error
