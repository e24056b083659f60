"""Programs with open sizes: one program and one text, right at sizes used nowhere else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.export
import numpy as np
import pytest
from jax import Array

import invert
from tests.sizes.checks import (
    FEW,
    MANY,
    PARTS,
    assert_same,
    called,
    forms,
    gradient,
    often,
    random_arrays,
)
from tests.sizes.jax_programs import PROGRAMS


def _types(name: str) -> list[jax.ShapeDtypeStruct]:
    _, shapes, constraints = PROGRAMS[name]
    scope = jax.export.SymbolicScope(constraints)
    return [
        jax.ShapeDtypeStruct(
            jax.export.symbolic_shape(s.removeprefix("i:"), scope=scope),
            np.int32 if s.startswith("i:") else np.float32,
        )
        for s in shapes
    ]


def _numbers(types: list[jax.ShapeDtypeStruct], sizes: tuple[int, ...]) -> list[Any]:
    """The shapes with numbers for their dimensions, in order of appearance."""
    names = dict.fromkeys(
        d for t in types for n in t.shape if not isinstance(n, int) for d in n.get_vars()
    )
    values = dict(zip(names, sizes, strict=False))
    return [
        ([n if isinstance(n, int) else eval(str(n), {}, values) for n in t.shape], t.dtype)
        for t in types
    ]


def _exported(name: str) -> jax.export.Exported:
    return jax.export.export(jax.jit(PROGRAMS[name][0]))(*_types(name))


def _check(name: str, sizes: tuple[tuple[int, ...], ...], directory: Path | None) -> None:
    function, _, constraints = PROGRAMS[name]
    types = _types(name)
    if any("mod" in c for c in constraints):
        sizes = tuple(tuple(4 * n for n in row) for row in sizes)
    exported = _exported(name)
    module = invert.from_exported(exported)
    assert module.report.certificate.kind == "exact"
    assert ">= 1" in module.report.certificate.sizes
    source = module.source
    assert "fixed sizes only" not in source
    run = 0
    made = list(forms(module, types, directory))
    for row in sizes:
        args = random_arrays(_numbers(types, row), seed=sum(row))
        try:
            wanted = exported.call(*args)
        except ValueError:  # a constraint of the program
            with pytest.raises((ValueError, invert.InvertError)):
                module(*args)
            with pytest.raises(ValueError):
                module.model(*args)
            continue
        for what, form in made:
            assert_same(called(form, args, run > 0), wanted, f"{name}: {what} at {row}")
        run += 1
        floats = any(np.issubdtype(x.dtype, np.floating) for x in args)
        if run == 1 and floats and name not in _WITHOUT_GRADIENT:
            assert_same(
                gradient(module, args), gradient(function, args), f"{name}: the gradient at {row}"
            )
    assert run >= len(sizes) // 2


# JAX has no derivative of these, or a different one: an export without gradients has no rules.
_WITHOUT_GRADIENT = ("while_to_size", "until_small", "straight_through")


@pytest.mark.parametrize("name", often(PROGRAMS))
@pytest.mark.drawn(26)
def test_program(name: str):
    _check(name, FEW, None)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("name", PROGRAMS)
def test_program_at_many_sizes(name: str, part: int, tmp_path: Path):
    _check(name, MANY[part::PARTS], tmp_path)


def test_a_new_size_recovers_nothing():
    function, _, _ = PROGRAMS["causal_attention"]
    stages: list[str] = []
    config = invert.Config(progress=stages.append)
    exported = jax.export.export(jax.jit(function))(*_types("causal_attention"))
    module = invert.from_exported(exported, config=config)
    before = len(stages)
    for t in (3, 4, 5):
        module(np.ones((2, t, 8), np.float32))
    assert len(stages) == before


def test_jaxpr_and_report_need_no_call():
    module = invert.from_exported(_exported("halves"))
    (x,) = module.jaxpr.in_avals
    assert str(x.shape) == "(b, t)"
    assert module.report.certificate.sizes == "b >= 1, t >= 1"
    assert "x[b // 2 :]" in module.source or "b // 2" in module.source


def test_strides_are_slices():
    x = jax.ShapeDtypeStruct(jax.export.symbolic_shape("b, t"), np.float32)
    function = jax.jit(lambda x: (x[::2], x[:, ::3], x[:, ::-2]))
    module = invert.from_exported(jax.export.export(function)(x))
    assert {e.primitive.name for e in module.jaxpr.eqns} == {"slice", "rev"}
    assert "[::2]" in module.source
    assert "[:, ::3]" in module.source


@pytest.mark.parametrize("form", ["module", "text"])
def test_a_loop_over_an_open_length_differentiates_in_reverse(form: str):
    module = invert.from_exported(_exported("fori"))
    assert "lax.fori_loop" in module.source
    made: Any = module if form == "module" else module.model
    (x,) = random_arrays(_numbers(_types("fori"), (5, 9)), seed=3)
    assert_same(gradient(made, [x]), gradient(PROGRAMS["fori"][0], [x]), form)


def test_the_last_row_is_written_as_such():
    module = invert.from_exported(_exported("ends"))
    assert "x[-1]" in module.source


def test_size_zero_is_recovered_by_itself():
    exported = jax.export.export(jax.jit(lambda x: x.sum(0)))(*_types("halves"))
    module = invert.from_exported(exported)
    with pytest.raises(invert.InvertError, match="'b'"):
        module(np.ones((0, 3), np.float32))  # the exporter's own message


def test_constraint_of_the_original():
    module = invert.from_exported(_exported("top_three"))
    assert "t >= 3" in module.report.certificate.sizes
    x = np.ones((2, 2), np.float32)
    with pytest.raises(invert.SignatureError, match="t >= 3"):
        module(x)
    with pytest.raises(ValueError, match="t >= 3"):
        module.model(x)


def test_text_is_a_function_like_others(tmp_path: Path):
    function, _, _ = PROGRAMS["causal_attention"]
    model: Any = invert.from_exported(_exported("causal_attention")).model
    x = np.random.default_rng(0).normal(size=(3, 2, 5, 8)).astype(np.float32)
    np.testing.assert_allclose(
        jax.jit(jax.vmap(model))(x), jax.vmap(function)(x), rtol=1e-5, atol=1e-6
    )

    def total(x: Array) -> Array:
        return model(x).sum()

    np.testing.assert_allclose(
        jax.grad(total)(x[0]), jax.grad(lambda x: function(x).sum())(x[0]), atol=1e-5
    )


def test_a_condition_is_stated_once():
    module = invert.from_exported(_exported("patches_of_multiples"))
    sizes = module.report.certificate.sizes
    assert sizes == "b >= 1, h >= 1, w >= 1, mod(h, 4) == 0, mod(w, 4) == 0"
    assert module.source.count("raise ValueError(\n") == 2
    assert "but found" not in module.source
    x = np.ones((2, 8, 7, 3), np.float32)
    with pytest.raises(ValueError, match=r"mod\(w, 4\)"):
        module.model(x)
    with pytest.raises(invert.SignatureError, match=r"4\*floordiv\(w, 4\)|mod\(w, 4\)"):
        module(x)
