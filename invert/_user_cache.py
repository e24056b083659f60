"""Files in the user's cache directory: what one process worked out, for the next.

They are in `$XDG_CACHE_HOME/invert` (else `~/.cache/invert`, on macOS `~/Library/Caches/invert`, on
Windows `%LOCALAPPDATA%/invert/Cache`), or in the directory that `INVERT_CACHE_DIR` names. Where
that variable is set and empty, nothing is read or written.

A file holds JSON under the versions of JAX and of this package that wrote it. One of other
versions, a damaged one and one of another form are as good as none, and are replaced. What is kept
only says what to try, so that no result depends on it.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

import jax

Entries = dict[str, list[str]]
# No file is larger; one that is, is not ours.
_MOST_BYTES = 1 << 24


def folder() -> Path | None:
    """The cache directory, which need not exist; `None` if caching is off."""
    if (own := os.environ.get("INVERT_CACHE_DIR")) is not None:
        return Path(own) if own else None
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        return Path(xdg) / "invert"
    if sys.platform == "win32" and (local := os.environ.get("LOCALAPPDATA")):
        return Path(local) / "invert" / "Cache"
    try:
        home = Path.home()
    except RuntimeError:  # no home directory
        return None
    below = Path("Library", "Caches") if sys.platform == "darwin" else Path(".cache")
    return home / below / "invert"


@functools.cache
def _versions() -> str:
    """What entries depend on; of this package the sources, which change between releases too."""
    package = Path(__file__).parent
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        state = path.stat()
        digest.update(f"{path.relative_to(package)} {state.st_size} {state.st_mtime_ns}\n".encode())
    python = ".".join(map(str, sys.version_info[:2]))
    jaxlib = metadata.version("jaxlib")
    return f"jax {jax.__version__} jaxlib {jaxlib} Python {python} {digest.hexdigest()}"


def read(name: str) -> Entries:
    """The entries of a file; empty where it is missing or unusable."""
    where = folder()
    if where is None:
        return {}
    try:
        with (where / f"{name}.json").open("rb") as file:
            text = file.read(_MOST_BYTES + 1)
        found = json.loads(text) if len(text) <= _MOST_BYTES else None
    # Not there, not readable, not UTF-8, not JSON, or nested too deep.
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(found, dict) or found.get("versions") != _versions():
        return {}
    entries = found.get("entries")
    if not isinstance(entries, dict):
        return {}
    for texts in entries.values():
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            return {}
    return entries


def add(name: str, new: Mapping[str, list[str]]) -> None:
    """Add entries to a file, which is replaced at once; nothing happens where that fails."""
    where = folder()
    if where is None:
        return
    entries = {**read(name), **new}
    text = json.dumps({"versions": _versions(), "entries": entries}, sort_keys=True)
    with contextlib.suppress(OSError):
        where.mkdir(parents=True, exist_ok=True)
        handle, made = tempfile.mkstemp(dir=where, prefix=f"{name}.", suffix=".tmp")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            Path(made).replace(where / f"{name}.json")
        except OSError:
            Path(made).unlink(missing_ok=True)
