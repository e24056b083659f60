"""Hints survive in name scopes, whatever names a file gives its ops."""

import jax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from invert._private.jax import name_stack, names_of, trace_closed
from invert.ir import hints
from invert.ir.hints import Hint

_NAMES = ["", "add", "=", ";", "#order", "array", "a;0:1", "a;array", "%3B", "a/b", "jit(f)", "ü:"]


@given(
    primitive=st.one_of(st.sampled_from(_NAMES), st.text()),
    operands=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 99)), max_size=3),
    broadcast=st.none() | st.integers(0, 99),
    is_array=st.booleans(),
    assumes_order=st.booleans(),
)
def test_a_hint_comes_back_from_its_name_scope(
    primitive, operands, broadcast, is_array, assumes_order
):
    hint = Hint(primitive, tuple(operands), broadcast, is_array, assumes_order)
    scope = hint.encode()
    assert hints.is_hint(scope)
    assert hints.decode(scope) == hint
    # As JAX keeps it: scopes are joined by slashes, and those with a parenthesis are transforms.
    assert not set("/()") & set(scope)


@pytest.mark.parametrize("name", _NAMES)
def test_the_hint_of_an_equation_is_its_last_scope(name):
    def fn(x):
        with name_stack(("layer", Hint(name, is_array=True).encode())):
            return x + 1.0

    closed = trace_closed(fn, jax.ShapeDtypeStruct((), "float32"))
    (eqn,) = closed.jaxpr.eqns
    assert hints.hint_of(eqn) == Hint(name, is_array=True)
    assert hints.names_primitives(closed) == bool(name)
    (bare,) = hints.without_hints(closed).jaxpr.eqns
    assert names_of(bare) == ("layer",)
    assert hints.hint_of(bare) == Hint()


def test_a_scope_of_the_author_is_not_a_hint():
    def fn(x):
        with jax.named_scope("array;0:1"):
            return x + 1.0

    closed = trace_closed(fn, jax.ShapeDtypeStruct((), "float32"))
    (eqn,) = closed.jaxpr.eqns
    assert hints.hint_of(eqn) == Hint()
    assert not hints.assumes_order(closed.jaxpr)
