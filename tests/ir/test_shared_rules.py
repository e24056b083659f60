"""Calls of one function share its derivative rule; calls of others do not."""

import functools

import jax
import jax.export
import pytest

import invert
from invert._private.jax import dce, eval_closed, jvp_rule_of, open_jaxpr, trace_closed
from invert.ir import traced_form
from invert.ir.substitution import substitute

_X = jax.ShapeDtypeStruct((3,), "float32")


def _call(closed):
    (eqn,) = open_jaxpr(closed).eqns
    assert eqn.primitive.name == "custom_jvp_call"
    return eqn


def _rule(eqn):
    return jvp_rule_of(eqn.params)


def _bound_again(closed, *avals):
    return trace_closed(lambda *xs: eval_closed(closed, xs), *avals)


def test_a_call_keeps_the_function_of_its_rule():
    traced = trace_closed(jax.nn.relu, _X)
    wanted = _rule(_call(traced))
    assert wanted is not None
    assert _rule(_call(trace_closed(lambda x: jax.nn.relu(x), _X))) == wanted
    twice = _bound_again(_bound_again(traced, _X), _X)
    assert _rule(_call(twice)) == wanted
    (eqn,) = dce(open_jaxpr(twice)).eqns
    assert _rule(eqn) == wanted


def test_rules_at_other_types_differ():
    other = jax.ShapeDtypeStruct((4,), "float32")
    one, two = (trace_closed(jax.nn.relu, x) for x in (_X, other))
    assert _rule(_call(one)) != _rule(_call(two))


def test_rules_at_open_sizes_are_keyed_by_the_substituted_sizes():
    (n,) = jax.export.symbolic_shape("n")
    traced = trace_closed(jax.nn.relu, jax.ShapeDtypeStruct((n,), "float32"))
    twice = trace_closed(
        lambda x: [jax.nn.relu(x), jax.nn.relu(-x)], jax.ShapeDtypeStruct((n,), "float32")
    )
    at_three = substitute(twice, {"n": 3})
    one, two = (e for e in open_jaxpr(at_three).eqns if e.primitive.name == "custom_jvp_call")
    assert _rule(one) is not None
    assert _rule(one) == _rule(two)
    assert _rule(one) != _rule(_call(substitute(traced, {"n": 4})))


def _with_rule(slope):
    @jax.custom_jvp
    def function(x):
        return x * 2.0

    function.defjvp(lambda primals, tangents: (function(*primals), slope * tangents[0]))
    return function


def test_functions_with_other_rules_differ():
    """Their programs and the names of all their functions are equal."""
    two, three = (trace_closed(_with_rule(s), _X) for s in (2.0, 3.0))
    assert _rule(_call(two)) != _rule(_call(three))
    assert traced_form.difference(two, three) is not None
    assert traced_form.difference(two, trace_closed(_with_rule(2.0), _X)) is None


def test_arguments_that_a_rule_does_not_differentiate_are_not_taken_for_equal():
    @functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
    def scaled(slope, x):
        return x * 2.0

    scaled.defjvp(lambda slope, primals, tangents: (scaled(slope, *primals), slope * tangents[0]))
    two, three = (trace_closed(functools.partial(scaled, s), _X) for s in (2.0, 3.0))
    assert _rule(_call(two)) is None
    assert traced_form.difference(two, three) is not None


@pytest.mark.parametrize("layers, batch", [(3, "2"), (9, "2"), (3, "batch")])
def test_a_text_does_not_trace_the_rules_of_its_activations(layers, batch, monkeypatch):
    def apply(w, x):
        for i in range(layers):
            x = jax.nn.relu(x @ w[i])
        return x

    shape = jax.export.symbolic_shape(f"{batch}, 4")
    types = [jax.ShapeDtypeStruct(s, "float32") for s in ((layers, 4, 4), shape)]
    module = invert.from_exported(jax.export.export(jax.jit(apply))(*types))
    traced = []
    rule_of = traced_form.rule_of
    monkeypatch.setattr(traced_form, "rule_of", lambda eqn: traced.append(eqn) or rule_of(eqn))
    traced_form._rule_by_key.cache_clear()
    assert module.source.count("jax.nn.relu") >= 1
    assert not traced
