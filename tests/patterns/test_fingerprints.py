"""Fingerprints propose library functions; those in the package fit the installed JAX."""

import json

import jax
import jax.numpy as jnp
import pytest

import invert
from invert import _user_cache, patterns
from invert.ir import jaxprs
from invert.patterns import fingerprints, library
from invert.rewriting.driver import Rewriter
from invert.rewriting.templates import raise_call

_NUMBER = next(i for i, s in enumerate(patterns.STAGES) if s.patterns is library.PATTERNS)


def _template():
    rewriter = Rewriter(patterns.STAGES, raise_call)
    return lambda call: rewriter.template(call, _NUMBER)


@pytest.mark.skipif(
    jax.__version__ not in fingerprints.shipped(), reason="not in the package: worked out lazily"
)
def test_stored_fingerprints_equal_this_releases():
    """If not, `make fingerprints` writes them again."""
    found = {
        fingerprints.name_of(f): [list(p) for p in fingerprints.worked_out(f, _template())]
        for f in library.FUNCTIONS
    }
    assert all(found.values())
    assert fingerprints.shipped()[jax.__version__] == found


def test_the_oldest_and_a_newer_release_are_in_the_package():
    oldest = "0.10.2"  # that of pyproject.toml
    assert oldest in fingerprints.shipped()
    assert len(fingerprints.shipped()) >= 2


@pytest.fixture
def unknown(monkeypatch, tmp_path):
    """A JAX release that the package does not know, with its own cache directory."""
    monkeypatch.setenv("INVERT_CACHE_DIR", str(tmp_path / "kept"))
    return "0.99"


def _wanted(function):
    return fingerprints.Fingerprint(*fingerprints.shipped()["0.10.2"][function][0])


def _counting():
    tried, template = [], _template()

    def count(call):
        tried.append(fingerprints.name_of(call.function))
        return template(call)

    return tried, count


def test_another_release_lowers_functions_with_the_same_end_and_keeps_them(unknown):
    tried, template = _counting()
    found = fingerprints.worked_out(jax.nn.relu, _template())[0]
    assert fingerprints.may_be(library.FUNCTIONS, found, template, unknown) == [jax.nn.relu]
    assert set(tried) == {"relu"}
    tried.clear()
    assert fingerprints.may_be(library.FUNCTIONS, found, template, unknown) == [jax.nn.relu]
    assert tried == []


def test_nothing_is_lowered_for_a_primitive_that_ends_no_function(unknown):
    tried, template = _counting()
    other = fingerprints.Fingerprint("fft", "0")
    assert fingerprints.may_be(library.FUNCTIONS, other, template, unknown) == []
    assert tried == []


def test_nothing_is_lowered_for_a_release_that_is_known():
    tried, template = _counting()
    wanted = _wanted("relu")
    assert fingerprints.may_be(library.FUNCTIONS, wanted, template, "0.10.2") == [jax.nn.relu]
    assert tried == []


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\xff\xfe",
        b"[1, 2]",
        b'{"versions": "another", "entries": {"a": ["b"]}}',
        b'{"entries": 3}',
        b"[" * 100_000,
    ],
)
def test_damaged_files_are_ignored_and_replaced(unknown, text):
    path = _user_cache.folder() / "fingerprints.json"
    path.parent.mkdir()
    path.write_bytes(text)
    assert _user_cache.read("fingerprints") == {}
    _user_cache.add("fingerprints", {"name": ["print"]})
    assert _user_cache.read("fingerprints") == {"name": ["print"]}
    assert [p.name for p in path.parent.iterdir()] == ["fingerprints.json"]


def test_malformed_entries_are_not_used(unknown):
    _user_cache.add("fingerprints", {"name": ["print"]})
    path = _user_cache.folder() / "fingerprints.json"
    data = json.loads(path.read_text())
    path.write_text(json.dumps({**data, "entries": {"name": [3]}}))
    assert _user_cache.read("fingerprints") == {}


def test_wrong_entries_change_no_result(unknown, monkeypatch):
    """What they propose is still compared: `tanh` does not become `relu`."""
    monkeypatch.setattr(fingerprints, "shipped", lambda: {jax.__version__: data})
    body = jaxprs.canonicalize(jax.make_jaxpr(jnp.tanh)(jnp.ones(2)))
    data = {"relu": [list(fingerprints.fingerprint(body))]}
    text = """
        func.func public @main(%x: tensor<2xf32>) -> tensor<2xf32> {
          %0 = call @f(%x) : (tensor<2xf32>) -> tensor<2xf32>
          return %0 : tensor<2xf32>
        }
        func.func private @f(%x: tensor<2xf32>) -> tensor<2xf32> {
          %0 = stablehlo.tanh %x : tensor<2xf32>
          return %0 : tensor<2xf32>
        }
    """
    module = invert.from_stablehlo(text)
    assert "library_call" not in module.report.rewrites
    assert module.report.certificate.kind == "exact"


def test_the_usual_variables_set_the_folder(monkeypatch, tmp_path):
    monkeypatch.delenv("INVERT_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert _user_cache.folder() == tmp_path / "invert"
    monkeypatch.setenv("INVERT_CACHE_DIR", str(tmp_path / "own"))
    assert _user_cache.folder() == tmp_path / "own"
    monkeypatch.setenv("INVERT_CACHE_DIR", "")
    assert _user_cache.folder() is None
    _user_cache.add("fingerprints", {"name": ["print"]})
    assert _user_cache.read("fingerprints") == {}
    assert list(tmp_path.iterdir()) == []


def test_an_unwritable_folder_is_not_an_error(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("INVERT_CACHE_DIR", str(tmp_path / "file"))
    _user_cache.add("fingerprints", {"name": ["print"]})
    assert _user_cache.read("fingerprints") == {}
