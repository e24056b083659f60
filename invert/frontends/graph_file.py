"""Reads files of bare graphs: frozen ones, and those that TensorFlow 1 wrote with a checkpoint."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from invert._entry import Param
from invert._errors import MalformedModelError
from invert._files import content_of
from invert.frontends import saved_graph
from invert.frontends.folder import Files
from invert.protos.file_parts import TEXT
from invert.protos.messages import parse, parse_text
from invert.protos.types import GraphDef, MetaGraphDef
from invert.tf.graph.library import Library


def read(path: str | os.PathLike[str]) -> tuple[Library, Mapping[str, Param]]:
    """The graph of a file and its variables, by the names in its nodes.

    **Arguments:**

    - `path`: a `GraphDef`, as text if its name ends in `.pbtxt`, or the `.meta` file that
        `tf.compat.v1.train.Saver` writes beside the checkpoint of the same name. A graph without
        variables needs no checkpoint.

    **Raises:** `MalformedModelError`.
    """
    place = Path(path)
    if not os.path.exists(place):
        raise MalformedModelError(
            f"the graph is a {type(path).__name__} of a file that does not exist, {place}",
            remedy="Pass the path of a file, a GraphDef, or its bytes.",
        )
    data = content_of(place)
    if place.suffix == TEXT:
        return Library.of(parse_text(GraphDef, data, f"{place}")), {}
    if place.suffix != ".meta":
        return Library.of(data), {}
    meta = parse(MetaGraphDef, data, f"{place}")
    library = Library.of(meta.graph_def)
    files = _checkpoint_of(place)
    if not any(node.op in saved_graph.VARIABLES for node in library.graph.node):
        return library, {}
    if not files.found:
        raise MalformedModelError(
            f"{place.with_suffix('.index')} does not exist, and so the variables have no values",
            remedy="Copy the .index and .data files of the checkpoint beside it.",
        )
    return library, saved_graph.variables_of(meta, library, files, place)


def _checkpoint_of(place: Path) -> Files:
    """The files of the checkpoint of a `.meta` file, as those of a SavedModel's variables."""
    kinds = re.compile(re.escape(place.stem) + r"(\.index|\.data-\d{5}-of-\d{5})")
    found = {
        PurePosixPath("variables", f"variables{match[1]}"): file.resolve()
        for file in sorted(place.parent.iterdir())
        if (match := kinds.fullmatch(file.name))
    }
    return Files(found, [])
