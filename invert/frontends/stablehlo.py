"""StableHLO modules: text, bytecode and portable artifacts."""

from __future__ import annotations

import os
from pathlib import Path

import jax

from invert._config import Config
from invert._entry import ArgSpec, EntryPoint
from invert._errors import MalformedModelError
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


def entry_point(source: Source, *, config: Config) -> EntryPoint:
    """The entry point of a StableHLO module; arguments and results are flat."""
    program = Program.from_bytes(_blob_of(source), config=config)
    names = given_names(program) or tuple(f"arg{i}" for i in range(len(program.in_types)))
    args = tuple(
        ArgSpec(name, shape, dtype)
        for name, (shape, dtype) in zip(names, program.in_types, strict=True)
    )
    n = len(program.out_types)
    tree = jax.tree_util.tree_structure(0 if n == 1 else tuple(range(n)))
    return EntryPoint(
        name=program.entry,
        fn=lambda params, *values: program.on_devices(*values),
        args=args,
        kwargs={},
        arg_names=names,
        out_tree=tree,
        source="a StableHLO module",
        problems=tuple(program.problems),
        ops=program.ops,
        shardings=program.shardings,
    )


def given_names(program: Program) -> tuple[str, ...] | None:
    """Names of the arguments from their locations; `None` unless all of them have one."""
    block = program.functions[program.entry].regions[0].blocks[0]
    arguments = list(block.arguments)[int(program.takes_platform_index) :]
    names = [location_name(a.location) for a in arguments]
    usable = all(n.isidentifier() for n in names) and len(set(names)) == len(names)
    return tuple(names) if usable else None
