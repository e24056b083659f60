"""Ops that are in no other table, and a check that every op with a rule is tested."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.export
import numpy as np
import pytest

import invert
import invert.frontends.stablehlo  # registers the rules
from invert.ir.jaxprs import equations
from invert.stablehlo.ops.registry import REGISTRY, has_rule
from tests.programs import array_ops, elementwise_ops, other_ops, region_ops
from tests.programs.other_ops import MODULES
from tests.programs.stablehlo_text import check, flat, one_op, tensor

# Tested below: its values are random.
OWN_TESTS = {"stablehlo.rng"}


@pytest.mark.parametrize(
    ("op", "variant"), [(op, i) for op in sorted(MODULES) for i in range(len(MODULES[op]))]
)
def test_op(op: str, variant: int) -> None:
    text, args, expected = MODULES[op][variant]
    # JAX does not batch its generator of random bits over states of several shapes.
    check(text, args, expected=expected, vmap=op != "stablehlo.rng_bit_generator")


def test_rng_draws_between_its_bounds() -> None:
    args = [np.float32(2), np.float32(5), np.array([300], np.int64)]
    text = (
        one_op(
            "stablehlo.rng",
            args,
            tensor(np.float32, (300,)),
            "{rng_distribution = #stablehlo<rng_distribution UNIFORM>}",
        )
        .replace(", %a2: tensor<1xi64>", "")
        .replace("%r0 =", "%a2 = stablehlo.constant dense<300> : tensor<1xi64>\n%r0 =", 1)
    )
    (drawn,) = flat(invert.from_stablehlo(text))(*args[:2])
    assert drawn.shape == (300,)
    assert drawn.dtype == np.float32
    assert 2 <= drawn.min() < 2.5
    assert 4.5 < drawn.max() <= 5


@pytest.mark.parametrize("state", ["3xui64", "6xui32"])
def test_states_that_jax_does_not_take(state: str) -> None:
    with pytest.raises(invert.UnsupportedOpError, match="two uint64 or four uint32"):
        invert.from_stablehlo(f"""
        func.func @main(%a: tensor<{state}>) -> tensor<5xui32> {{
          %0:2 = stablehlo.rng_bit_generator %a, algorithm = PHILOX :
            (tensor<{state}>) -> (tensor<{state}>, tensor<5xui32>)
          return %0#1 : tensor<5xui32> }}""")


def test_every_rule_has_a_test() -> None:
    tables = (array_ops, elementwise_ops, other_ops, region_ops)
    tested = {op for table in tables for op in table.MODULES} | OWN_TESTS
    named = {op for op in REGISTRY.ops() if has_rule(op) and "@" not in op}
    assert named - tested == set()


@pytest.mark.parametrize("table", [array_ops, elementwise_ops, other_ops, region_ops])
def test_every_module_holds_the_op_it_is_listed_under(table) -> None:
    for op, variants in table.MODULES.items():
        for text, *_ in [variants] if isinstance(variants[0], str) else variants:
            assert op in text


def test_nothing_is_left_between_tests() -> None:
    assert not jax.config.jax_enable_x64


def test_precision_of_a_ragged_dot() -> None:
    text, _, _ = MODULES["chlo.ragged_dot"][0]
    high = "precision_config = [#chlo<precision HIGHEST>, #chlo<precision DEFAULT>]"
    text = text.replace("rhs_group_dimensions = [0]>", f"rhs_group_dimensions = [0]>, {high}")
    module = invert.from_stablehlo(text)
    (eqn,) = (e for e in equations(module.jaxpr) if e.primitive.name.startswith("ragged_dot"))
    assert [p.name for p in eqn.params["precision"]] == ["HIGHEST", "DEFAULT"]


def test_the_smallest_values_are_refused() -> None:
    for text in (
        MODULES["mhlo.topk"][0][0].replace("largest = true", "largest = false"),
        MODULES["chlo.top_k"][0][0].replace("k = 2)", "k = 2) {largest = false}"),
    ):
        with pytest.raises(invert.InvertError, match="smallest"):
            invert.from_stablehlo(text)


@pytest.mark.parametrize("batched", [False, True])
def test_ragged_dot_of_a_gpu(batched: bool) -> None:
    """A composite there, which lists its dimensions without names."""
    shape = (2,) if batched else ()
    rng = np.random.default_rng(0)
    x = rng.standard_normal((*shape, 8, 4), np.float32)
    y = rng.standard_normal((*shape, 2, 4, 6), np.float32)
    sizes = np.array([[3, 5], [6, 2]] if batched else [3, 5], np.int32)

    def f(x: Any, y: Any, sizes: Any) -> Any:
        one = functools.partial(jax.lax.ragged_dot, precision="highest")
        return jax.vmap(one)(x, y, sizes) if batched else one(x, y, sizes)

    exported = jax.export.export(jax.jit(f), platforms=["cuda"])(x, y, sizes)
    module = invert.from_exported(exported)
    (eqn,) = (e for e in equations(module.jaxpr) if e.primitive.name.startswith("ragged_dot"))
    assert eqn.params["precision"] == (jax.lax.Precision.HIGHEST,) * 2
    np.testing.assert_array_equal(jax.jit(module)(x, y, sizes), jax.jit(f)(x, y, sizes))
