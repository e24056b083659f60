"""Conversions and texts take fewer collections of garbage, and leave the collector as it was."""

import gc

import jax
import jax.export
import jax.numpy as jnp
import pytest

import invert

_DEFAULT, _OFF, _RARE = (700, 10, 10), (0, 5, 5), (90_000, 7, 7)


@pytest.mark.parametrize("given", [_DEFAULT, _OFF, _RARE])
def test_thresholds_are_raised_and_restored(given: tuple[int, int, int]) -> None:
    x = jax.ShapeDtypeStruct((3,), jnp.float32)
    exported = jax.export.export(jax.jit(lambda x: jnp.tanh(x) + 1))(x)
    seen: list[tuple[int, int, int]] = []
    config = invert.Config(progress=lambda text: seen.append(gc.get_threshold()))
    before = gc.get_threshold()
    gc.set_threshold(*given)
    try:
        module = invert.from_exported(exported, config=config)
        assert gc.get_threshold() == given
        converting = len(seen)
        module.emit()
        assert gc.get_threshold() == given
    finally:
        gc.set_threshold(*before)
    raised = given == _DEFAULT
    assert 0 < converting < len(seen)
    assert all(now[0] > 10_000 if raised else now == given for now in seen)
