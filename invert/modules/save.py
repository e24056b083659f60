"""Recovered modules on disk: a Python file, its weights and a README."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np

from invert._errors import EmissionError, MalformedModelError, MissingDependencyError, SaveError
from invert.modules.methods import Methods
from invert.modules.module import Module

_CODE, _WEIGHTS, _PAGE = "model.py", "weights.safetensors", "README.md"
_INDEX = f"{_WEIGHTS}.index.json"
_SHARD = re.compile(r"weights-\d{5,}-of-\d{5,}\.safetensors")

# Dtypes that safetensors stores as NumPy arrays; others are written as bytes.
_PLAIN = frozenset(
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 bfloat16 float16 float32 float64 "
    "complex64".split()
)

_loaded = itertools.count()
_made = itertools.count()


def save(
    module: Module | Methods | eqx.Module,
    directory: str | os.PathLike[str],
    *,
    max_shard_size: int | str = "5GB",
    layers: str | Sequence[str] = (),
    typecheck: bool = False,
    state: eqx.nn.State | None = None,
) -> None:
    """Saves a module as Python source with its weights, for use without `invert`.

    The directory holds `model.py`, `weights.safetensors` and `README.md`. The Python file needs
    jax, equinox, jaxtyping and safetensors: `import model; model.load("weights.safetensors")`.
    Larger weights are split into `weights-00001-of-00004.safetensors` and so on, with an index in
    `weights.safetensors.index.json`; `load` takes the same name then.

    **Arguments:**

    - `module`: a recovered module, or its `model`, also after its arrays have changed.
    - `directory`: created if missing; files of these names are replaced.
    - `max_shard_size`: the most bytes of arrays in one file, as a number or as text such as
        `"500MB"` or `"2GiB"`. A single array may be larger.
    - `layers`: how the layers of a recovered module are written, see `Module.emit`. Stacked layers
        are saved as stacked arrays.
    - `typecheck`: whether every call of the saved module checks shapes and dtypes, see
        `Module.emit`. The Python file needs beartype then.
    - `state`: the initial state of the loaded module, if it has one; by default that of
        `eqx.nn.State(module)`.

    All files are written before the first of them is moved to its place.

    **Raises:** `EmissionError` where the program has no text, or the module is not one that
        `invert` has written; `SaveError` where the disk is full or the directory is not writable;
        `ValueError` where `max_shard_size` is not a size, or `layers` is not a style, or where
        `layers` or `typecheck` is given for a module that is already written.
    """
    limit = byte_count(max_shard_size)
    if isinstance(module, (Module, Methods)):
        model: eqx.Module = module.emit(layers=layers, typecheck=typecheck).model
    elif layers or typecheck:
        raise ValueError(
            f"{type(module).__name__} is already written, so layers and typecheck cannot be "
            "chosen; pass them with the recovered module"
        )
    else:
        model = module
    namespace = sys.modules.get(type(model).__module__)
    source = getattr(namespace, "__source__", None)
    if source is None:
        raise EmissionError(
            f"{type(model).__name__} is not a module that invert has written; save a recovered "
            "module or its `model`"
        )
    if not hasattr(namespace, "load"):
        raise ValueError(
            f"{type(model).__name__} was written with loader=False, so its file could not read "
            "weights; save the recovered module, or emit it with the loader"
        )
    arrays = arrays_of(model, state)
    where = Path(directory)
    try:
        with _replacing(where) as made:
            (made / _CODE).write_text(source, encoding="utf-8")
            (made / _PAGE).write_text(getattr(namespace, "__page__", ""), encoding="utf-8")
            _write_weights(arrays, made, limit)
    except OSError as error:
        reason = f"{where} cannot be written and is unchanged: {error.strerror or error}"
        raise SaveError(reason) from error


@contextlib.contextmanager
def _replacing(where: Path) -> Iterator[Path]:
    """A folder whose files are moved to `where` once all of them are written."""
    exists = where.is_dir()
    # On the same disk, so that moving is renaming.
    beside = where if exists else where.absolute().parent
    beside.mkdir(parents=True, exist_ok=True)
    made = beside / f".{where.name}-{os.getpid()}-{next(_made)}"
    made.mkdir()
    try:
        yield made
        if exists:
            # The code goes first and comes last, so that no half-written module is loaded.
            for path in (where / _CODE, where / _INDEX, *weight_files(where)):
                path.unlink(missing_ok=True)
            for path in sorted(made.iterdir(), key=lambda path: path.name == _CODE):
                path.replace(where / path.name)
        else:
            made.rename(where)
    finally:
        shutil.rmtree(made, ignore_errors=True)


_UNITS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


def byte_count(size: int | str) -> int:
    """A number of bytes from `"500MB"` (powers of 1000) or `"2GiB"` (powers of 1024).

    **Raises:** `ValueError` where it is not a positive size.
    """
    text = str(size)
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?\s*", text, re.IGNORECASE)
    if match is None:
        raise ValueError(f"{text!r} is not a size; write a number of bytes, or as in '500MB'")
    number, unit, binary = match.groups()
    count = int(float(number) * (1024 if binary else 1000) ** _UNITS[unit.upper()])
    if count < 1:
        raise ValueError(f"{text!r} is not a size: it is less than one byte")
    return count


def arrays_of(model: eqx.Module, state: eqx.nn.State | None = None) -> dict[str, Any]:
    """The arrays of a module by their paths, such as `encoder.layer_0.kernel`.

    **Raises:** `EmissionError` where a value of the state has been taken out of the module.
    """
    leaves = jax.tree_util.tree_leaves_with_path(model, is_leaf=_is_index)
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): _value(v, state)
        for path, v in leaves
    }


def _value(leaf: Any, state: eqx.nn.State | None) -> Any:
    if not _is_index(leaf):
        return leaf
    if state is not None:
        # A session without x64 has narrowed the value.
        held = state.get(leaf)
        return np.asarray(held).astype(getattr(leaf.init, "dtype", held.dtype))
    if not eqx.is_array_like(leaf.init):
        raise EmissionError("the module no longer holds the values of its state; pass state=...")
    return leaf.init


def _is_index(x: object) -> bool:
    return isinstance(x, eqx.nn.StateIndex)


def _write_weights(arrays: Mapping[str, Any], where: Path, limit: int) -> None:
    """Writes the arrays into one file or several."""
    shards = _shards(arrays, limit)
    count = len(shards)
    stem, suffix = _WEIGHTS.split(".")
    names = [_WEIGHTS]
    if count > 1:
        names = [f"{stem}-{i:05}-of-{count:05}.{suffix}" for i in range(1, count + 1)]
    for name, shard in zip(names, shards, strict=True):
        _write({n: np.asarray(arrays[n]) for n in shard}, where / name)
    if count > 1:
        index = {
            "metadata": {"total_size": sum(a.nbytes for a in arrays.values())},
            "weight_map": {
                n: name for name, shard in zip(names, shards, strict=True) for n in shard
            },
        }
        (where / _INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _shards(arrays: Mapping[str, Any], limit: int) -> list[list[str]]:
    """The names of the arrays in order, split into shards of at most `limit` bytes."""
    shards: list[list[str]] = [[]]
    filled = 0
    for name, array in arrays.items():
        if shards[-1] and filled + array.nbytes > limit:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += array.nbytes
    return shards


def _write(tensors: Mapping[str, np.ndarray], path: Path) -> None:
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    kinds: dict[str, str] = {}
    plain: dict[str, np.ndarray] = {}
    for name, value in tensors.items():
        value = np.ascontiguousarray(value).reshape(value.shape)
        if value.dtype.name not in _PLAIN:
            kinds[name] = value.dtype.name
            value = value[..., None].view(np.uint8)
        plain[name] = value
    try:
        save_file(plain, path, metadata=kinds or None)
    except SafetensorError as error:
        raise OSError(str(error)) from error


def is_saved(directory: str | os.PathLike[str]) -> bool:
    """Whether a directory holds a module that `save` has written."""
    where = Path(directory)
    # A SavedModel is data, even if a `model.py` lies beside it.
    if (where / "saved_model.pb").exists():
        return False
    weights = any((where / name).is_file() for name in (_WEIGHTS, _INDEX))
    return weights and (where / _CODE).is_file()


def weight_files(directory: str | os.PathLike[str]) -> list[Path]:
    """The files that hold the weights of a saved module."""
    where = Path(directory)
    return sorted(p for p in where.iterdir() if p.name == _WEIGHTS or _SHARD.fullmatch(p.name))


def load_saved(directory: str | os.PathLike[str]) -> eqx.Module:
    """Reads a module that `save` has written. This runs `model.py`, as importing it does.

    **Raises:** `MalformedModelError` where the directory has no such module, or its files are
        damaged or do not fit each other; `MissingDependencyError`.
    """
    where = Path(directory)
    if not is_saved(where):
        raise MalformedModelError(f"{where} has no {_CODE} beside {_WEIGHTS} or {_INDEX}")
    name = f"invert_saved_{next(_loaded)}"
    code, page = where / _CODE, where / _PAGE
    spec = importlib.util.spec_from_file_location(name, code)
    assert spec is not None and spec.loader is not None
    namespace: Any = importlib.util.module_from_spec(spec)
    sys.modules[name] = namespace
    try:
        namespace.__source__ = code.read_text(encoding="utf-8")
        namespace.__page__ = page.read_text(encoding="utf-8") if page.is_file() else ""
        spec.loader.exec_module(namespace)
        read = namespace.load
    # What running damaged code may raise.
    except (
        ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, NameError,
        OSError, RuntimeError, SyntaxError, TypeError, ValueError,
    ) as error:  # fmt: skip
        del sys.modules[name]
        if isinstance(error, ModuleNotFoundError):
            text = f"{code} needs {error.name}: pip install {error.name}"
            raise MissingDependencyError(text) from error
        raise MalformedModelError(f"{code} is damaged: {type(error).__name__}: {error}") from error
    try:
        return read(where / _WEIGHTS)
    except ValueError as error:
        raise MalformedModelError(f"{code} cannot be loaded with its weights: {error}") from error
