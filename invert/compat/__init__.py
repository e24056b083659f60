"""Functions under the names and signatures of other packages."""

from typing import TYPE_CHECKING
from typing import Any as _Any

if TYPE_CHECKING:
    from invert.compat import tf2jax as tf2jax


def __getattr__(name: str) -> _Any:
    if name != "tf2jax":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return importlib.import_module(f"{__name__}.{name}")
