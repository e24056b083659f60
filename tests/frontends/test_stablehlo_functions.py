"""StableHLO modules with several public functions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import invert

T = "tensor<3xf32>"
TEXT = f"""
func.func public @encode(%w: {T} loc("w"), %x: {T} loc("x")) -> {T} {{
  %0 = call @double(%x) : ({T}) -> {T}
  %1 = stablehlo.multiply %w, %0 : {T}
  return %1 : {T}
}}
func.func public @decode(%y: {T} loc("y"), %w: {T} loc("w")) -> {T} {{
  %0 = stablehlo.divide %y, %w : {T}
  return %0 : {T}
}}
func.func @double(%x: {T}) -> {T} {{
  %0 = stablehlo.add %x, %x : {T}
  return %0 : {T}
}}
"""
UNNAMED = TEXT.replace(' loc("w")', "").replace(' loc("x")', "").replace(' loc("y")', "")
W = np.array([2, 4, 8], np.float32)
X = np.array([1, 2, 3], np.float32)


@pytest.mark.parametrize(
    ("text", "names"),
    [(TEXT, None), (UNNAMED, {"encode": ["w", "x"], "decode": {"arg1": "w"}})],
    ids=["named", "given"],
)
def test_public_functions_are_methods_on_shared_weights(text: str, names: Any) -> None:
    module: Any = invert.from_stablehlo(text, names=names, params={"w": W})
    assert type(module).__mro__[1] is invert.Methods and set(module.reports) == {"encode", "decode"}
    assert all(r.certificate.kind == "exact" for r in module.reports.values())
    assert list(module.named_params()) == ["w"]
    np.testing.assert_array_equal(module.encode(X), 2 * W * X)
    np.testing.assert_array_equal(module.decode(X), X / W)
    model: Any = module.model
    assert len(jax.tree_util.tree_leaves(model)) == 1
    grads = jax.grad(lambda m: m.decode(m.encode(X)).sum() + m.encode(X).sum())(model)
    np.testing.assert_allclose(grads.w, 2 * X)
    assert "def encode(" in module.source and "def decode(" in module.source


def test_files_with_several_functions(tmp_path: Path) -> None:
    path = tmp_path / "both.mlir"
    path.write_text(TEXT)
    module = invert.load(path)
    assert type(module).__mro__[1] is invert.Methods
    np.testing.assert_array_equal(module.encode(W, X), 2 * W * X)
    one = invert.load(path, signature="decode")
    assert isinstance(one, invert.Module)
    np.testing.assert_array_equal(one(X, W), X / W)
    called = invert.load(path, signature="double")  # what others call is there if it is named
    np.testing.assert_array_equal(called(X), 2 * X)
    with pytest.raises(invert.SignatureError, match=r"'other'.*encode.*decode.*double"):
        invert.load(path, signature="other")
    invert.save(module, tmp_path / "saved")
    np.testing.assert_array_equal(invert.load(tmp_path / "saved").encode(W, X), 2 * W * X)


def test_a_function_that_cannot_be_raised_is_left_out() -> None:
    text = TEXT.replace("stablehlo.divide %y, %w", "stablehlo.custom_call @gone(%y, %w)")
    text = text.replace("@gone(%y, %w) : " + T, f"@gone(%y, %w) : ({T}, {T}) -> {T}")
    text = text.replace("call @double(%x)", "call @missing(%x)") + (
        f"func.func private @missing({T}) -> {T}"
    )
    module = invert.from_stablehlo(text)
    assert list(module.failed) == ["encode"]
    with pytest.raises(invert.UnsupportedOpError, match="@missing"):
        module.encode(W, X)


def test_ambiguous_names_and_weights() -> None:
    with pytest.raises(invert.SignatureError, match="a mapping from these"):
        invert.from_stablehlo(TEXT, names=["w", "x"])
    with pytest.raises(invert.SignatureError, match="no functions \\['other'\\]"):
        invert.from_stablehlo(TEXT, names={"other": ["w", "x"]})
    with pytest.raises(invert.SignatureError, match="is a position in each of"):
        invert.from_stablehlo(UNNAMED, params={"arg0": W})
    with pytest.raises(invert.SignatureError, match=r"expected float32\[3\] by 'decode'"):
        invert.from_stablehlo(TEXT, params={"w": np.ones(2, np.float32)})
    with pytest.raises(invert.SignatureError, match="no public function 'other'"):
        invert.from_stablehlo(TEXT, signature="other")


def test_a_custom_call_needs_a_module_of_one_function() -> None:
    from invert.stablehlo.program import Program

    program = Program.from_bytes(TEXT, config=invert.Config())
    with pytest.raises(invert.MalformedModelError, match="3 public functions"):
        program.in_types


@pytest.mark.parametrize(
    ("names", "message"),
    [("ab", "got the names"), ([1, "b"], "no names"), (["", "b"], "no names")],
)
def test_names_that_are_none(names: Any, message: str) -> None:
    text = jax.jit(lambda x, y: x + y).lower(1.0, 2.0).as_text()
    with pytest.raises(invert.SignatureError, match=message):
        invert.from_stablehlo(text, names=names)


@pytest.mark.parametrize("given", [jax.export.export(jax.jit(jnp.sin))(1.0), jnp.sin, 3])
def test_what_is_no_module(given: Any) -> None:
    with pytest.raises(invert.MalformedModelError, match="from_stablehlo takes") as error:
        invert.from_stablehlo(given)
    assert "invert." in error.value.remedy


def test_weights_of_a_module_without_names() -> None:
    text = jax.jit(jnp.sin).lower(1.0).as_text()
    with pytest.raises(invert.SignatureError, match="`params` is a list"):
        invert.from_stablehlo(text, params=[1.0])  # type: ignore[arg-type]
    with pytest.raises(invert.SignatureError, match="or other `names`"):
        invert.from_stablehlo(text, params={"w": 1.0})


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (
            "%0 = stablehlo.set_dimension_size %a, %n, dim = 0 : (tensor<4xf32>, tensor<i32>) -> "
            "tensor<?xf32, #stablehlo.bounds<4>>",
            "a size is computed from data",
        ),
    ],
)
def test_what_a_rule_refuses_is_a_problem_with_its_place(body: str, reason: str) -> None:
    result = body.rpartition("-> ")[2]
    text = f"""func.func @main(%a: tensor<4xf32>, %n: tensor<i32>) -> {result} {{
      {body} loc("here")
      return %0 : {result}
    }}"""
    with pytest.raises(invert.UnsupportedOpError, match=reason) as error:
        invert.from_stablehlo(text)
    (problem,) = error.value.problems
    assert problem.op in body and "here" in problem.location and problem.remedy
