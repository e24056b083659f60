"""Reads `.keras` files: the archive that `model.save` of Keras 3 writes.

Its configuration names the classes that Keras is to make. Only those of Keras itself are let
through, and no functions, so that reading one imports and runs nothing that the file chooses.
"""

from __future__ import annotations

import dataclasses
import json
import os
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .._config import Config
from .._entry import EntryPoint
from .._errors import (
    MalformedModelError,
    MissingDependencyError,
    Problem,
    SignatureError,
    UnsupportedOpError,
)
from ..primitives.tf import import_tensorflow
from . import tf_function
from .keras_model import input_specs

_REMEDY = "Write a SavedModel with `model.export(directory)` where the code is, and convert that."
# The configuration of a model is text of some kilobytes; what is larger is something else.
_LARGEST_CONFIG = 1 << 28


def entry_point(path: str | os.PathLike[str], *, config: Config, strict: bool = True) -> EntryPoint:
    """The entry point of a Keras model at inference.

    **Arguments:**

    - `path`: the `.keras` file.
    - `strict`: as in `tf_function.entry_point`.

    **Raises:** `MalformedModelError`; `UnsupportedOpError` where the model holds code;
        `SignatureError` where its inputs are not fixed; `MissingDependencyError`.
    """
    file = Path(path)
    model = load(file)
    specs = input_specs(model)
    if specs is None:
        raise SignatureError(f"{file}: the model has no fixed inputs. {_REMEDY}")

    def call(inputs: Any) -> Any:
        return model(inputs, training=False)

    entry = tf_function.entry_point(call, (specs,), config=config, name=model.name, strict=strict)
    return dataclasses.replace(entry, source=f"Keras archive {file.name}")


def load(file: Path) -> Any:
    """The Keras model of an archive.

    **Raises:** as `entry_point`.
    """
    if problems := list(_problems(_config_of(file), "")):
        raise UnsupportedOpError(problems)
    import_tensorflow()
    try:
        import keras
    except ImportError as error:
        raise MissingDependencyError(f"{file} needs Keras: pip install keras") from error
    if (backend := keras.backend.backend()) != "tensorflow":
        raise MissingDependencyError(
            f"Keras runs on {backend} here; set KERAS_BACKEND=tensorflow to have {file} read"
        )
    try:
        return keras.saving.load_model(file, compile=False, safe_mode=True)
    # What Keras raises on a configuration or on weights that do not fit each other.
    except (
        ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, OSError,
        RuntimeError, TypeError, ValueError, zipfile.BadZipFile, zlib.error,
    ) as error:  # fmt: skip
        raise MalformedModelError(
            f"{file}: Keras cannot load the model: {type(error).__name__}: {error}"
        ) from error


def _config_of(file: Path) -> Any:
    try:
        with zipfile.ZipFile(file) as archive:
            info = archive.getinfo("config.json")
            if info.file_size > _LARGEST_CONFIG:
                raise MalformedModelError(f"{file}: its config.json has {info.file_size} bytes")
            return json.loads(archive.read(info))
    except (
        OSError, KeyError, ValueError, RuntimeError, NotImplementedError, RecursionError,
        zipfile.BadZipFile, zlib.error,
    ) as error:  # fmt: skip
        if isinstance(error, MalformedModelError):
            raise
        raise MalformedModelError(f"{file} is no Keras archive: {error}") from error


def _problems(config: Any, name: str) -> Iterator[Problem]:
    """What the configuration would have Keras import or run."""
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
        if kind in ("Lambda", "function", "__lambda__"):
            yield Problem(f"keras.{kind}", "holds Python code or names it", name, _REMEDY)
        elif isinstance(module, str) and module.split(".")[0] not in ("keras", "builtins"):
            yield Problem(f"{module}.{kind}", "is no class of Keras itself", name, _REMEDY)
