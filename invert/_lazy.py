"""Parts of the package that few programs use, imported when they are first asked for."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any


def submodules(package: str, *names: str) -> Callable[[str], Any]:
    """The `__getattr__` of a package that finds these of its modules without an import."""

    def find(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return importlib.import_module(f"{package}.{name}")

    return find
