"""Reads `.keras` and `.h5` files, the two kinds that `model.save` of Keras writes.

Their configuration names the classes that Keras instantiates. Only classes of Keras itself are
allowed, and no functions, so that a file cannot choose what to import or run. Files of Keras 2 are
read by `tf_keras`: Keras 3 does not know many of the options that they hold.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import copy
import dataclasses
import importlib.util
import io
import json
import math
import os
import re
import sys
import zipfile
import zlib
from collections.abc import Callable, Hashable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from invert._config import Config
from invert._entry import EntryPoint
from invert._errors import (
    InvertError,
    MalformedModelError,
    MissingDependencyError,
    Problem,
    SignatureError,
    UnsupportedOpError,
    only_refusals,
)
from invert._private.tensorflow import TfObject, kept_name_scopes
from invert.frontends import hdf5_in_child, tf_function
from invert.frontends.keras_model import input_specs, own_class
from invert.tf.ops.node import import_tensorflow

_REMEDY = "Where the code is, run `model.export(directory)`, and convert the SavedModel."
_OWN = (
    f"Name your own classes in Config(custom_objects=...), or register them with Keras. {_REMEDY}"
)
# The configuration of a model is a few kilobytes of text; a larger one is not read.
_LARGEST_CONFIG = 1 << 28
_LONGEST_CAUSE = 1000
# Limits on the unpacked size: a multiple of the archive's size, plus a constant.
_RATIO, _SPARE = 100, 1 << 28
_WEIGHTS, _UNCHECKED = "model.weights.h5", "model.weights.npz"
_HDF5 = b"\x89HDF"
# The modules of Keras 3's own kinds of models, which HDF5 files leave out and archives name.
_MODULES = {"Functional": "keras.src.models.functional", "Model": "keras", "Sequential": "keras"}
# Classes of Keras that contain code, or read files named in their configuration.
_CODE = frozenset(
    """
    FlaxLayer JaxLayer Lambda TFSMLayer TensorFlowOpLayer TorchModuleWrapper __lambda__ __typespec__
    function
    """.split()
)
# Layers of Keras 2 that call a function of TensorFlow by name, and what they may call: functions of
# modules that only compute, and others on arrays. Some functions load libraries or write files.
_CALLS = ("TFOpLambda", "SlicingOpLambda")
_ON_ARRAYS = """
    argsort bitcast boolean_mask broadcast_to cast clip_by_norm clip_by_value concat
    convert_to_tensor eye expand_dims fill gather gather_nd identity meshgrid norm one_hot ones
    ones_like pad range rank realdiv repeat reshape reverse roll searchsorted sequence_mask shape
    size slice sort split squeeze stack stop_gradient strided_slice tensordot tile transpose
    unstack where zeros zeros_like
    """.split()
_CALLED = re.compile(
    rf"(compat\.v1\.)?((__operators__|image|linalg|math|nn|signal)\.\w+|{'|'.join(_ON_ARRAYS)})"
)
# Entries of a configuration that hold values, or name files that do.
_VALUES_OR_FILES = ("vocabulary", "idf_weights")


def entry_point(path: str | os.PathLike[str], *, config: Config, strict: bool = True) -> EntryPoint:
    """The entry point of a Keras model at inference.

    **Arguments:**

    - `path`: the `.keras` or HDF5 file.
    - `strict`: as in `tf_function.entry_point`.

    **Raises:** `MalformedModelError`; `UnsupportedOpError` if the model contains code;
    `SignatureError` if its inputs are not fixed; `MissingDependencyError`.
    """
    file = Path(path)
    model = load(file, config.custom_objects)
    specs = input_specs(model)
    if specs is None:
        raise SignatureError(f"{file}: the model does not declare its inputs", remedy=_REMEDY)

    def call(inputs: object) -> TfObject:
        with _errors_of_keras(file, "run"):
            return model(inputs, training=False)

    entry = tf_function.entry_point(call, (specs,), config=config, name=model.name, strict=strict)
    source = f"Keras model {file.name}"
    return dataclasses.replace(entry, source=source, kind=own_class(model))


def load(file: Path, custom_objects: Mapping[str, object] | None = None) -> TfObject:
    """The Keras model of an archive.

    **Arguments:**

    - `custom_objects`: classes and functions of the caller, by name.

    **Raises:** as `entry_point`.
    """
    config, version = _config_of(file)
    import_tensorflow()
    keras = _library(file, version)
    own = dict(custom_objects or {})

    def is_known(name: object) -> bool:
        return isinstance(name, str) and isinstance(
            keras.saving.get_registered_object(name, own), type
        )

    config_problems = _problems(config, "", is_known, keras.__name__)
    if problems := [*config_problems, *_content_problems(file)]:
        raise UnsupportedOpError(problems)
    if keras.__name__ == "tf_keras":
        size = _bytes_of_variables_in_keras_2(config, own, keras)
    else:
        size = _bytes_of_variables(config, own)
    _check_size(file, size)
    with _errors_of_keras(file, "load"):
        return keras.saving.load_model(file, custom_objects=own, compile=False, safe_mode=True)


def _library(file: Path, version: str) -> TfObject:
    """The library that reads files of a version: `keras`, or `tf_keras` for Keras 2.

    **Raises:** `MissingDependencyError`.
    """
    name, package = ("keras", "keras") if version.startswith("3.") else ("tf_keras", "tf-keras")
    try:
        keras = importlib.import_module(name)
    except ImportError as error:
        raise MissingDependencyError(
            f"{file} was written by Keras {version}, and needs {name}",
            remedy=f"Install it: pip install {package}",
        ) from error
    backend = keras.backend.backend()
    if backend != "tensorflow":
        raise MissingDependencyError(
            f"Keras runs on {backend} here, and {file} needs TensorFlow",
            remedy="Set KERAS_BACKEND=tensorflow.",
        )
    return keras


@contextlib.contextmanager
def _errors_of_keras(file: Path, verb: str) -> Iterator[None]:
    """Name the file in what Keras raises for a damaged configuration or weights that do not fit."""
    tf = import_tensorflow()
    try:
        with kept_name_scopes():
            yield
    except InvertError:
        raise
    except (
        ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, MemoryError,
        OSError, RuntimeError, TypeError, ValueError, zipfile.BadZipFile, zlib.error,
        tf.errors.OpError,
    ) as error:  # fmt: skip
        raise MalformedModelError(
            f"{file}: Keras cannot {verb} the model: {_cause(error)}",
            remedy="Name its own classes in Config(custom_objects=...), or save it as `.keras`.",
        ) from error


def _check_size(file: Path, size: int) -> None:
    """Refuse a configuration whose variables are far larger than the weights.

    **Raises:** `MalformedModelError`.
    """
    if size > _held(file):
        raise MalformedModelError(
            f"{file}: the variables of its configuration take {size} bytes, too many for this "
            "archive"
        )


def _held(file: Path) -> int:
    """The bytes that an archive may unpack to."""
    return _SPARE + _RATIO * file.stat().st_size


def _bytes_of_variables(config: object, own: Mapping[str, object]) -> int:
    """The bytes of the variables that a configuration makes; none gets a value.

    Those of its layers one by one where they do not fit together: Keras makes the variables of all
    layers before the first that does not fit. Layers that need values count nothing. In a thread of
    its own, since Keras numbers the layers of a thread.
    """
    import keras

    def count(part: object) -> int | None:
        with contextlib.suppress(Exception), keras.StatelessScope(initialize_variables=False):
            # Keras removes the parts of a configuration that it has read.
            part = copy.deepcopy(part)
            made = keras.saving.deserialize_keras_object(part, own, safe_mode=True)
            return sum(math.prod(v.shape) * np.dtype(v.dtype).itemsize for v in made.variables)
        return None

    def count_all() -> int:
        total = count(config)
        return sum(count(c) or 0 for c in _built(config)) if total is None else total

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(count_all).result()


def _bytes_of_variables_in_keras_2(
    config: object, own: Mapping[str, object], tf_keras: TfObject
) -> int:
    """As `_bytes_of_variables`, up to the first layer that does not fit."""
    tf = import_tensorflow()
    total = 0

    def create(make: Callable[..., TfObject], **options: object) -> TfObject:
        nonlocal total
        variable = make(**options)
        total += math.prod(variable.shape) * variable.dtype.size
        return variable

    with tf.Graph().as_default(), tf.variable_creator_scope(create), contextlib.suppress(Exception):
        tf_keras.models.model_from_config(copy.deepcopy(config), own)
    return total


def _built(config: object) -> Iterator[object]:
    """The outermost layers inside of a configuration that hold the shapes of their inputs."""
    pending = list(config.values()) if isinstance(config, dict) else []
    while pending:
        value = pending.pop()
        if isinstance(value, dict) and "build_config" in value:
            yield value
        elif isinstance(value, dict | list):
            pending += value.values() if isinstance(value, dict) else value


def _cause(error: Exception) -> str:
    """The innermost error and its layer; Keras adds a configuration for each level around it."""
    *_, last = str(error).split("Exception encountered: ")
    layers = re.findall(r"class '(\w+)' using config=\{'name': '([^']*)'", str(error))
    where = "".join(f"the layer {name!r} ({kind}): " for kind, name in layers[-1:])
    return where + f"{type(error).__name__}: {last}"[:_LONGEST_CAUSE]


def _is_hdf5(file: Path) -> bool:
    with file.open("rb") as data:
        return data.read(len(_HDF5)) == _HDF5


def _config_of(file: Path) -> tuple[object, str]:
    """The configuration of a model, and the version of Keras that wrote it."""
    try:
        if _is_hdf5(file):
            return _config_of_hdf5(file)
        with zipfile.ZipFile(file) as archive:
            info = archive.getinfo("config.json")
            if (size := _unpacked(archive, most := _held(file))) > most:
                raise MalformedModelError(
                    f"{file}: its entries add up to {size} bytes or more, too many for this archive"
                )
            if info.file_size > _LARGEST_CONFIG:
                raise MalformedModelError(f"{file}: its config.json is too large")
            # Keras 3 reads archives without one, too.
            has_version = "metadata.json" in archive.namelist()
            version = (
                json.loads(archive.read("metadata.json"))["keras_version"] if has_version else "3."
            )
            return json.loads(archive.read(info)), str(version)
    except InvertError:
        raise
    # What `zipfile` and `h5py` raise for damaged files or a missing entry, and `json` for other
    # text.
    except (
        OSError, KeyError, TypeError, ValueError, RuntimeError, NotImplementedError,
        RecursionError, zipfile.BadZipFile, zlib.error,
    ) as error:  # fmt: skip
        raise MalformedModelError(f"{file} is not a Keras model: {error}") from error


def _unpacked(archive: zipfile.ZipFile, most: int) -> int:
    """The bytes of all entries, unpacked; where that is more than `most`, perhaps not all of them.

    An entry may hold more than it says. `zipfile` unpacks all of it, and then drops the rest.

    **Raises:** what `zipfile` raises for damage; `ValueError` for other ways to pack than Keras's,
        which `zipfile` does not unpack in parts.
    """
    total = sum(info.file_size for info in archive.infolist())
    for info in archive.infolist():
        if total > most:
            break
        if info.compress_type == zipfile.ZIP_STORED:
            continue
        if info.compress_type != zipfile.ZIP_DEFLATED:
            raise ValueError(f"its entry {info.filename!r} is packed in another way than Keras's")
        total -= info.file_size
        whole = copy.copy(info)
        whole.file_size = most + 1
        with archive.open(whole) as data:
            while total <= most and (part := data.read(1 << 20)):
                total += len(part)
    return total


def _config_of_hdf5(file: Path) -> tuple[object, str]:
    """As `_config_of`, for an HDF5 file; that of Keras 3 with the module as in an archive.

    **Raises:** what `h5py` and `json` raise.
    """
    try:
        import h5py
    except ImportError as error:
        raise MissingDependencyError(
            f"{file} is HDF5, and needs h5py", remedy="Install it: pip install h5py"
        ) from error
    hdf5_in_child.check(file.read_bytes(), str(file), _held(file))
    with h5py.File(file, "r") as model:
        version, config = (_text_of(model, name) for name in ("keras_version", "model_config"))
    config = json.loads(config)
    if isinstance(config, dict) and version.startswith("3."):
        kind = config.get("class_name")
        config |= {"module": _MODULES[kind], "registered_name": kind} if kind in _MODULES else {}
    return config, version


def _bytes_of(attribute: Any) -> int:
    return math.prod(attribute.shape or ()) * attribute.dtype.itemsize


def _text_of(model: Any, name: str) -> str:
    """A text attribute of an HDF5 file.

    **Raises:** `ValueError` if it is not a text, or longer than a configuration may be; `KeyError`.
    """
    place = model.attrs.get_id(name)
    text = place.shape == () and _bytes_of(place) <= _LARGEST_CONFIG and model.attrs[name]
    text = text.decode() if isinstance(text, bytes) else text
    if not isinstance(text, str):
        raise ValueError(f"its {name} is not a text")
    return text


def _problems(
    config: object, name: str, is_known: Callable[[object], bool], library: str
) -> Iterator[Problem]:
    """Parts of the configuration that would make Keras import or run something.

    **Arguments:**

    - `is_known`: whether a class of that name belongs to the caller.
    - `library`: `"keras"` or `"tf_keras"`, which reads the file.
    """
    pending = [(config, name)]
    first = True
    while pending:
        value, name = pending.pop()
        if isinstance(value, list):
            pending += [(v, name) for v in value]
        if not isinstance(value, dict):
            continue
        inner = value.get("config")
        if isinstance(inner, dict) and isinstance(inner.get("name"), str):
            name = inner["name"]
        # The losses and metrics of a model are not loaded.
        pending += [(v, name) for k, v in value.items() if not (first and k == "compile_config")]
        first = False
        kind, module = value.get("class_name"), value.get("module")
        if not isinstance(kind, str):
            continue
        if kind in _CODE:
            yield Problem(f"keras.{kind}", "contains or names Python code", name, _REMEDY)
        # Keras finds known classes by their registered names, and then imports nothing.
        elif not (
            module is None
            or _is_of_keras(module, kind, library)
            or is_known(value.get("registered_name"))
        ):
            yield Problem(f"{module}.{kind}", "is not a class of Keras itself", name, _OWN)
        if isinstance(inner, dict):
            called = inner.get("function")
            if kind in _CALLS and not (isinstance(called, str) and _CALLED.fullmatch(called)):
                yield Problem(f"keras.{kind}", f"calls {called}", name, _REMEDY)
            for key in _VALUES_OR_FILES:
                if isinstance(inner.get(key), str):
                    yield Problem(f"keras.{kind}", f"reads its {key} from a file", name, _REMEDY)


def _is_of_keras(module: object, kind: str, library: str) -> bool:
    """Return whether a name is that of a Keras class; its functions are not allowed."""
    if not isinstance(module, str) or not kind.isidentifier():
        return False
    if module == "builtins":
        return True  # Keras's encoding of lists, arrays and tensors
    root, *inner = module.split(".")
    if root not in ("keras", library):
        return False
    # The library is imported already; a name in a file must not cause imports.
    value = getattr(sys.modules.get(".".join((library, *inner))), kind, None)
    return isinstance(value, type) and value.__module__.split(".")[0] == library


def _content_problems(file: Path) -> list[Problem]:
    try:
        with only_refusals():
            return list(_entry_problems(file))
    # What `zipfile` and `h5py` raise for damaged files.
    except (
        LookupError, OSError, RuntimeError, TypeError, ValueError, zipfile.BadZipFile, zlib.error,
    ) as error:  # fmt: skip
        raise MalformedModelError(f"{file} is damaged: {error}") from error


def _entry_problems(file: Path) -> Iterator[Problem]:
    """Problems: files with outside paths, and what `_weight_problems` finds."""
    if _is_hdf5(file):
        yield from _weight_problems(file, _held(file))
        return
    with zipfile.ZipFile(file) as archive:
        held = _held(file)
        for info in archive.infolist():
            path = PurePosixPath(info.filename.replace("\\", "/"))
            if path.is_absolute() or ".." in path.parts or ":" in info.filename:
                yield Problem(
                    f"file {info.filename!r}",
                    "would be written outside the archive's folder",
                    f"{file}",
                    _REMEDY,
                )
        if _WEIGHTS in archive.namelist():
            weights = archive.read(_WEIGHTS)
            if importlib.util.find_spec("h5py") is None:
                return  # Keras does not read them either
            hdf5_in_child.check(weights, f"{_WEIGHTS} in {file}", held)
            yield from _weight_problems(io.BytesIO(weights), held)
        elif _UNCHECKED in archive.namelist():  # Keras reads it, but `model.save` never writes it
            yield Problem("weights", f"are in {_UNCHECKED}, not {_WEIGHTS}", f"{file}", _REMEDY)


def _weight_problems(data: io.BytesIO | Path, held: int) -> Iterator[Problem]:
    """Problems: HDF5 arrays stored elsewhere, or declaring more than `held` bytes."""
    import h5py

    declared = 0
    with h5py.File(data, "r") as weights:
        pending: list[tuple[str, h5py.Group]] = [("", weights)]
        seen: set[Hashable] = set()
        while pending:
            place, group = pending.pop()
            declared += sum(_bytes_of(group.attrs.get_id(n)) for n in group.attrs)
            for name in group:
                inner = f"{place}/{name}"
                link = group.get(name, getlink=True)
                if isinstance(link, h5py.ExternalLink):
                    yield Problem("weights", "are stored in another file", inner, _REMEDY)
                if not isinstance(link, h5py.HardLink):
                    continue  # a soft link leads to another entry of the file
                entry = group[name]
                if isinstance(entry, h5py.Dataset):
                    declared += entry.nbytes
                    if entry.external or entry.is_virtual:
                        yield Problem("weights", "are stored in another file", inner, _REMEDY)
                elif isinstance(entry, h5py.Group) and entry.id not in seen:
                    seen.add(entry.id)
                    pending.append((inner, entry))
    if declared > held:
        yield Problem(
            "weights",
            f"claim to take {declared} bytes, too many for this archive",
            _WEIGHTS,
            _REMEDY,
        )
