"""The files of a SavedModel, and a folder of links to them for TensorFlow.

TensorFlow does not read the folder of a model itself: links may lead out of it, and it may contain
files that were not checked. It gets a new folder of links to the files that were checked: the
graph, the variables and the assets that the graph names.
"""

from __future__ import annotations

import dataclasses
import os
import stat
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

from invert._errors import Problem
from invert.protos.messages import parse
from invert.protos.types import AssetFileDef, MetaGraphDef

_ASSETS = "saved_model_assets"
# The files that may hold the graph, as bytes and as text; TensorFlow reads the first that exists.
GRAPHS = ("saved_model.pb", "saved_model.pbtxt")
_REMEDY = (
    "If you trust the model, copy it with the files that its links lead to (`cp -rL`), and the "
    "assets into its folder."
)


@dataclasses.dataclass(frozen=True)
class Files:
    """The files of a model.

    **Attributes:**

    - `found`: the real paths of the files, by their paths in the folder.
    - `problems`: files that a model may not contain.
    """

    found: dict[PurePosixPath, Path]
    problems: list[Problem]


def assets_of(meta: MetaGraphDef) -> Iterable[AssetFileDef]:
    """The `AssetFileDef` messages of a `MetaGraphDef`, in old models from a collection.

    **Raises:** `MalformedModelError` if one of them is damaged.
    """
    if meta.asset_file_def or _ASSETS not in meta.collection_def:
        return meta.asset_file_def
    values = meta.collection_def[_ASSETS].any_list.value
    return [parse(AssetFileDef, v.value, "an asset of the model") for v in values]


def files_of(directory: Path, assets: Sequence[str]) -> Files:
    """The graph, the variables and the assets of a model.

    **Arguments:**

    - `directory`: the folder of the model.
    - `assets`: paths of its assets, as the graph names them.
    """
    files: dict[PurePosixPath, Path] = {}
    problems: list[Problem] = []
    roots = _roots(directory)
    variables = directory / "variables"
    names = sorted(os.listdir(variables)) if variables.is_dir() else []
    places = [*map(PurePosixPath, GRAPHS), *(PurePosixPath("variables", n) for n in names)]
    for name in dict.fromkeys(assets):
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or "://" in name or "\0" in name:
            reason = "is not a file in the model's `assets` folder"
            problems.append(Problem(f"asset {name!r}", reason, f"{directory}", _REMEDY))
        else:
            places.append("assets" / path)
    for place in places:
        # TensorFlow reports a missing file if it needs it.
        file = Path(os.path.realpath(directory / place))
        if not file.exists():
            continue
        reason = ""
        if not any(file.is_relative_to(root) for root in roots):
            reason = f"leads outside the model's folder, to {file}"
        elif place.parts[0] == "assets" and not file.is_file():
            reason = "is not a file"
        if reason:
            problems.append(Problem(f"file {str(place)!r}", reason, f"{directory}", _REMEDY))
        # TensorFlow would wait forever for a pipe.
        elif stat.S_ISREG(file.stat().st_mode):
            files[place] = file
    return Files(files, problems)


def _roots(directory: Path) -> list[Path]:
    """The folders that may contain files of a model."""
    real = Path(os.path.realpath(directory))
    roots = [real]
    # Hugging Face's cache keeps files in `blobs`, and links to them in `snapshots/<revision>`.
    for place in (Path(os.path.abspath(directory)), real):
        parts = place.parts
        if "snapshots" in parts[:-1]:
            last = len(parts) - 1 - parts[::-1].index("snapshots")
            # Only the real folder counts, not a link called `blobs`.
            roots.append(Path(os.path.realpath(Path(*parts[:last])), "blobs"))
    return roots


def stand_in(files: Files, graph: bytes | None) -> tempfile.TemporaryDirectory[str]:
    """A new folder with links to the files of a model.

    **Arguments:**

    - `graph`: the content of `saved_model.pb`; `None` for the files of the model.
    """
    made = tempfile.TemporaryDirectory(prefix="invert-")
    if graph is not None:
        Path(made.name, GRAPHS[0]).write_bytes(graph)
    for place, file in files.found.items():
        if graph is not None and str(place) in GRAPHS:
            continue
        target = Path(made.name, place)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(file)
    return made
