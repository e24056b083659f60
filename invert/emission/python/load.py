"""The only place where emitted text becomes code.

Only syntax trees built by this package are compiled. Names from files are identifiers by then, or
string literals (see `naming.py`).
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import itertools
import linecache
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from invert.emission.python import syntax

_numbers = itertools.count()


def function_of(
    arguments: list[str], expression: ast.expr, namespace: Mapping[str, object]
) -> Callable[..., Any]:
    """The function `lambda arguments: expression`."""
    node = syntax.lambda_of(arguments, expression)
    code = compile(ast.fix_missing_locations(ast.Expression(node)), "<emission>", "eval")
    # C code may import modules through these globals.
    names = {"__builtins__": builtins, **namespace}
    make: Callable[..., Any] = types.FunctionType(code, names)
    return make()


def module_of(source: str, name: str) -> types.ModuleType:
    """The text as an importable module whose lines are shown in tracebacks.

    If a module of that name exists, a number is appended.
    """
    number = next(_numbers)
    filename = f"<invert {name} {number}>"
    module = types.ModuleType(f"{name}_{number}" if name in sys.modules else name)
    module.__file__ = filename
    sys.modules[module.__name__] = module
    try:
        extend(module, source, filename)
    except BaseException:
        forget(module)
        raise
    return module


def extend(module: types.ModuleType, source: str, filename: str) -> None:
    """Run further text of a module, whose lines are shown in tracebacks too."""
    # `linecache.checkcache` keeps entries without a modification time.
    lines = source.splitlines(keepends=True)
    linecache.cache[filename] = (len(source), None, lines, filename)
    exec(compile(source, filename, "exec", dont_inherit=True), module.__dict__)  # noqa: S102


def forget(module: types.ModuleType) -> None:
    """Unregister a module of `module_of`."""
    sys.modules.pop(module.__name__, None)
    linecache.cache.pop(str(module.__file__), None)


@contextlib.contextmanager
def loading() -> Iterator[Callable[[str, str], types.ModuleType]]:
    """Yield `module_of` for drafts of a text.

    Each draft replaces the previous one, and an error unregisters the last. A draft with the text
    of the previous one is the same module: JAX never forgets the classes of another."""
    loaded: list[tuple[str, str, types.ModuleType]] = []

    def load(source: str, name: str) -> types.ModuleType:
        if not loaded or loaded[0][:2] != (source, name):
            while loaded:
                forget(loaded.pop()[2])
            loaded.append((source, name, module_of(source, name)))
        return loaded[0][2]

    try:
        yield load
    except BaseException:
        for *_, module in loaded:
            forget(module)
        raise
