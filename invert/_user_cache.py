"""Files in the user's cache directory: results of one process, for later ones.

They are in `$XDG_CACHE_HOME/invert` (by default `~/.cache/invert`, on macOS
`~/Library/Caches/invert`, on Windows `%LOCALAPPDATA%/invert/Cache`), or in the directory named by
`INVERT_CACHE_DIR`. If that variable is set and empty, nothing is read or written.

A file holds JSON under the versions of JAX and of this package that wrote it. Files of other
versions and damaged files are ignored and replaced. Entries only say what to try, so that no result
depends on them.
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
# Larger files were not written by this package.
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
    """The versions that entries depend on; for this package a digest of its sources."""
    package = Path(__file__).parent
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        state = path.stat()
        digest.update(f"{path.relative_to(package)} {state.st_size} {state.st_mtime_ns}\n".encode())
    python = ".".join(map(str, sys.version_info[:2]))
    jaxlib = metadata.version("jaxlib")
    return f"jax {jax.__version__} jaxlib {jaxlib} Python {python} {digest.hexdigest()}"


def read(name: str) -> Entries:
    """The entries of a file; empty if it is missing or unusable."""
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
    """Add entries to a file, replaced atomically; failures are ignored."""
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
