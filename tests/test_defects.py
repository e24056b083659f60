"""Bugs of this package are not mistaken for refusals by JAX."""

from __future__ import annotations

import ast
from collections.abc import Callable

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import invert
import invert._pipeline
import invert._verify
from invert._errors import DefectError, only_refusals
from invert.emission.expressions import proof
from invert.ir import meshes
from invert.ir.types import Value
from invert.rewriting import expansion, templates
from invert.stablehlo.ops import regions


def _takes_nothing() -> None:
    """Called with arguments, it raises a `TypeError` in its caller's code."""


def _own_type_error() -> None:
    meshes.has_meshes()  # pyright: ignore


def _refused_by_jax() -> None:
    jnp.dot(jnp.ones(2), jnp.ones(3))


def _refused_by_traced_jax() -> None:
    jax.make_jaxpr(lambda x: jnp.reshape(x, (4,)))(jnp.ones(3))


def _refused_by_numpy() -> None:
    np.broadcast_shapes((2,), (3,))


@pytest.mark.parametrize(
    "action", [_refused_by_jax, _refused_by_traced_jax, _refused_by_numpy, _own_type_error]
)
def test_refusals_of_libraries_and_of_callers_keep_their_type(action: Callable[[], None]) -> None:
    with pytest.raises((TypeError, ValueError)), only_refusals():
        action()


def test_an_error_raised_on_purpose_keeps_its_type() -> None:
    with pytest.raises(ValueError, match="not a size"), only_refusals():
        invert.save(_module(), "unused", max_shard_size=-1)


def _module() -> invert.Module:
    return invert.from_stablehlo(jax.jit(jnp.cumsum).lower(jnp.ones(3)))


def test_a_bug_while_lowering_again_is_not_a_certificate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expansion, "lowered_form", _takes_nothing)
    with pytest.raises(DefectError, match=r"TypeError in invert\.rewriting\.expansion, line"):
        _module()


def test_a_bug_while_comparing_is_not_a_certificate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(invert._verify, "largest_gap", _takes_nothing)
    jaxpr = jax.make_jaxpr(jnp.sin)(jnp.ones(3)).jaxpr
    with pytest.raises(DefectError, match=r"TypeError in invert\._verify, line"):
        invert._verify.compared(jaxpr, jaxpr, ())


def test_programs_are_compared_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU's float32 products are not accurate enough."""
    devices = []

    def recording(*args: Value) -> float:
        devices.append(jax.config.jax_default_device)
        return 0.0

    monkeypatch.setattr(invert._verify, "largest_gap", recording)
    jaxpr = jax.make_jaxpr(jnp.sin)(jnp.ones(3)).jaxpr
    assert invert._verify.compared(jaxpr, jaxpr, ()) == 0.0
    assert {d.platform for d in devices} == {"cpu"}
    assert jax.config.jax_default_device is None


def test_a_bug_at_symbolic_sizes_is_no_reason_to_divide_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = jax.ShapeDtypeStruct(jax.export.symbolic_shape("n"), jnp.float32)
    exported = jax.export.export(jax.jit(jnp.sin))(spec)
    monkeypatch.setattr(invert._pipeline, "_recognize", _takes_nothing)
    with pytest.warns(invert.DefectWarning, match="DefectError: TypeError in invert._pipeline"):
        module = invert.from_exported(exported)
        with pytest.raises(TypeError, match="_takes_nothing"):
            module(jnp.ones(3))


def test_a_bug_does_not_switch_off_checks_of_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    mesh = jax.make_mesh((1,), ("x",), axis_types=(AxisType.Auto,))
    mapped = jax.shard_map(
        lambda x: jax.lax.psum(jnp.sin(x), "x"), mesh=mesh, in_specs=P("x"), out_specs=P()
    )
    closed = jax.make_jaxpr(mapped)(jnp.ones(4))
    assert meshes.has_shards(meshes.checked(closed))
    axes_of: list[Callable[[Value], frozenset[str]]] = [meshes.varying, lambda x: None]  # pyright: ignore

    def fails_once(x: Value) -> frozenset[str]:
        return axes_of.pop()(x) if len(axes_of) > 1 else axes_of[0](x)

    monkeypatch.setattr(meshes, "varying", fails_once)
    with pytest.raises(DefectError, match=r"TypeError in invert\.ir\.meshes, line"):
        meshes.checked(closed)


def test_a_bug_while_lowering_a_call_is_not_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates, "lower", _takes_nothing)
    call = invert.Call("a key of this test", jnp.cumsum, (jax.ShapeDtypeStruct((3,), np.float32),))
    with pytest.raises(DefectError, match=r"TypeError in invert\.rewriting\.templates, line"):
        templates.raise_call(call, "cpu")


def test_a_bug_while_proving_an_expression_is_not_a_refusal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(proof.traced_form, "plain", _takes_nothing)
    aval = jax.ShapeDtypeStruct((3,), np.float32)
    with pytest.warns(invert.DefectWarning, match=r"DefectError: TypeError in invert\.emission"):
        proof.Prover().trace(ast.parse("-x", mode="eval").body, ["x"], [aval], x64=False)


def test_a_bug_of_a_stablehlo_rule_is_not_an_unsupported_op(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = jax.jit(jnp.sort).lower(jnp.ones(3)).as_text()
    monkeypatch.setattr(regions, "signature", _takes_nothing)
    with pytest.raises(
        DefectError,
        match=r"TypeError in invert\.primitives\.stablehlo\.sort, line \d+, while raising "
        r"stablehlo\.sort at ",
    ):
        invert.from_stablehlo(text)


def test_a_bug_at_open_sizes_is_not_another_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    tf = pytest.importorskip("tensorflow")
    from invert.primitives.tf import elementwise

    served = tf.function(
        lambda x: tf.shape(tf.boolean_mask(x, x > 0))[0] * 2,
        input_signature=[tf.TensorSpec([3], tf.float32)],
    )
    monkeypatch.setattr(elementwise, "fold_binary", _takes_nothing)
    with pytest.raises(
        DefectError, match=r"TypeError in invert\.primitives\.tf\.elementwise.* tf\.Mul at "
    ):
        invert.roundtrip(served)


def test_a_bug_while_calling_tensorflow_is_not_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    tf = pytest.importorskip("tensorflow")
    from invert.tf.fallback import eager

    served = tf.function(
        lambda x: x[tf.unique(tf.constant(["a", "b", "a"]))[1][2]],
        input_signature=[tf.TensorSpec([3], tf.float32)],
    )
    monkeypatch.setattr(eager, "graph_with_inputs", _takes_nothing)
    with pytest.raises(DefectError, match=r"TypeError in invert\.tf\.fallback\.eager"):
        invert.roundtrip(served)
