"""Reads whole files, but no pipes and devices, which may never end."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from invert._errors import UNREADABLE, MalformedModelError

# The beginning of an address; `Path` turns `gs://` into `gs:/`. A drive has one letter.
_ADDRESS = re.compile(r"[A-Za-z][\w+.-]+:/")


def read_regular(
    path: str | os.PathLike[str], most: int | None = None
) -> tuple[os.stat_result, bytes]:
    """The state and the bytes of a regular file.

    **Arguments:**

    - `most`: how many bytes to read at most.

    **Raises:** `OSError`, also for pipes and devices.
    """
    at_once = getattr(os, "O_NONBLOCK", 0)  # opening a pipe would wait for a writer
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | at_once)) as file:
        state = os.fstat(file.fileno())
        if not stat.S_ISREG(state.st_mode):
            raise OSError(0, "it is a pipe or a device", os.fspath(path))
        content = file.read(-1 if most is None else most)
        return state, content or b""  # some files of the kernel have nothing to read yet


def content_of(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a file of a model.

    **Raises:** `MalformedModelError` if it cannot be read.
    """
    try:
        return read_regular(path)[1]
    except OSError as error:
        missing = isinstance(error, FileNotFoundError | NotADirectoryError)
        reason = "does not exist" if missing else f"cannot be read: {error.strerror}"
        raise MalformedModelError(f"{path} {reason}", remedy=_remedy(Path(path))) from error


def _remedy(path: Path) -> str:
    if _ADDRESS.match(str(path)):
        return "Only files of this machine are read: download it, and pass the path of the copy."
    if path.parts[:1] and path.parts[0].startswith("~"):
        return "`~` is not expanded: pass os.path.expanduser(path)."
    if path.exists() and not path.is_file():
        return "Pass the path of a regular file."
    return UNREADABLE
