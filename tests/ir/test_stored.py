"""Stored results are found under their whole key, and only if intact."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from invert import _user_cache
from invert._private import programs
from invert._private.jax import trace_closed
from invert.ir.stored import Entry

X = jax.ShapeDtypeStruct((2,), np.float32)


@pytest.fixture(autouse=True)
def where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("INVERT_CACHE_DIR", str(tmp_path / "kept"))
    _user_cache._make_room.cache_clear()
    yield tmp_path / "kept" / "texts"


def _program(function=jnp.sin):
    return trace_closed(function, X)


def test_stored_values_are_read() -> None:
    program = _program()
    assert Entry("lowered", 1).read() is None
    Entry("lowered", 1).write(program)
    assert str(Entry("lowered", 1).read()) == str(program)
    assert Entry("lowered", 1).stored(lambda: pytest.fail("made again")) is not None


def test_entries_depend_on_their_kind_parts_and_platform(where: Path) -> None:
    Entry("lowered", 1, X).write(_program())
    assert Entry("lowered", 1, X).read() is not None
    for other in (
        Entry("raised", 1, X),
        Entry("lowered", 2, X),
        Entry("lowered", True, X),
        Entry("lowered", 1, jax.ShapeDtypeStruct((2,), np.float16)),
        Entry("lowered", 1, X, platform="cuda"),
    ):
        assert other.read() is None
    count = len(list(where.iterdir()))
    Entry("lowered", 1, X, platform="cuda").write(_program())
    assert len(list(where.iterdir())) == count


def test_entries_depend_on_settings_versions_and_registered_lowerings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Entry("lowered", 1).write(_program())
    assert Entry("lowered", 1).read() is not None
    with jax.enable_x64(True):
        assert Entry("lowered", 1).read() is None
    with jax.default_matmul_precision("highest"):
        assert Entry("lowered", 1).read() is None
    with monkeypatch.context() as patch:
        patch.setattr(_user_cache, "versions", lambda: "another version")
        assert Entry("lowered", 1).read() is None
    rules = programs._rules()
    with monkeypatch.context() as patch:
        # A package of the user's that lowers a primitive in its own way.
        patch.setattr(programs, "_rules", lambda: [*rules, lambda ctx, x: [x]])
        assert programs.settings() is None
        assert Entry("lowered", 1).read() is None
    assert Entry("lowered", 1).read() is not None


def test_entries_depend_on_the_sources_that_make_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(_user_cache, "__file__", str(tmp_path / "_user_cache.py"))
    sources = [tmp_path / "ir" / "a.py", tmp_path / "tf" / "modules" / "b.py"]
    above = tmp_path / "modules" / "c.py"
    for path in (*sources, above):
        path.parent.mkdir(parents=True)
        path.write_text("1")
    digest = _user_cache.versions.__wrapped__
    before = digest()
    above.write_text("10")
    assert digest() == before
    for path in sources:
        path.write_text("10")
        assert digest() != before
        before = digest()
        os.utime(path, ns=(1, 1))  # of the same length, written at another time
        assert digest() != before
        before = digest()


def test_open_sizes_depend_on_their_constraints() -> None:
    (a,) = jax.export.symbolic_shape("n", constraints=["n >= 2"])
    (b,) = jax.export.symbolic_shape("n", constraints=["n >= 3"])
    program = trace_closed(jnp.sin, jax.ShapeDtypeStruct((a,), np.float32))
    Entry("lowered", "n", sizes=[a]).write(program)
    found = Entry("lowered", "n", sizes=[2, a]).read()
    assert found.jaxpr.invars[0].aval == program.jaxpr.invars[0].aval
    assert Entry("lowered", "n", sizes=[b]).read() is None


@pytest.mark.parametrize("place", [0, 70, -1])
def test_a_damaged_entry_is_rebuilt(where: Path, place: int) -> None:
    entry = Entry("lowered", 1)
    entry.write(_program())
    (path,) = where.iterdir()
    intact = path.read_bytes()
    content = bytearray(intact)
    content[place] ^= 1
    path.write_bytes(content)
    assert entry.read() is None
    assert str(entry.stored(_program)) == str(_program())
    assert path.read_bytes() == intact
    path.write_bytes(b"")
    assert entry.read() is None


def test_an_entry_in_place_of_another_is_ignored(where: Path) -> None:
    one, two = Entry("lowered", 1), Entry("lowered", 2)
    one.write(_program(jnp.sin))
    (first,) = where.iterdir()
    two.write(_program(jnp.cos))
    (second,) = set(where.iterdir()) - {first}
    second.write_bytes(first.read_bytes())
    assert two.read() is None
    assert one.read() is not None


def test_text_that_is_not_a_program_is_rebuilt() -> None:
    entry = Entry("lowered", 1)
    for text in ("[]", "not JSON", "[[], [], [" * 50, "[" * 100_000):
        _user_cache.keep_text(entry._key, text)
        assert _user_cache.text_of(entry._key) == text
        assert entry.read() is None


@pytest.mark.skipif(os.name != "posix", reason="files have no modes")
@pytest.mark.parametrize("mode", [0o666, 0o660, 0o602])
def test_files_writable_by_others_are_not_read(where: Path, mode: int) -> None:
    entry = Entry("lowered", 1)
    entry.write(_program())
    (path,) = where.iterdir()
    path.chmod(mode)
    assert entry.read() is None
    path.chmod(0o600)
    assert entry.read() is not None


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes")
def test_a_pipe_in_place_of_an_entry_is_replaced(where: Path) -> None:
    """Opening it as usual would wait for a process that writes."""
    entry = Entry("lowered", 1)
    entry.write(_program())
    (path,) = where.iterdir()
    path.unlink()
    os.mkfifo(path)
    assert str(entry.stored(_program)) == str(_program())
    assert path.is_file()
    assert entry.read() is not None


def test_links_to_nothing_do_not_matter(where: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the folder, and beside this package's sources, where editors lock files with them."""
    where.mkdir(parents=True)
    (where / "link").symlink_to("nowhere")
    sources = where.parent / "sources"
    sources.mkdir()
    (sources / ".#one.py").symlink_to("nowhere")
    monkeypatch.setattr(_user_cache, "__file__", str(sources / "one.py"))
    _user_cache.versions.cache_clear()
    try:
        assert "jax" in _user_cache.versions()
        Entry("lowered", 1).write(_program())
        assert Entry("lowered", 1).read() is not None
    finally:
        _user_cache.versions.cache_clear()


def test_nothing_is_stored_if_that_is_switched_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INVERT_CACHE_DIR", "")
    Entry("lowered", 1).write(_program())
    assert Entry("lowered", 1).read() is None
    assert list(tmp_path.iterdir()) == []


def test_the_older_half_is_removed_when_there_are_many(
    where: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_user_cache, "_MOST_TEXTS", 4)
    for number in range(6):
        Entry("lowered", number).write(_program())
    assert len(list(where.iterdir())) == 6
    _user_cache._make_room.cache_clear()  # as in another process
    Entry("lowered", 6).write(_program())
    assert len(list(where.iterdir())) == 4
