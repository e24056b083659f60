"""Recovered modules on disk: a Python file, its weights and a README."""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import itertools
import json
import os
import re
import shutil
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from zlib import crc32

import equinox as eqx
import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from invert._errors import (
    EmissionError,
    MalformedModelError,
    MeshError,
    MissingDependencyError,
    SaveError,
    unreadable,
)
from invert._private.jax import is_tracer
from invert.emission import is_index
from invert.ir.avals import type_of_key, type_text
from invert.ir.types import Value
from invert.modules import placement
from invert.modules.methods import Methods
from invert.modules.module import Module
from invert.modules.texts import with_loader

_CODE, _WEIGHTS, _PAGE = "model.py", "weights.safetensors", "README.md"
_INDEX = f"{_WEIGHTS}.index.json"
_SHARD = re.compile(r"weights-\d{5,}-of-\d{5,}\.safetensors")

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
    """Save a module as Python source with its weights, for use without `invert`.

    The directory holds `model.py`, `weights.safetensors` and `README.md`. The Python file needs
    jax, equinox, jaxtyping and safetensors: `import model; model.load()`. Larger weights are split
    into `weights-00001-of-00004.safetensors` and so on, with an index in
    `weights.safetensors.index.json`; `load` takes the same name then.

    **Arguments:**

    - `module`: a recovered module, or its `model`, also after its arrays have changed.
    - `directory`: created if missing; files of these names are replaced once all are written.
    - `max_shard_size`: the most bytes of arrays in one file, as a number or as text such as
        `"500MB"` or `"2GiB"`. A single array may be larger.
    - `layers`: how the layers of a recovered module are written, see `Module.emit`. Stacked layers
        are saved as stacked arrays.
    - `typecheck`: whether every call of the saved module checks shapes and dtypes, see
        `Module.emit`. The Python file then needs beartype.
    - `state`: the initial state of the loaded module, if it has one; by default that of
        `eqx.nn.State(module)`.

    **Raises:** `EmissionError` if the program has no text, or the module was not written by
    `invert`; `SaveError` if the disk is full, the directory is not writable, or arrays have changed
    so that the source could not read them; `ValueError` if `max_shard_size` is not a size, or
    `layers` is not a style, or one of `layers` and `typecheck` is given for a written module.

    ??? example

        ```python
        import invert

        module = invert.load("saved_model")
        invert.save(module, "recovered", max_shard_size="500MB")
        again = invert.load("recovered")
        ```
    """
    limit = byte_count(max_shard_size)
    model = _written(module, layers, typecheck)
    source, page = _texts(model)
    arrays = _readable_arrays(model, state)
    where = Path(directory)
    try:
        where.lstat()
    except ValueError as error:  # characters that no path has
        remedy = "Save elsewhere."
        raise SaveError(f"{str(where)!r:.99} is not a path: {error}", remedy=remedy) from error
    except OSError:
        pass  # it need not exist
    try:
        with _replacing(where) as made:
            (made / _CODE).write_text(source, encoding="utf-8")
            (made / _PAGE).write_text(page, encoding="utf-8")
            _write_weights(arrays, made, limit)
    except OSError as error:
        raise SaveError(
            f"{where} cannot be written and is unchanged: {error.strerror or error}",
            remedy="Check disk space and permissions, or save elsewhere.",
        ) from error


def _written(
    module: Module | Methods | eqx.Module, layers: str | Sequence[str], typecheck: bool
) -> eqx.Module:
    """The written module: emitted from a converted one, or the module itself."""
    if isinstance(module, (Module, Methods)):
        return module.emit(layers=layers, typecheck=typecheck).model
    if layers or typecheck:
        raise ValueError(
            f"{type(module).__name__} is already written, so layers and typecheck cannot be "
            "chosen; pass them with the recovered module"
        )
    return module


def _texts(model: eqx.Module) -> tuple[str, str]:
    """The source of an emitted module, and its README."""
    namespace = sys.modules.get(type(model).__module__)
    if namespace is None or not hasattr(namespace, "__source__"):
        raise EmissionError(
            f"{type(model).__name__} is not a module written by invert",
            remedy="Save a recovered module or its `model`.",
        )
    return with_loader(namespace), getattr(namespace, "__page__", "")


def _readable_arrays(model: eqx.Module, state: eqx.nn.State | None) -> dict[str, Value]:
    """The arrays of a module, which the `load` of its own source can read."""
    arrays = arrays_of(model, state)
    if wrong := list(_unreadable(model, arrays)):
        raise SaveError(
            f"the source of {type(model).__name__} could not read the module's current arrays: "
            f"{'; '.join(wrong)}",
            remedy=(
                "Its classes are those of the original: edit model.py, or write the arrays with "
                "equinox.tree_serialise_leaves."
            ),
        )
    return arrays


def _unreadable(model: eqx.Module, arrays: Mapping[str, Value]) -> Iterator[str]:
    """Reasons why the function `load` of an emitted file would refuse these arrays."""
    namespace: ModuleType = sys.modules[type(model).__module__]
    kinds: dict[str, type] = {}
    if older := hasattr(namespace, "_read"):  # written before classes had an `__init__`
        namespace._read(type(model), kinds.setdefault)
    else:
        with_key = "key" in inspect.signature(type(model)).parameters
        with jax.enable_x64(True):
            keys = {"key": type_of_key()} if with_key else {}
            kinds = arrays_of(eqx.filter_eval_shape(type(model), **keys))
    for name in [*kinds, *(n for n in arrays if n not in kinds)]:
        if name not in arrays:
            yield f"{name} is missing"
        elif name not in kinds:
            yield f"{name} is not in the source"
        elif not hasattr(arrays[name], "dtype"):
            yield f"{name} is a {type(arrays[name]).__name__}, not an array"
        elif is_tracer(arrays[name]):
            yield f"{name} is traced: call save outside of jax.jit and derivatives"
        else:
            array, kind = arrays[name], kinds[name]
            fits = getattr(namespace, "_fits", lambda a, b: a.shape == b.shape)
            if not fits(array, kind) and str(array.dtype) in _CODES:
                known = f"[{', '.join(kind.dim_str.split())}]" if older else list(kind.shape)
                yield f"{name} is {type_text(array.dtype, array.shape)}, expected {known}"


@contextlib.contextmanager
def _replacing(where: Path) -> Iterator[Path]:
    """A folder whose files are moved to `where` once all of them are written."""
    exists = where.is_dir()
    # On the same disk, so that moving is a rename.
    beside = where if exists else where.absolute().parent
    beside.mkdir(parents=True, exist_ok=True)
    made = beside / f".{where.name}-{os.getpid()}-{next(_made)}"
    made.mkdir()
    try:
        yield made
        if exists:
            # The old code is removed first and the new code moved last, so that no half-written
            # module is loaded.
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

    **Raises:** `ValueError` if it is not a positive size.
    """
    text = str(size)
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?\s*", text, re.IGNORECASE)
    if match is None:
        raise ValueError(f"{text!r} is not a size; write a number of bytes, or '500MB'")
    number, unit, binary = match.groups()
    count = int(float(number) * (1024 if binary else 1000) ** _UNITS[unit.upper()])
    if count < 1:
        raise ValueError(f"{text!r} is not a size: it is less than one byte")
    return count


def arrays_of(model: eqx.Module, state: eqx.nn.State | None = None) -> dict[str, Value]:
    """The arrays of a module by their paths, such as `encoder.layer_0.kernel`.

    **Raises:** `EmissionError` if a state value has been taken out of the module.
    """
    leaves = jax.tree_util.tree_leaves_with_path(model, is_leaf=is_index)
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): _value(v, state)
        for path, v in leaves
    }


def _value(leaf: Value, state: eqx.nn.State | None) -> Value:
    if not is_index(leaf):
        return leaf
    if state is not None:
        # Without x64 the value was narrowed.
        held = state.get(leaf)
        return np.asarray(held).astype(getattr(leaf.init, "dtype", held.dtype))
    if not eqx.is_array_like(leaf.init) and not isinstance(leaf.init, jax.ShapeDtypeStruct):
        raise EmissionError(
            "the module no longer holds the values of its state", remedy="Pass state=..."
        )
    return leaf.init


def _write_weights(arrays: Mapping[str, Value], where: Path, limit: int) -> None:
    """Write the arrays into one file or several."""
    shards = _shards(arrays, limit)
    count = len(shards)
    stem, suffix = _WEIGHTS.split(".")
    names = [_WEIGHTS]
    if count > 1:
        names = [f"{stem}-{i:05}-of-{count:05}.{suffix}" for i in range(1, count + 1)]
    parts = [{n: arrays[n] for n in shard} for shard in shards]
    files = [where / name for name in names]
    sums = [_write(part, file) for part, file in zip(parts, files, strict=True)]
    of_all = crc32(json.dumps(sums).encode())
    for part, file, own in zip(parts, files, sums, strict=True):
        with file.open("r+b") as opened:
            opened.write(_header(part, own, of_all)[0])
    if count > 1:
        index = {
            "metadata": {"total_size": sum(a.nbytes for a in arrays.values())},
            "weight_map": {
                n: name for name, shard in zip(names, shards, strict=True) for n in shard
            },
        }
        (where / _INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _shards(arrays: Mapping[str, Value], limit: int) -> list[list[str]]:
    """Split the names of arrays, in order, into shards of at most `limit` bytes."""
    shards: list[list[str]] = [[]]
    filled = 0
    for name, array in arrays.items():
        if shards[-1] and filled + array.nbytes > limit:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += array.nbytes
    return shards


# Names of dtypes in the format.
_CODES = {
    "bool": "BOOL", "int8": "I8", "int16": "I16", "int32": "I32", "int64": "I64", "uint8": "U8",
    "uint16": "U16", "uint32": "U32", "uint64": "U64", "bfloat16": "BF16", "float16": "F16",
    "float32": "F32", "float64": "F64", "complex64": "C64",
}  # fmt: skip


def _header(
    tensors: Mapping[str, Value], sums: Mapping[str, int], of_all: int
) -> tuple[bytes, dict[str, int]]:
    """The header of a file, and where its arrays begin.

    **Arguments:**

    - `sums`: checksums of the arrays; `of_all`: of all in all files, to tell saves apart.
    """
    notes = {"crc32 of all": f"{of_all:08x}"}
    header: dict[str, object] = {"__metadata__": notes}
    begins: dict[str, int] = {}
    end = 0
    # The widest types first, so that each array is aligned.
    for name in sorted(tensors, key=lambda n: (-tensors[n].dtype.itemsize, n)):
        value = tensors[name]
        shape, code = list(value.shape), _CODES.get(value.dtype.name)
        if code is None:
            notes[name] = value.dtype.name
            shape, code = [*shape, value.dtype.itemsize], "U8"
        notes[f"crc32 {name}"] = f"{sums[name]:08x}"
        begins[name], end = end, end + value.nbytes
        header[name] = {"dtype": code, "shape": shape, "data_offsets": [begins[name], end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    start = 8 + len(text)
    return struct.pack("<Q", len(text)) + text, {n: start + i for n, i in begins.items()}


def _write(tensors: Mapping[str, Value], path: Path) -> dict[str, int]:
    """Write arrays in order; one on several devices is written part by part.

    **Returns:** their checksums, which the header does not have yet.
    """
    header, begins = _header(tensors, dict.fromkeys(tensors, 0), 0)
    with path.open("wb") as file:
        file.write(header)
        file.flush()
        _allocate(file.fileno(), len(header) + sum(v.nbytes for v in tensors.values()))
    return {
        name: _write_array(value, path, begins[name]) if value.nbytes else 0
        for name, value in tensors.items()
    }


def _allocate(file: int, size: int) -> None:
    """Allocate a file; writing to mapped memory would not report a full disk."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)
    else:
        os.truncate(file, size)


def _write_array(value: Value, path: Path, offset: int) -> int:
    """Write an array at its place; return its checksum."""
    parts = [((slice(None),) * value.ndim, value)]
    if isinstance(value, jax.Array) and not value.is_fully_replicated:
        if not value.is_fully_addressable:
            raise SaveError(
                "the module has arrays on devices of other processes",
                remedy=(
                    "Save it in a process that has all devices, or write its arrays with a library "
                    "that saves from several, such as orbax.checkpoint."
                ),
            )
        parts = [(s.index, s.data) for s in value.addressable_shards if s.replica_id == 0]
    whole = np.memmap(path, np.dtype(value.dtype), "r+", offset, value.shape or (1,))
    for index, part in parts:
        whole.reshape(value.shape)[index] = np.asarray(part)
    whole.flush()
    return crc32(whole.reshape(-1).view(np.uint8).data)


def has_parts(where: Path) -> bool:
    """Return whether a directory holds files of a module that `save` has written."""
    # A SavedModel is data, even if there is a `model.py` next to it.
    if (where / "saved_model.pb").exists():
        return False
    return any((where / name).is_file() for name in (_WEIGHTS, _INDEX, _CODE))


def weight_files(directory: str | os.PathLike[str]) -> list[Path]:
    """The files that hold the weights of a saved module."""
    where = Path(directory)
    return sorted(p for p in where.iterdir() if p.name == _WEIGHTS or _SHARD.fullmatch(p.name))


# Exceptions that damaged code may raise. It runs without code of this package.
_OF_DAMAGED_CODE = (
    ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, NameError, OSError,
    RuntimeError, SyntaxError, TypeError, ValueError,
)  # fmt: skip


def load_saved(
    directory: str | os.PathLike[str],
    mesh: Mesh | None = None,
    shardings: Mapping[str, PartitionSpec] | None = None,
) -> eqx.Module:
    """Read a module written by `save`. This runs `model.py`, as importing it does.

    **Arguments:**

    - `mesh`, `shardings`: as for `invert.load`.

    **Raises:** `MalformedModelError` if the directory has no such module, or its files are
    damaged or do not fit each other; `MeshError` if a spec does not fit an array or the mesh;
    `MissingDependencyError`.
    """
    where = Path(directory)
    weights = any((where / name).is_file() for name in (_WEIGHTS, _INDEX))
    if not (weights and (where / _CODE).is_file()):
        raise MalformedModelError(
            f"{where} has no {_CODE} next to {_WEIGHTS} or {_INDEX}",
            remedy="Pass a directory that invert.save wrote.",
        )
    name = f"invert_saved_{next(_loaded)}"
    code, page = where / _CODE, where / _PAGE
    spec = importlib.util.spec_from_file_location(name, code)
    assert spec is not None and spec.loader is not None
    namespace = importlib.util.module_from_spec(spec)
    sys.modules[name] = namespace
    try:
        # The page is only shown, so damage to it is, too.
        shown = page.read_text(encoding="utf-8", errors="replace") if page.is_file() else ""
        vars(namespace).update(__source__=code.read_text(encoding="utf-8"), __page__=shown)
        spec.loader.exec_module(namespace)
        read = namespace.load
    except _OF_DAMAGED_CODE as error:
        del sys.modules[name]
        if isinstance(error, ModuleNotFoundError):
            raise MissingDependencyError(
                f"{code} needs {error.name}", remedy=f"Install it: pip install {error.name}"
            ) from error
        if isinstance(error, OSError) and error.filename:
            raise unreadable(error.filename, error.strerror) from error
        raise MalformedModelError(f"{code} is damaged: {type(error).__name__}: {error}") from error
    if mesh is not None and "mesh" not in inspect.signature(read).parameters:
        raise MeshError(
            f"{code} does not support meshes", remedy="Save the module again with this version."
        )
    given: dict[str, object] = {}
    if mesh is not None:
        specs = getattr(namespace, "SPECS", {}) if shardings is None else dict(shardings)
        _check_mesh(where, mesh, specs)
        given = {"mesh": mesh, "shardings": specs}
    try:
        with jax.transfer_guard("allow"):  # the caller asks for arrays on a device
            return read(where / _WEIGHTS, **given)
    except _OF_DAMAGED_CODE as error:
        _check_readable(where)
        raise MalformedModelError(
            f"{code} cannot be loaded with its weights: {type(error).__name__}: {error}"
        ) from error


def _check_readable(where: Path) -> None:
    """Refuse weights that may not be read, which safetensors says are missing."""
    for file in where.glob(f"{Path(_WEIGHTS).stem}*"):
        if not file.is_file():  # a pipe would be waited for
            continue
        try:
            file.open("rb").close()
        except OSError as error:
            raise unreadable(file, error.strerror) from error


def _check_mesh(where: Path, mesh: Mesh, specs: Mapping[str, PartitionSpec]) -> None:
    """Compare specs with the arrays in the files, reading only headers.

    **Raises:** `MeshError` if one does not fit.
    """
    from safetensors import SafetensorError, safe_open

    names: list[str] = []
    used: set[str] = set()
    for path in weight_files(where):
        try:
            file = safe_open(path, framework="numpy")
            kinds = file.metadata() or {}
            shapes = {n: file.get_slice(n).get_shape() for n in [*file.keys()]}
        except (OSError, SafetensorError) as error:
            raise MalformedModelError(f"{path} is damaged: {error}") from error
        for name, shape in shapes.items():
            names.append(name)
            pattern = next((p for p in specs if placement.fits(name, p)), None)
            if pattern is not None:
                used.add(pattern)
                sizes = shape[:-1] if name in kinds else shape
                placement.check_divides(name, sizes, specs[pattern], mesh)
    placement.check_patterns(specs, used, names)
