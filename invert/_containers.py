"""Detects the kind of container at a path."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from invert._config import Config
from invert._entry import EntryPoint
from invert._errors import MalformedModelError, SignatureError, unreadable
from invert._files import content_of
from invert.frontends.folder import GRAPHS
from invert.modules import save

Kind = Literal["saved", "saved_model", "keras", "graph", "stablehlo", "exported"]

# Names of the kinds in messages.
NAMES: dict[Kind, str] = {
    "saved": "module written by invert.save",
    "saved_model": "SavedModel",
    "keras": "Keras model",
    "graph": "GraphDef",
    "stablehlo": "StableHLO module",
    "exported": "jax.export artifact",
}

_MLIR = b"ML\xefR"
_NODES = b"\n"  # the tag of the first field of a GraphDef, and a line break in text
_FUNCTION = b"func.func"  # in MLIR, only as text
# The most outputs of a graph that an error names.
_MOST_NAMES = 5
_ZIP = b"PK\x03\x04"
_HDF5 = b"\x89HDF"
_HDF5_MODEL = b"model_config"  # the attribute that holds a model, apart from its weights


def place_of(path: str | os.PathLike[str]) -> Path:
    """The path of a container; for a file of a SavedModel, its directory."""
    place = Path(path)
    return place.parent if place.name in GRAPHS and os.path.isfile(place) else place


def kind_of(path: str | os.PathLike[str], *, named: bool = False) -> Kind:
    """The kind of a container, by first bytes; for protos, by suffix.

    **Arguments:**

    - `named`: whether inputs and outputs are named, so that a proto with any suffix is a graph.

    **Raises:** `MalformedModelError` if it is of no known kind.
    """
    place = place_of(path)
    try:
        if place.is_dir():
            return "saved" if save.has_parts(place) else "saved_model"
        data = content_of(place)
    except MalformedModelError:
        raise
    except OSError as error:
        raise unreadable(place, error.strerror) from error
    except ValueError as error:  # characters that no path has
        raise MalformedModelError(f"{str(place)!r:.99} is not a path: {error}") from error
    if not data or data.isspace():
        raise MalformedModelError(f"{place} is empty")
    if data.startswith(_MLIR):
        return "stablehlo"
    if data.startswith(_ZIP) or zipfile.is_zipfile(place):
        return "keras"
    if data.startswith(_HDF5) and _HDF5_MODEL not in data:
        raise MalformedModelError(
            f"{place} is HDF5 without a model; it may hold the weights of one",
            remedy="Build the model, call `model.load_weights`, and convert the model.",
        )
    if data.startswith(_HDF5):
        return "keras"
    if place.suffix in (".meta", ".pbtxt"):
        return "graph"
    if place.suffix == ".pb":
        return "stablehlo" if place.name.endswith(".hlo.pb") and not named else "graph"
    if named and data.startswith(_NODES) and _FUNCTION not in data:
        return "graph"
    if _MLIR in data:
        return "exported"
    if place.suffix == ".json":
        raise MalformedModelError(
            f"{place} is JSON; a configuration of Keras holds no weights",
            remedy="Save the model as `.keras`.",
        )
    if _is_text(data):
        return "stablehlo"
    raise MalformedModelError(
        f"{place} is not a model of a known format",
        remedy="Pass a SavedModel directory, a directory written by invert.save, a .keras or .h5 "
        "file, a graph (.pb, .pbtxt or .meta), StableHLO as text or bytecode, or a jax.export "
        "artifact.",
    )


def _is_text(data: bytes) -> bool:
    try:
        _ = data.isascii() or data.decode()
    except UnicodeDecodeError:
        return False
    return b"\0" not in data


def entry_points(
    place: Path,
    kind: Kind,
    config: Config,
    *,
    signature: str | None = None,
    strict: bool = True,
) -> Mapping[str, EntryPoint]:
    """The entry points of a container that is not a SavedModel, by name.

    **Arguments:**

    - `signature`: the name of the only function to read.
    - `strict`: whether ops that cannot be raised are an error; otherwise they are its `problems`.

    **Raises:** as the front end; `SignatureError` if the container does not state its inputs, or
    has no such function.
    """
    if kind == "graph":
        from invert.frontends import graph_file, graphdef

        inputs, outputs = graphdef.ends(graph_file.read(place)[0])
        some = ", ".join(map(repr, outputs[:_MOST_NAMES]))
        raise SignatureError(
            "it is a graph, which does not name its inputs and outputs",
            remedy="Use invert.convert_graphdef with their names. Its placeholders are "
            f"{', '.join(map(repr, inputs)) or 'none'}; nothing in it uses {some or 'none'}.",
        )
    if kind == "stablehlo":
        from invert.frontends import stablehlo

        return stablehlo.entry_points(place, config=config, signature=signature)
    if kind == "keras":
        from invert.frontends import keras_archive

        entry = keras_archive.entry_point(place, config=config, strict=strict)
    else:
        from invert.frontends import exported

        entry = exported.entry_point(content_of(place), config=config)
    if signature not in (None, entry.name):
        raise SignatureError(
            f"it has one function, {entry.name!r}, and none named {signature!r}",
            remedy="Name that one, or leave out `signature`.",
        )
    return {entry.name: entry}
