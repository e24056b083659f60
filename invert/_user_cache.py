"""Files in the user's cache directory: results of one process, for later ones.

They are in `$XDG_CACHE_HOME/invert` (by default `~/.cache/invert`, on macOS
`~/Library/Caches/invert`, on Windows `%LOCALAPPDATA%/invert/Cache`), or in the directory named by
`INVERT_CACHE_DIR`. If that variable is set and empty, nothing is read or written.

A file holds JSON under the versions of JAX and of this package that wrote it. Files of other
versions and damaged files are ignored and replaced. Entries of `read` only say what to try, so that
no result depends on them. Certificates depend on those of `text_of`: a file that belongs to another
user, or that others may write, is ignored too.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import platform
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import jax

from invert._files import read_regular
from invert._private.programs import jaxlib_version

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


# Folders from which the code that makes entries imports nothing.
UNUSED = (
    *("checkpoint", "cli", "compat", "emission", "frontends", "gradients", "modules"),
    "primitives/tf",
)


@functools.cache
def versions() -> str:
    """The versions that entries depend on; for this package a digest of its sources."""
    lines: list[str] = []
    root = str(Path(__file__).parent)
    folders, unused = [root], {os.path.join(root, *name.split("/")) for name in UNUSED}
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.name.endswith(".py") and entry.is_file():  # editors leave broken links
                    state = entry.stat()
                    lines.append(f"{entry.path} {state.st_size} {state.st_mtime_ns}")
                elif entry.path not in unused and _is_package(entry):
                    folders.append(entry.path)
    digest = hashlib.sha256("\n".join(sorted(lines)).encode())
    python = ".".join(map(str, sys.version_info[:2]))
    stated = f"jax {jax.__version__} jaxlib {jaxlib_version} Python {python}"
    return f"{stated} {platform.machine()} {digest.hexdigest()}"


def _is_package(entry: os.DirEntry[str]) -> bool:
    return "." not in entry.name and entry.name != "__pycache__" and entry.is_dir()


def read(name: str) -> Entries:
    """The entries of a file; empty if it is missing or unusable."""
    where = folder()
    if where is None:
        return {}
    try:
        _, text = read_regular(where / f"{name}.json", _MOST_BYTES + 1)
        content = json.loads(text) if len(text) <= _MOST_BYTES else None
    # Not there, not readable, not UTF-8, not JSON, or nested too deep.
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(content, dict) or content.get("versions") != versions():
        return {}
    entries = content.get("entries")
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
    text = json.dumps({"versions": versions(), "entries": entries}, sort_keys=True)
    with contextlib.suppress(OSError):
        where.mkdir(parents=True, exist_ok=True)
        _write(where / f"{name}.json", text.encode())


# The number of texts kept; then the older half is removed.
_MOST_TEXTS = 8192


def text_of(key: str) -> str | None:
    """The text under a key; `None` if absent, damaged or another user's.

    The key must say all that the text depends on.
    """
    where = _place(key)
    if where is None:
        return None
    try:
        state, content = read_regular(where, _MOST_BYTES + 1)
    except OSError:
        return None
    if os.name == "posix" and (state.st_uid != os.geteuid() or state.st_mode & 0o022):
        return None
    digest, _, text = content.partition(b"\n")
    # The digest covers the key too, so a file under another name is not an entry.
    return text.decode() if digest == _seal(key, text) else None


def keep_text(key: str, text: str) -> None:
    """Keep a text under a key, for later processes; failures are ignored."""
    where, content = _place(key), text.encode()
    if where is None or len(content) > _MOST_BYTES // 2:
        return
    with contextlib.suppress(OSError):
        _make_room(where.parent)
        _write(where, _seal(key, content) + b"\n" + content)


def _place(key: str) -> Path | None:
    where = folder()
    return where and where / "texts" / _seal(key, b"").decode()


def _seal(key: str, content: bytes) -> bytes:
    digests = (
        hashlib.sha256(part).digest() for part in (versions().encode(), key.encode(), content)
    )
    return hashlib.sha256(b"".join(digests)).hexdigest().encode()


@functools.cache
def _make_room(where: Path) -> None:
    """Make the folder; once in a process, halve the number of too many files."""
    where.mkdir(parents=True, exist_ok=True)
    with os.scandir(where) as entries:
        files = [(e.stat(follow_symlinks=False).st_mtime_ns, e.path) for e in entries]
    if len(files) > _MOST_TEXTS:
        for _, path in sorted(files)[: len(files) // 2]:
            Path(path).unlink(missing_ok=True)


def _write(where: Path, content: bytes) -> None:
    """Replace a file atomically."""
    handle, made = tempfile.mkstemp(dir=where.parent, prefix=f"{where.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(made).replace(where)
    except OSError:
        Path(made).unlink(missing_ok=True)
