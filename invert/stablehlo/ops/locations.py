"""Name stacks and source positions from MLIR locations; runs once per op.

Printing a location writes its whole chain of frames; walking its parts is about 30 times faster.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from invert._private.mlir import ir


def location_name(loc: ir.Location) -> str:
    """The name stack, such as `jit(f)/Dense_0/dot_general`, or `""`.

    JAX puts it into the outermost `NameLoc`. Passes that inline or refine wrap it in call sites,
    whose callee leads to it. Below a call site, a `NameLoc` right above a file position is a stack
    frame: it holds the name of a Python function instead.
    """
    frame = False
    while not isinstance(loc, ir.NameLoc):
        if isinstance(loc, ir.CallSiteLoc):
            frame = True
            loc = loc.callee
        elif isinstance(loc, ir.FusedLoc):
            return _first(map(location_name, cast("list[ir.Location]", loc.locations)))
        else:
            return ""
    name = loc.name_str
    if frame and "/" not in name and isinstance(loc.child_loc, ir.FileLineColLoc):
        return ""
    return name


def location_text(loc: ir.Location) -> str:
    """`file:line` of the innermost frame, otherwise the name; `""` if there is neither."""
    name = ""
    while not isinstance(loc, ir.FileLineColLoc):
        if isinstance(loc, ir.NameLoc):
            name = name or loc.name_str
            loc = loc.child_loc
        elif isinstance(loc, ir.CallSiteLoc):
            loc = loc.callee
        elif isinstance(loc, ir.FusedLoc):
            return _first(map(location_text, cast("list[ir.Location]", loc.locations)))
        else:
            return name
    return f"{loc.filename}:{loc.start_line}"


def _first(texts: Iterable[str]) -> str:
    return next(filter(None, texts), "")
