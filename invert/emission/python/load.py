"""The only place where emitted text becomes code.

Only syntax trees built by this package are compiled, and the texts in pickles of its modules. Names
from files are identifiers by then, or string literals (see `naming.py`).
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
from typing import Any, SupportsIndex

from invert.emission.python import syntax

_numbers = itertools.count()

# Modules that pickles needed, by their text.
_texts: dict[str, types.ModuleType] = {}


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
    for value in list(vars(module).values()):
        if isinstance(value, type) and value.__module__ == module.__name__:
            value.__reduce_ex__ = _reduced  # pyright: ignore[reportAttributeAccessIssue]
    return module


def _reduced(self: object, protocol: SupportsIndex) -> tuple[object, ...]:
    """A pickle of an object holds the text of its class, which no other process has."""
    cls = type(self)
    module = sys.modules[cls.__module__]
    # Interned, so that a pickle holds it once.
    text = sys.intern("".join(linecache.getlines(str(module.__file__))))
    return _made, (text, cls.__module__, cls.__qualname__), dict(vars(self))


def _made(source: str, name: str, cls: str) -> object:
    """An object without fields, of a class of a text, which is loaded unless it has been."""
    made = sys.modules.get(name)
    if made is None or "".join(linecache.getlines(str(made.__file__))) != source:
        made = _texts.get(source)
    if made is None:
        made = _texts[source] = module_of(source, name)
    return object.__new__(getattr(made, cls))


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
