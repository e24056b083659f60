"""Recovered modules on disk: a Python file, the weights beside it, and a page about both."""

from __future__ import annotations

import importlib.util
import itertools
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np

from invert._errors import EmissionError, MalformedModelError
from invert._module import Module

_CODE, _WEIGHTS, _PAGE = "model.py", "weights.safetensors", "README.md"

# Types that safetensors writes and reads as NumPy arrays; others are written as bytes.
_PLAIN = frozenset(
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64".split()
)

_loaded = itertools.count()


def save(module: Module | eqx.Module, directory: str | os.PathLike[str]) -> None:
    """Saves a module as Python source with its weights, to be used without `invert`.

    The directory holds `model.py`, `weights.safetensors` and `README.md`. The Python file needs
    jax, equinox, jaxtyping and safetensors: `import model; model.load("weights.safetensors")`.

    **Arguments:**

    - `module`: a recovered module, or its `model`, also after its arrays have changed.
    - `directory`: made where it does not exist; files of these names are replaced.

    **Raises:** `EmissionError` where the program has no text, or the module is none of those.
    """
    model = module.model if isinstance(module, Module) else module
    namespace = sys.modules.get(type(model).__module__)
    source = getattr(namespace, "__source__", None)
    if source is None:
        raise EmissionError(
            f"{type(model).__name__} is no module that invert has written; save a recovered module "
            "or its `model`"
        )
    tensors = {name: np.asarray(value) for name, value in arrays_of(model).items()}
    page = getattr(namespace, "__page__", "")
    where = Path(directory)
    where.mkdir(parents=True, exist_ok=True)
    (where / _CODE).write_text(source, encoding="utf-8")
    (where / _PAGE).write_text(page, encoding="utf-8")
    _write(tensors, where / _WEIGHTS)


def arrays_of(model: eqx.Module) -> dict[str, Any]:
    """The arrays of a module, by where they are: `encoder.layer_0.kernel`."""
    leaves = jax.tree_util.tree_leaves_with_path(model)
    return {jax.tree_util.keystr(path).lstrip("."): value for path, value in leaves}


def _write(tensors: Mapping[str, np.ndarray], path: Path) -> None:
    from safetensors.numpy import save_file

    kinds: dict[str, str] = {}
    plain: dict[str, np.ndarray] = {}
    for name, value in tensors.items():
        value = np.ascontiguousarray(value).reshape(value.shape)
        if value.dtype.name not in _PLAIN:
            kinds[name] = value.dtype.name
            value = value[..., None].view(np.uint8)
        plain[name] = value
    save_file(plain, path, metadata=kinds or None)


def is_saved(directory: str | os.PathLike[str]) -> bool:
    """Whether a directory holds a module that `save` has written."""
    where = Path(directory)
    # What is a SavedModel is data, whatever lies beside it.
    if (where / "saved_model.pb").exists():
        return False
    return all((where / name).is_file() for name in (_CODE, _WEIGHTS))


def load_saved(directory: str | os.PathLike[str]) -> eqx.Module:
    """Reads back what `save` has written. This runs `model.py`, as importing it does.

    **Raises:** `MalformedModelError` where the directory does not hold such a module.
    """
    where = Path(directory)
    if not is_saved(where):
        raise MalformedModelError(f"{where} has no {_CODE} beside {_WEIGHTS}")
    name = f"invert_saved_{next(_loaded)}"
    spec = importlib.util.spec_from_file_location(name, where / _CODE)
    assert spec is not None and spec.loader is not None
    namespace: Any = importlib.util.module_from_spec(spec)
    sys.modules[name] = namespace
    spec.loader.exec_module(namespace)
    namespace.__source__ = (where / _CODE).read_text(encoding="utf-8")
    page = where / _PAGE
    namespace.__page__ = page.read_text(encoding="utf-8") if page.is_file() else ""
    return namespace.load(where / _WEIGHTS)
