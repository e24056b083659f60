"""StableHLO modules: text, bytecode and portable artifacts."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping, Sequence

import jax
import numpy as np

from invert._config import Config
from invert._entry import ArgSpec, EntryPoint
from invert._errors import MalformedModelError, SignatureError
from invert._files import content_of
from invert.frontends import weights
from invert.frontends.argument_names import argument_locations
from invert.frontends.wrong_kind import wrong_kind
from invert.ir.avals import type_text
from invert.ir.types import Value
from invert.stablehlo.parse_worker import bytecode
from invert.stablehlo.program import Program

# Objects that contain a StableHLO module.
Source = (
    bytes
    | bytearray
    | memoryview
    | str
    | os.PathLike[str]
    | jax.stages.Lowered
    | jax.stages.Compiled
)

# Names of arguments: in order or by name, or either per function.
Names = Mapping[str, str | Mapping[str, str] | Sequence[str]] | Sequence[str]

# The remedy for loops without a reverse derivative.
_REVERSE_LOOPS = (
    "StableHLO holds no gradients. If the function has a derivative of its own, as an implicit"
    " solver has, save it with `jax.export.export(jax.jit(f))(x).serialize(vjp_order=1)`."
)

# A name that only gives an argument's position.
_PLACE = re.compile(r"arg\d+")


def _blob_of(source: Source) -> bytes | str:
    """The bytes or text of a module.

    **Raises:** `MalformedModelError` if a path cannot be read.
    """
    if isinstance(source, jax.stages.Lowered):
        return bytecode(source.compiler_ir("stablehlo"))
    if isinstance(source, jax.stages.Compiled):
        return _hlo_of(source)
    if isinstance(source, (bytes, bytearray, memoryview)):
        return bytes(source)
    if isinstance(source, str):
        return source
    if not isinstance(source, os.PathLike):
        raise wrong_kind("from_stablehlo takes text, bytes, a path or a lowered function", source)
    return content_of(source)


def _hlo_of(compiled: jax.stages.Compiled) -> bytes:
    """The HLO of a compiled function.

    **Raises:** `MalformedModelError` if its runtime does not provide it.
    """
    executable = compiled.runtime_executable()
    modules = getattr(executable, "hlo_modules", list)()
    if len(modules) != 1:
        raise MalformedModelError(
            f"the compiled function has {len(modules)} HLO modules, but one is needed",
            remedy="Pass what it was compiled from, `jax.jit(f).lower(x)`.",
        )
    return modules[0].as_serialized_hlo_module_proto()


def entry_points(
    source: Source,
    *,
    config: Config,
    signature: str | None = None,
    params: Mapping[str, Value] | None = None,
    names: Names | None = None,
) -> dict[str, EntryPoint]:
    """The entry points of a StableHLO module; arguments and results are flat.

    These are its public functions that no other function calls.

    **Arguments:**

    - `signature`: the only function to read, which may be any public one.
    - `params`: values of arguments that are weights, by name. Functions with an argument of that
        name share them.
    - `names`: new names of the arguments: of all in order, or by `arg0`, `arg1`, ... or the
        module's own names. For several functions a mapping by function.

    **Raises:** `MalformedModelError`; `SignatureError` if names or values do not fit.
    """
    whole = Program.from_bytes(lambda: _blob_of(source), config=config)
    if signature is not None and signature not in whole.public:
        raise SignatureError(
            f"the module has no public function {signature!r}",
            remedy=f"Choose one of {list(whole.public)}.",
        )
    starts = whole.roots if signature is None else (signature,)
    programs = {start: dataclasses.replace(whole, start=start) for start in starts}
    named = _names_by_function(starts, names)
    specs = {start: _named(p, named.get(start)) for start, p in programs.items()}
    params = {} if params is None else params
    weights.check_mapping(params)
    values = _weights(specs, params)
    return {
        start: _entry_point(program, specs[start], values) for start, program in programs.items()
    }


def _entry_point(
    program: Program, specs: Sequence[ArgSpec], params: Mapping[str, np.ndarray]
) -> EntryPoint:
    """The entry point of one function, with the values of its weights."""

    def fn(_: Sequence[Value], *values: Value) -> list[Value]:
        return program.on_devices(*values)

    n = len(program.out_types)
    tree = jax.tree_util.tree_structure(0 if n == 1 else tuple(range(n)))
    whole = EntryPoint(
        name=program.entry,
        fn=fn,
        args=tuple(specs),
        kwargs={},
        arg_names=tuple(spec.name for spec in specs),
        out_tree=tree,
        source="a StableHLO module",
        lowered=program.lowered,
        results=tuple(
            ArgSpec(f"out{i}", shape, dtype) for i, (shape, dtype) in enumerate(program.out_types)
        ),
        platform=program.likely_platform(),
        reverse_loops=_REVERSE_LOOPS,
        problems=tuple(program.problems),
        ops=program.ops,
        notes=program.notes,
        shardings=program.shardings,
    )
    names = [spec.name for spec in specs]
    return weights.as_parameters(whole, {name: params[name] for name in names if name in params})


def _names_by_function(
    starts: Sequence[str], names: Names | None
) -> Mapping[str, Mapping[str, str] | Sequence[str]]:
    """The given argument names of each function.

    **Raises:** `SignatureError` if it is ambiguous which function they belong to.
    """
    if names is None:
        return {}
    if not isinstance(names, Mapping | Sequence):
        raise SignatureError(
            f"names is a {type(names).__name__}", remedy="Give a list of names, or a mapping."
        )
    given = names.items() if isinstance(names, Mapping) else ()
    plain = {name: value for name, value in given if isinstance(value, str)}
    by_function = {name: value for name, value in given if not isinstance(value, str)}
    if not by_function and len(starts) == 1:
        return {starts[0]: plain if isinstance(names, Mapping) else names}
    if plain or not by_function:
        raise SignatureError(
            f"the module has the functions {list(starts)}",
            remedy="Give names as a mapping from these to the names of their arguments.",
        )
    if unknown := [name for name in by_function if name not in starts]:
        raise SignatureError(
            f"the module has no functions {unknown}",
            remedy=f"Give names for some of {list(starts)}.",
        )
    return by_function


def _named(program: Program, names: Mapping[str, str] | Sequence[str] | None) -> list[ArgSpec]:
    """The arguments of a program, by the names that they are given."""
    plain = [f"arg{i}" for i in range(len(program.in_types))]
    own = list(given_names(program) or plain)
    if isinstance(names, Mapping):
        if unknown := [n for n in names if n not in own and n not in plain]:
            raise SignatureError(
                f"{program.entry!r} of the module has no arguments {unknown}",
                remedy=f"Give names for some of {own}.",
            )
        chosen = [names.get(o, names.get(p, o)) for o, p in zip(own, plain, strict=True)]
    else:
        chosen = own if names is None else [names] if isinstance(names, str) else list(names)
    if wrong := [n for n in chosen if not isinstance(n, str) or not n]:
        raise SignatureError(
            f"the names {wrong} of arguments of {program.entry!r} are no names",
            remedy="Give names as text; a mapping leaves those out that stay.",
        )
    if len(chosen) != len(plain) or len(set(chosen)) != len(chosen):
        raise SignatureError(
            f"{program.entry!r} of the module has {len(plain)} arguments, got the names {chosen}",
            remedy=f"Give {len(plain)} different names.",
        )
    types = zip(chosen, program.in_types, strict=True)
    return [ArgSpec(name, shape, dtype) for name, (shape, dtype) in types]


def _weights(
    specs: Mapping[str, Sequence[ArgSpec]], params: Mapping[str, Value]
) -> dict[str, np.ndarray]:
    """The values of arguments by name, compared with their types in each function.

    **Raises:** `SignatureError` that lists all mismatches.
    """
    problems: list[str] = []
    values: dict[str, np.ndarray] = {}
    for name, given in params.items():
        places = [(f, s) for f, all_specs in specs.items() for s in all_specs if s.name == name]
        places = places or [
            (f, all_specs[int(name[3:])])
            for f, all_specs in specs.items()
            if _PLACE.fullmatch(name) and int(name[3:]) < len(all_specs)
        ]
        if not places:
            problems.append(f"the module has no argument {name!r}")
            continue
        if len(places) > 1 and _PLACE.fullmatch(name):
            functions = [f for f, _ in places]
            problems.append(f"{name!r} is a position in each of {functions}; give names")
            continue
        try:
            value = np.asarray(given)
        except (TypeError, ValueError, RuntimeError) as error:
            problems.append(f"{name!r} is not an array: {error}")
            continue
        for function, spec in places:
            if value.shape != spec.shape or value.dtype != spec.dtype:
                got, want = (type_text(x.dtype, x.shape) for x in (value, spec))
                of = f" by {function!r}" if len(specs) > 1 else ""
                problems.append(f"{name!r} is {got}, expected {want}{of}")
            values[spec.name] = value
    if problems:
        known = {f: [s.name for s in all_specs] for f, all_specs in specs.items()}
        arguments = known if len(known) > 1 else next(iter(known.values()))
        lines = "".join(f"\n  - {p}" for p in problems)
        raise SignatureError(
            f"the weights do not fit the module, whose arguments are {arguments}:{lines}",
            remedy="Give arrays of these names and types, or other `names`.",
        )
    return values


def given_names(program: Program) -> tuple[str, ...] | None:
    """Names of the arguments from their locations; `None` unless all of them have one."""
    names = argument_locations(program)
    usable = all(n.isidentifier() for n in names) and len(set(names)) == len(names)
    return tuple(names) if usable else None
