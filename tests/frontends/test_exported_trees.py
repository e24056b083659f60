"""Artifacts whose trees are of classes that only the author's process registers."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.export import _export

import invert


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class State:
    position: Any
    velocity: Any


class Graph(NamedTuple):
    nodes: Any
    state: Any


def step(graph: Graph, dt: Any) -> tuple[Graph, dict[str, Any]]:
    x, v = graph.state.position, graph.state.velocity
    new = State(x + dt * v, v - dt * jnp.sin(x) * graph.nodes)
    return Graph(graph.nodes * 2, new), {"energy": jnp.sum(v**2)}


@pytest.fixture
def artifact(monkeypatch: pytest.MonkeyPatch) -> bytearray:
    """The function and its gradient, where no class of its trees is registered."""
    for registry in ("serialization_registry", "deserialization_registry"):
        monkeypatch.setattr(_export, registry, dict(getattr(_export, registry)))
    jax.export.register_namedtuple_serialization(Graph, serialized_name="Graph")
    jax.export.register_pytree_node_serialization(
        State,
        serialized_name="State",
        serialize_auxdata=lambda _: b"",
        deserialize_auxdata=lambda _: (),
    )
    blob = jax.export.export(jax.jit(step))(GRAPH, DT).serialize(vjp_order=1)
    whole = jax.tree.structure(invert.from_exported(blob)(GRAPH, DT))
    assert whole == jax.tree.structure(step(GRAPH, DT))
    del _export.deserialization_registry["Graph"], _export.deserialization_registry["State"]
    return blob


X = np.linspace(-1, 1, 3, dtype=np.float32)
GRAPH = Graph(X, State(X + 1, X - 2))
DT = np.float32(0.1)


def test_trees_of_unknown_classes_are_tuples(artifact: bytearray) -> None:
    before = bytes(artifact)
    module = invert.from_exported(artifact)
    assert artifact == before
    assert module.report.certificate.kind == "exact"
    plain = X, (X + 1, X - 2)
    model: Any = module.model
    for run in (module, model):
        (nodes, state), energy = jax.jit(lambda *args, run=run: run(*args))(plain, DT)
        assert isinstance(state, tuple)
        want = jax.tree.leaves(jax.jit(step)(GRAPH, DT))
        for value, expected in zip((nodes, *state, energy["energy"]), want, strict=True):
            np.testing.assert_array_equal(value, expected)
        gradient = jax.grad(lambda x, run=run: run(x, DT)[1]["energy"])(plain)
        np.testing.assert_array_equal(gradient[1][1], 2 * (X - 2))


def test_arguments_of_unknown_classes_keep_their_names(artifact: bytearray) -> None:
    module = invert.from_exported(artifact)
    assert "(graph: (float32[3], (float32[3], float32[3])), dt: float32[])" in repr(module)


@pytest.mark.parametrize("given", ["object", "dictionary", "tuples"])
def test_weights_of_unknown_classes_have_the_names_of_their_fields(
    artifact: bytearray, given: str
) -> None:
    trees: dict[str, Any] = {
        "object": GRAPH,
        "dictionary": {"nodes": X, "state": {"position": X + 1, "velocity": X - 2}},
        "tuples": (X, (X + 1, X - 2)),
    }
    module: Any = invert.from_exported(artifact, params={"graph": trees[given]})
    names = ["nodes", "state/position", "state/velocity"]
    assert list(invert.values(module)) == names
    source = module.source
    assert all(f"self.{name.replace('/', '.')}" in source for name in names)
    want = jax.tree.leaves(jax.jit(step)(GRAPH, DT))
    for run in (module, module.model):
        for got, expected in zip(jax.tree.leaves(run(DT)), want, strict=True):
            np.testing.assert_array_equal(got, expected)


def test_a_missing_weight_has_the_name_of_its_field(artifact: bytearray) -> None:
    with pytest.raises(invert.SignatureError, match="graph/state/velocity is missing"):
        invert.from_exported(artifact, params={"graph": {"nodes": X, "state": {"position": X}}})


def test_unused_weights_of_unknown_classes_take_the_names_that_are_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for registry in ("serialization_registry", "deserialization_registry"):
        monkeypatch.setattr(_export, registry, dict(getattr(_export, registry)))
    jax.export.register_namedtuple_serialization(Graph, serialized_name="Graph")
    blob = jax.export.export(jax.jit(lambda g, x: g.state * x))(Graph(X, X + 1), X).serialize()
    del _export.deserialization_registry["Graph"]
    module = invert.from_exported(blob, params={"g": Graph(X, X + 1)})
    assert list(invert.values(module)) == ["nodes", "state"]
    np.testing.assert_array_equal(module(X), (X + 1) * X)
