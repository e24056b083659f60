"""Rules of StableHLO ops: registration, binding, attributes."""

from __future__ import annotations

import numpy as np
import pytest

import invert
from invert.primitives.registry import Registry
from invert.primitives.stablehlo import REGISTRY
from invert.stablehlo.ops.registry import BINDER, Entry, has_rule, rule
from tests.programs.stablehlo_text import check

T = "tensor<4xf32>"


def module(body: str, result: str = T) -> str:
    return f"func.func @main(%a: {T}) -> {result} {{ {body}\n return %0 : {result} }}"


def test_the_registry_is_frozen_and_refuses_duplicates() -> None:
    with pytest.raises(RuntimeError, match="frozen"):
        rule("stablehlo.late")(lambda x: x)
    assert REGISTRY.get("stablehlo.late") is None
    registry = Registry("the op", Entry, BINDER)
    registry.add("a", Entry())
    with pytest.raises(ValueError, match="the op 'a' already has a rule"):
        registry.add("a", Entry())
    registry.declare("a", makes_shapes=True)
    with pytest.raises(ValueError, match="makes_shapes"):
        registry.declare("a", makes_shapes=True)
    assert registry.ops() == ("a",)


def test_a_rule_declares_its_operands() -> None:
    def takes_shape(op: str) -> bool:
        entry = REGISTRY.get(op)
        return entry is not None and entry.takes_shape()

    assert takes_shape("stablehlo.dynamic_pad") and takes_shape("stablehlo.set_dimension_size")
    assert not takes_shape("stablehlo.pad") and not takes_shape("stablehlo.infeed")
    assert has_rule("stablehlo.pad") and not has_rule("stablehlo.infeed")


def test_an_attribute_that_no_rule_takes_is_an_error() -> None:
    text = module(f'%0 = "stablehlo.sine"(%a) {{strange = 1 : i32}} : ({T}) -> {T}')
    with pytest.raises(invert.UnsupportedOpError, match=r"unknown attributes \['strange'\]"):
        invert.from_stablehlo(text)


def top_k(attributes: str) -> str:
    """`chlo.top_k` as a composite."""
    values, places = "tensor<2xf32>", "tensor<2xi32>"
    return f"""
    func.func private @top(%a: {T}) -> ({values}, {places}) {{
      %0:2 = chlo.top_k(%a, k = 2) : {T} -> ({values}, {places})
      return %0#0, %0#1 : {values}, {places} }}
    func.func public @main(%a: {T}) -> ({values}, {places}) {{
      %0:2 = stablehlo.composite "chlo.top_k" %a {{
        composite_attributes = {attributes}, decomposition = @top, version = 1 : i32
      }} : ({T}) -> ({values}, {places})
      return %0#0, %0#1 : {values}, {places} }}"""


def test_a_composite_has_the_attributes_of_its_op() -> None:
    x = np.array([3, 1, 4, 1], np.float32)
    values, places = invert.from_stablehlo(top_k("{k = 2 : i64, largest = true}"))(x)
    assert values.tolist() == [4, 3] and places.tolist() == [2, 0]
    with pytest.raises(invert.UnsupportedOpError, match=r"unknown attributes \['strange'\]"):
        invert.from_stablehlo(top_k("{k = 2 : i64, strange = true}"))
    with pytest.raises(invert.MalformedModelError, match="lacks the attribute 'k'"):
        invert.from_stablehlo(top_k("{largest = true}"))


@pytest.mark.parametrize("name", ["chlo.erf", "chlo.sinh", "chlo.erf_inv", "chlo.tan", "mhlo.erf"])
@pytest.mark.parametrize("version", [0, 1])
def test_a_composite_is_its_decomposition_as_for_xla(name: str, version: int) -> None:
    """XLA takes the serializer's own composites by name, and no others."""
    text = module(
        f'%0 = stablehlo.composite "{name}" %a {{decomposition = @g, version = {version} : i32}} : '
        f"({T}) -> {T}"
    )
    text += (
        f"func.func private @g(%a: {T}) -> {T} {{ %0 = stablehlo.negate %a : {T} return %0 : {T} }}"
    )
    check(text, [np.array([0.1, 0.2, 0.3, 0.4], np.float32)])


def test_a_custom_call_has_the_attributes_of_its_op() -> None:
    def call(attributes: str) -> str:
        held = f"{{mhlo.attributes = {attributes}}}"
        return module(f"%0 = stablehlo.custom_call @mhlo.erf(%a) {held} : ({T}) -> {T}")

    recovered = invert.from_stablehlo(call("{}"))
    assert recovered.report.primitives == {"erf": 1}
    with pytest.raises(invert.UnsupportedOpError, match=r"unknown attributes \['strange'\]"):
        invert.from_stablehlo(call("{strange = 1 : i32}"))


@pytest.mark.parametrize("results", ["()", T])
def test_a_call_for_its_side_effect_is_not_left_out(results: str) -> None:
    def call(attributes: str) -> str:
        given = "" if results == "()" else "%1 = "
        body = f"{given}stablehlo.custom_call @log(%a) {{{attributes}}} : ({T}) -> {results}"
        return module(f"{body}\n%0 = stablehlo.sine %a : {T}")

    with pytest.raises(invert.UnsupportedOpError, match="@log: it has a side effect"):
        invert.from_stablehlo(call("has_side_effect = true"))
    assert invert.from_stablehlo(call("")).report.primitives == {"sin": 1}
