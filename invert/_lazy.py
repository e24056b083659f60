"""Lazy imports of parts of the package."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from types import ModuleType


def public(package: str, space: dict[str, object]) -> Callable[[str], object]:
    """The `__getattr__` of a package whose names are those of its module `_public`.

    **Arguments:**

    - `space`: the globals of the package, which cache the names found.
    """

    def find(name: str) -> object:
        if not name.startswith("_") and importlib.util.find_spec(f"{package}.{name}") is not None:
            return importlib.import_module(f"{package}.{name}")
        names = {} if name.startswith("_") else _names(package)
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        space[name] = names[name]
        return names[name]

    return find


def directory(package: str) -> Callable[[], list[str]]:
    """The `__dir__` of such a package."""
    return lambda: sorted({*_names(package), "compat", "patterns", "testing", "__version__"})


def submodules(package: str, *names: str) -> Callable[[str], object]:
    """The `__getattr__` of a package that imports these of its modules on first use."""

    def find(name: str) -> object:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return importlib.import_module(f"{package}.{name}")

    return find


def _names(package: str) -> dict[str, object]:
    module = importlib.import_module(f"{package}._public")
    return {
        name: value
        for name, value in vars(module).items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    }
