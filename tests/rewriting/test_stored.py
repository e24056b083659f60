"""A later process lowers nothing that an earlier one has lowered."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from invert import Call, patterns
from invert._private.jax import trace_closed
from invert.ir import stored
from invert.ir.encoding import NotEncodable, encoded
from invert.ir.philox import stateless_normal
from invert.rewriting import driver, templates
from invert.rewriting.driver import Rewriter
from invert.rewriting.pattern import Stage, bind
from invert.rewriting.templates import raise_call

X = jax.ShapeDtypeStruct((3, 5), np.float32)
_LAST = len(patterns.STAGES) - 1


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A separate cache directory, and nothing cached in this process."""
    monkeypatch.setenv("INVERT_CACHE_DIR", str(tmp_path / "kept"))
    _forget(monkeypatch)
    return tmp_path / "kept" / "texts"


def _forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clear all caches, as in a new process."""
    for function in (driver._template, driver._trace, templates._raised):
        monkeypatch.setattr(function, "_kept", {})


def _refuse(*args: object, **kwargs: object) -> None:
    raise RuntimeError("lowered again")


def _stages() -> tuple[Stage, ...]:
    return patterns.selected(True, ())


CALLS = [
    bind(lax.cumsum_p, X, axis=0, reverse=False),
    bind(lax.lgamma_p, X),
    bind(lax.erf_inv_p, X),
    bind(lax.integer_pow_p, X, y=5),
    bind(lax.linalg.qr_p, X, full_matrices=False, pivoting=False, use_magma=None),
    Call(("library", jax.nn.softmax), jax.nn.softmax, (X,)),
    Call(("library", jnp.sinc), jnp.sinc, (X,)),
]


@pytest.mark.parametrize("call", CALLS, ids=lambda call: str(call.key[0])[:24])
def test_a_template_is_read_as_it_would_be_lowered(
    kept: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    with jax.enable_x64(True):
        # Templates depend on the patterns that ran before.
        numbers = (1, 8, _LAST)
        monkeypatch.setenv("INVERT_CACHE_DIR", "")
        made = [Rewriter(_stages(), raise_call).template(call, n) for n in numbers]
        monkeypatch.setenv("INVERT_CACHE_DIR", str(kept.parent))
        _forget(monkeypatch)
        for n in numbers:
            Rewriter(_stages(), raise_call).template(call, n)
        _forget(monkeypatch)
        monkeypatch.setattr(templates, "lower", _refuse)
        monkeypatch.setattr(templates, "raised_by_trace", _refuse)
        for n, graph in zip(numbers, made, strict=True):
            read = Rewriter(_stages(), raise_call).template(call, n)
            assert read is not None and graph is not None
            assert encoded(read.jaxpr) == encoded(graph.jaxpr)
            assert list(map(str, read.consts.values())) == list(map(str, graph.consts.values()))
        with pytest.raises(RuntimeError):
            wide = dataclasses.replace(call, x64=True)
            Rewriter(_stages(), raise_call).template(wide, _LAST)


def test_templates_of_other_patterns_are_not_stored(kept: Path) -> None:
    """Their code may change while their keys do not."""
    call = Call("mine", lambda x: lax.sin(x) + 1.0, (X,))
    with jax.enable_x64(True):
        stages = (*_stages(), Stage(()))
        assert Rewriter(stages, raise_call).template(call, len(stages) - 1) is not None
        assert not kept.exists()
        assert Rewriter(_stages(), raise_call).template(call, 0) is not None
    assert kept.exists()


def test_a_function_is_traced_once(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(shape: tuple[int, ...]) -> object:
        stored._traced.cache_clear()
        traced = trace_closed(lambda *xs: stored.called(stateless_normal, *xs, shape=shape), *types)
        return encoded(traced)

    with jax.enable_x64(True):
        types = [jax.ShapeDtypeStruct((n,), np.uint64) for n in (1, 2)]
        program = trace_closed(lambda *xs: stateless_normal(*xs, (3, 5)), *types)
        try:
            made = encoded(program)
        except NotEncodable as reason:  # a scan of jax 0.12, which is traced each time
            pytest.skip(str(reason))
        assert run((3, 5)) == made
        assert len(list(kept.iterdir())) == 1
        monkeypatch.setattr(stored, "trace_closed", _refuse)
        assert run((3, 5)) == made
        with pytest.raises(RuntimeError, match="lowered again"):
            run((5, 3))


_SCRIPT = """
import json, sys
import jax, jax.numpy as jnp, numpy as np
import invert
from invert.ir import stored
from invert.rewriting import expansion, templates
from invert.stablehlo import lowered
from invert.stablehlo.ops import regions

count = {"lowered": 0}

def counted(function):
    def call(*args, **kwargs):
        count["lowered"] += 1
        return function(*args, **kwargs)
    return call

for module in (lowered, regions):
    module.lowered_module = counted(module.lowered_module)

def apply(x):
    y = jnp.cumsum(jax.lax.lgamma(x), 0) + jax.nn.softmax(jnp.sort(x, 1))
    y = jnp.linalg.solve(y @ y.T, y) + jnp.argmax(x, 1)[:, None]
    return jax.nn.relu(jnp.prod(y) ** 3 * jax.nn.sigmoid(y))

x = jax.ShapeDtypeStruct((4, 4), np.float32)
data = jax.export.export(jax.jit(apply))(x).serialize()
model = invert.from_exported(data)
report = model.report
print(json.dumps([str(report.certificate), str(model.jaxpr), report.rewrites, count["lowered"]]))
"""


def test_a_second_process_lowers_nothing_and_finds_the_same(tmp_path: Path) -> None:
    environment = {**os.environ, "INVERT_CACHE_DIR": str(tmp_path), "JAX_PLATFORMS": "cpu"}
    found = []
    for _ in range(2):
        command = [sys.executable, "-c", _SCRIPT]
        done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE)
        found.append(json.loads(done.stdout.splitlines()[-1]))
    (*first, lowered), (*second, lowered_again) = found
    assert first == second
    assert first[0] == "exact"
    assert lowered > 5
    assert lowered_again == 0
