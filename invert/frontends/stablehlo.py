"""StableHLO modules: text, bytecode and portable artifacts."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from invert._config import Config
from invert._entry import ArgSpec, EntryPoint, Param
from invert._errors import MalformedModelError, SignatureError
from invert.stablehlo.ops.attributes import (
    location_name,
)
from invert.stablehlo.program import Program

# What holds a StableHLO module.
Source = bytes | str | os.PathLike[str] | jax.stages.Lowered


def _blob_of(source: Source) -> bytes | str:
    """The bytes or text of a module.

    **Raises:** `MalformedModelError` where a path cannot be read.
    """
    if isinstance(source, jax.stages.Lowered):
        return source.as_text(debug_info=True)  # with the names of the arguments
    if not isinstance(source, os.PathLike):
        return source
    path = Path(source)
    try:
        return path.read_bytes()
    except OSError as error:
        raise MalformedModelError(f"{path} cannot be read: {error.strerror}.") from error


def entry_point(
    source: Source,
    *,
    config: Config,
    params: Mapping[str, Any] | None = None,
    names: Mapping[str, str] | Sequence[str] | None = None,
) -> EntryPoint:
    """The entry point of a StableHLO module; arguments and results are flat.

    **Arguments:**

    - `params`: values of arguments that are weights, by name.
    - `names`: other names of the arguments: of all in their order, or by `arg0`, `arg1`, ... or the
        names that the module has for them.

    **Raises:** `MalformedModelError`; `SignatureError` where names or values do not fit.
    """
    program = Program.from_bytes(_blob_of(source), config=config)
    specs = _named(program, names)
    values = _weights(specs, params or {})
    free = [spec for spec in specs if spec.name not in values]
    weights = [spec.name for spec in specs if spec.name in values]

    def fn(held: Sequence[Any], *given: Any) -> list[Any]:
        at, rest = dict(zip(weights, held, strict=True)), iter(given)
        return program.on_devices(*(at[s.name] if s.name in at else next(rest) for s in specs))

    n = len(program.out_types)
    tree = jax.tree_util.tree_structure(0 if n == 1 else tuple(range(n)))
    return EntryPoint(
        name=program.entry,
        fn=fn,
        args=tuple(free),
        kwargs={},
        arg_names=tuple(spec.name for spec in free),
        params=tuple(
            Param(n, values[n], trainable=jax.numpy.issubdtype(values[n].dtype, np.inexact))
            for n in weights
        ),
        out_tree=tree,
        source="a StableHLO module",
        results=tuple(
            ArgSpec(f"out{i}", shape, dtype) for i, (shape, dtype) in enumerate(program.out_types)
        ),
        problems=tuple(program.problems),
        ops=program.ops,
        shardings=program.shardings,
    )


def _named(program: Program, names: Mapping[str, str] | Sequence[str] | None) -> list[ArgSpec]:
    """The arguments of a program, by the names that they are given."""
    plain = [f"arg{i}" for i in range(len(program.in_types))]
    own = list(given_names(program) or plain)
    if isinstance(names, Mapping):
        if unknown := [n for n in names if n not in own and n not in plain]:
            raise SignatureError(f"the module has no arguments {unknown}; it has {own}")
        found = [names.get(o, names.get(p, o)) for o, p in zip(own, plain, strict=True)]
    else:
        found = own if names is None else list(names)
    if len(found) != len(plain) or len(set(found)) != len(found):
        raise SignatureError(
            f"the module has {len(plain)} arguments, and needs as many different names; "
            f"given are {found}"
        )
    types = zip(found, program.in_types, strict=True)
    return [ArgSpec(name, shape, dtype) for name, (shape, dtype) in types]


def _weights(specs: Sequence[ArgSpec], params: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The values of arguments, compared with their types.

    **Raises:** `SignatureError` with all that does not fit.
    """
    known = {spec.name: spec for spec in specs}
    problems: list[str] = []
    values: dict[str, np.ndarray] = {}
    for name, given in params.items():
        if (spec := known.get(name)) is None:
            problems.append(f"there is no argument {name!r}")
            continue
        try:
            value = np.asarray(given)
        except (TypeError, ValueError, RuntimeError) as error:
            problems.append(f"{name!r} is not an array: {error}")
            continue
        if value.shape != spec.shape or value.dtype != spec.dtype:
            want = f"{spec.dtype}{list(spec.shape)}"
            problems.append(f"{name!r} is {value.dtype}{list(value.shape)}, expected {want}")
        values[name] = value
    if problems:
        lines = "".join(f"\n  - {p}" for p in problems)
        raise SignatureError(
            f"the weights do not fit the module, whose arguments are {list(known)}:{lines}"
        )
    return values


def given_names(program: Program) -> tuple[str, ...] | None:
    """Names of the arguments from their locations; `None` unless all of them have one."""
    block = program.functions[program.entry].regions[0].blocks[0]
    arguments = list(block.arguments)[int(program.takes_platform_index) :]
    names = [location_name(a.location) for a in arguments]
    usable = all(n.isidentifier() for n in names) and len(set(names)) == len(names)
    return tuple(names) if usable else None
