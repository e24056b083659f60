"""Work that a conversion does not repeat, counted rather than timed."""

from __future__ import annotations

import cProfile
import itertools
import pstats
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax.interpreters import partial_eval

import invert
from invert import _verify
from invert._entry import unique
from invert._private import jax as private
from invert.gradients import settle, stop_gradient
from invert.gradients.region import MarkedRegion
from invert.ir import jaxprs, merging
from invert.patterns import STAGES
from invert.rewriting import driver, expansion
from invert.rewriting.driver import Rewriter
from invert.rewriting.templates import raise_call
from invert.stablehlo import lowered


def counted(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[Any]:
    """Record the first arguments of the calls of a function."""
    calls: list[Any] = []
    function = getattr(owner, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        calls.append(args[0])
        return function(*args, **kwargs)

    monkeypatch.setattr(owner, name, call)
    return calls


def test_program_that_no_pattern_changes_is_not_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared = counted(monkeypatch, _verify, "equivalent")
    lowered = counted(monkeypatch, _verify, "lower_alike")
    whole = counted(monkeypatch, _verify, "_again")
    plain = jax.export.export(jax.jit(lambda x: jnp.sin(x) * x))(np.ones(3, np.float32))
    assert str(invert.from_exported(plain).report.certificate) == "exact" and not compared
    changed = jax.export.export(jax.jit(jnp.cumsum))(np.ones(3, np.float32))
    assert str(invert.from_exported(changed).report.certificate) == "exact" and len(lowered) == 1
    assert not whole  # equation by equation


def test_bytes_of_constants_are_read_only_where_one_is_not_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read = counted(monkeypatch, jaxprs, "_value")
    constants = list(np.random.default_rng(0).normal(size=(50, 4)))
    assert jaxprs._places(constants[::-1], constants) == list(range(50))[::-1] and not read
    copies = [c.copy() for c in constants[1:]]
    places = jaxprs._places([*copies, np.ones(4)], constants)
    assert places == [*range(1, 50), None]
    assert len(read) == 100  # of each once, not of each pair


def test_stages_pass_over_bodies_without_their_primitives(monkeypatch: pytest.MonkeyPatch) -> None:
    swept = counted(monkeypatch, Rewriter, "_sweep")
    function = jax.jit(lambda x: jnp.sin(jnp.sin(x)))
    closed = jax.make_jaxpr(lambda x: function(x) + function(x + 1))(np.ones(3, np.float32))
    rewriter = Rewriter(STAGES, raise_call)
    assert rewriter.run(closed).eqns
    with_roots = sum(
        not {r for p in stage.patterns for r in p.roots}.isdisjoint({"sin", "add", "jit"})
        for stage in STAGES
    )
    assert len(swept) <= 2 * with_roots < 2 * len(STAGES)


def test_templates_outlive_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.ones(7, np.float32)
    raised = jax.export.export(jax.jit(lambda x: jnp.cumsum(x) * 2))(x)
    invert.from_exported(raised)
    made = counted(monkeypatch, driver, "Graph")
    swept = counted(monkeypatch, Rewriter, "run_stage")
    invert.from_exported(raised)
    assert len({id(rewriter) for rewriter in swept}) == 1  # of the program, and of no template
    assert made


@pytest.mark.parametrize("function", [jax.nn.softmax, jax.nn.log_softmax, jax.nn.logsumexp])
def test_functions_that_are_there_already_are_not_lowered(
    monkeypatch: pytest.MonkeyPatch, function: Any
) -> None:
    asked = counted(monkeypatch, Rewriter, "template")
    closed = jax.make_jaxpr(function)(np.ones((4, 7), np.float32))
    body = closed.eqns[0].params["jaxpr"] if len(closed.eqns) == 1 else closed
    names = {"softmax", "logsumexp"}
    stages = [s for s in STAGES if names & {pattern.name for pattern in s.patterns}]
    assert stages
    for stage in stages:
        Rewriter((stage,), raise_call).run(body)
    assert not asked


@pytest.mark.parametrize("shape", ["3, 4", "n, 4", "n, m"])
def test_a_function_is_traced_once_to_be_lowered(shape: str) -> None:
    traced: list[Any] = []

    def function(x: Any) -> Any:
        traced.append(x)
        return jnp.sum(x * x.shape[0], axis=0)

    aval = jax.ShapeDtypeStruct(jax.export.symbolic_shape(shape), np.float32)
    again = lowered.raised_again(function, [aval], platform="cpu", x64=False)
    assert len(traced) == 1
    assert [v.aval.shape for v in again.jaxpr.outvars] == [aval.shape[1:]]


def test_sizes_that_only_results_have_are_lowered_too() -> None:
    (n,) = jax.export.symbolic_shape("n")
    with jax.enable_x64(False):
        again = lowered.raised_again(
            lambda x: jnp.broadcast_to(x, (n,)), [jax.ShapeDtypeStruct((), np.float32)],
            platform="cpu", x64=False,
        )  # fmt: skip
    assert [v.aval.shape for v in again.jaxpr.outvars] == [(n,)]


def test_no_caller_is_looked_up_for_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = counted(monkeypatch, private.source_info_util, "is_user_filename")
    (n,) = jax.export.symbolic_shape("n")
    shape = jax.ShapeDtypeStruct((n,), np.float32)
    exported = jax.export.export(jax.jit(jnp.sin))(shape).serialize()
    asked.clear()
    assert invert.from_exported(exported).report.sizes and not asked


def test_loops_become_scans_without_a_trace_of_their_bodies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def scanned(x: Any) -> Any:
        return jax.lax.scan(lambda carry, row: (jnp.sin(carry) * row, carry), x[0], x)

    exported = jax.export.export(jax.jit(scanned))(np.ones((3, 2), np.float32))
    traced = counted(monkeypatch, jax.lax, "scan")
    assert invert.from_exported(exported).report.rewrites["scan"] == 1 and not traced


def test_loops_that_agree_as_they_are_take_no_normal_form(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    normal = counted(monkeypatch, expansion, "lowered_form")

    def run(xs: jax.Array) -> tuple[jax.Array, jax.Array]:
        def step(c: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
            c = jnp.tanh(c + x)
            return c, c * 2

        return jax.lax.scan(step, jnp.zeros(3), xs)

    module = invert.from_exported(jax.export.export(jax.jit(run))(np.ones((5, 3), np.float32)))
    assert module.report.rewrites == {"scan": 1}
    assert str(module.report.certificate) == "exact" and not normal


def test_names_are_numbered_from_one() -> None:
    taken: set[str] = set()
    names = [unique("kernel", taken) for _ in range(70)]
    assert names == ["kernel", *(f"kernel_{i}" for i in range(1, 70))]
    assert unique("bias", taken) == "bias"


def test_keys_of_operations_are_made_only_where_operands_agree(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = counted(monkeypatch, merging, "operation_key")
    jaxpr = jax.make_jaxpr(lambda x, y: jnp.sin(x) + jnp.sin(y) * x)(1.0, 2.0).jaxpr
    assert merging.merge_equations(jaxpr) is jaxpr and not made

    def repeats(x: Any) -> Any:
        sums = [x.sum(0), x.sum(1), x.sum(0), x.sum(1), x.sum(0)]
        return [jnp.tanh(y) for y in sums]

    jaxpr = jax.make_jaxpr(repeats)(np.ones((3, 3), np.float32)).jaxpr
    merged = merging.merge_equations(jaxpr)
    assert jaxprs.primitive_counts(merged) == {"reduce_sum": 2, "tanh": 2}
    first, second, *_ = merged.outvars
    assert list(merged.outvars) == [first, second, first, second, first]


def test_live_programs_are_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    searched = counted(monkeypatch, jaxprs, "_live_equations")

    def loop(x: Any) -> Any:
        return jax.lax.while_loop(lambda c: c[0] < 9, lambda c: (c[0] + 1, c[1] * 2), (0, x))[1]

    live = jaxprs.canonicalize(private.trace_closed(loop, 1.0))
    assert jaxprs.canonicalize(live) is live
    searched.clear()
    assert jaxprs.canonicalize(live) is live and not searched


def test_dead_equations_are_found_without_the_rules_of_jax(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def scanned(xs: Any) -> Any:
        return jax.lax.scan(lambda c, x: ((c[1], c[0] + x), c[1]), (1.0, 2.0), xs)[1]

    def dead(xs: Any) -> Any:
        jnp.sin(xs)
        return jnp.cos(xs)

    def idle(xs: Any) -> Any:
        return jax.lax.scan(lambda c, x: ((c[0] * 2, c[1] + x), c[1]), (1.0, 2.0), xs)[1]

    def branched(xs: Any) -> Any:
        return jax.jit(lambda x, y: jax.lax.cond(x[0] > 0, jnp.sin, jnp.cos, y + x))(xs, xs + 1)

    def chosen(xs: Any) -> Any:
        """Each branch ignores what the other one reads."""
        return jax.lax.cond(xs[0] > 0, lambda x, y: x, lambda x, y: y, xs * 2, xs * 3)

    functions = (scanned, dead, idle, branched, chosen)
    live, plain, ruled, *branches = (jax.make_jaxpr(f)(jnp.ones(3)).jaxpr for f in functions)
    asked = counted(monkeypatch, private.partial_eval, "dce_jaxpr")
    assert private.dce(live) is live
    assert all(private.dce(jaxpr) is jaxpr for jaxpr in branches)
    assert [e.primitive.name for e in private.dce(plain).eqns] == ["cos"] and not asked
    (loop,) = private.dce(ruled).eqns
    assert private.scan_layout(loop.params)[1] == 1 and asked


def test_arguments_that_results_need_are_found_without_a_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = counted(monkeypatch, private, "live_part")

    def plain(a: Any, b: Any, c: Any, d: Any) -> Any:
        return a + b, jnp.sin(c), b, jnp.stack([d, c])[0] * 0 + a

    def scanned(a: Any, b: Any, c: Any) -> Any:
        one, _ = jax.lax.scan(lambda s, x: ((s[0] + x, s[1] * 2), None), (a, b), jnp.ones(3))
        return *one, c

    def branched(a: Any, b: Any, c: Any, d: Any) -> Any:
        one = jax.lax.cond(a > 0, lambda x, y, z: (x, y * z), lambda x, y, z: (z, z), b, c, d)
        return jax.lax.cond(a > 1, lambda x, y: x, lambda x, y: y * 2, b, c), *one

    def unused(a: Any, b: Any, c: Any) -> Any:
        """No branch reads one of the operands."""
        branches = [jax.make_jaxpr(f)(1.0, 1.0) for f in (lambda x, y: x, lambda x, y: x * 2)]
        return jax.lax.cond_p.bind(jnp.int32(a > 0), b, c, branches=tuple(branches))

    def masks(function: Any, count: int) -> None:
        jaxpr = jax.make_jaxpr(function)(*[1.0] * count).jaxpr
        for used in itertools.product((True, False), repeat=len(jaxpr.outvars)):
            expected = partial_eval.dce_jaxpr(jaxpr, used)[1]
            assert list(private.arguments_read(jaxpr, used)) == expected

    masks(plain, 4)
    assert not asked
    masks(scanned, 3)
    assert asked  # only JAX's rule knows what a scan reads
    masks(branched, 4)
    masks(unused, 3)
    asked.clear()
    closed = jax.make_jaxpr(branched)(*[1.0] * 4).jaxpr
    assert all(private.arguments_read(closed, [True] * 3)) and not asked


def test_a_call_does_little_for_each_parameter() -> None:
    """Equinox's lookups of methods and attributes run tens of Python functions."""

    def calls(count: int) -> int:
        arrays = [np.ones(3, np.float32)] * count
        names = [f"layer_{i}/w" for i in range(count)]
        lowered = jax.jit(lambda *args: sum(args)).lower(*arrays, arrays[0])
        params: dict[str, Any] = dict(zip(names, arrays, strict=True))
        module = invert.from_stablehlo(lowered, params=params, names=[*names, "x"])
        for _ in range(2):
            module(arrays[0])
        profile = cProfile.Profile()
        profile.runcall(module, arrays[0])
        stats: Any = pstats.Stats(profile)
        return stats.total_calls

    few, many = calls(2), calls(102)
    assert few < 400 and many - few < 15 * 100


@pytest.mark.parametrize("mode", [None, "clip"])
def test_gradients_of_lookups_are_proved_at_once(
    monkeypatch: pytest.MonkeyPatch, mode: Any
) -> None:
    proofs = counted(monkeypatch, settle.GradientResolver, "_is_proved")

    def mean(table: Any, i: Any) -> Any:
        return jnp.mean(jnp.sin(table.at[i].get(mode=mode)), axis=-1)

    given = jax.ShapeDtypeStruct((9, 4), np.float32), jax.ShapeDtypeStruct((5,), np.int32)
    exported = jax.export.export(jax.jit(mean))(*given).serialize(vjp_order=1)
    module = invert.from_exported(jax.export.deserialize(exported))
    assert len(proofs) == 1
    table, far = np.ones((9, 4), np.float32), np.array([0, 1, 2, 3, 99], np.int32)
    slope = jax.grad(lambda f: jnp.sum(module(f, far)))(table)
    assert np.any(np.asarray(slope)[8] != 0) == (mode == "clip")


def test_a_function_is_differentiated_once_to_be_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    differentiated = counted(monkeypatch, MarkedRegion, "autodiff")

    @jax.custom_jvp
    def doubled(x: jax.Array) -> jax.Array:
        return jnp.sin(x)

    doubled.defjvp(lambda primals, tangents: (doubled(*primals), 2.0 * tangents[0]))

    def steps(x: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda x, _: (jnp.tanh(doubled(x)), None), x, length=3)[0]

    exported = jax.export.export(jax.jit(steps))(np.ones(3, np.float32))
    (told,) = invert.from_exported(exported.serialize(vjp_order=1)).report.gradients
    assert "kept as custom_jvp" in told  # after a proof, a search for checkpoints, and numbers
    programs = [region.forward for region in differentiated]
    assert len(programs) == len(set(map(id, programs)))


def test_stops_are_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The roundings of positions have no derivative to pass on, and bounds change no number."""
    searches = counted(monkeypatch, stop_gradient, "_search")

    def image(x: jax.Array, codes: jax.Array) -> jax.Array:
        code = codes[jnp.argmax(x @ codes.T, axis=-1)]
        y = jax.image.resize(x + jax.lax.stop_gradient(code - x), (6, 4), "nearest")
        return jnp.sum(jnp.sin(y)) + jnp.sum((jax.lax.stop_gradient(code) - x) ** 2)

    given = jax.ShapeDtypeStruct((3, 4), np.float32), jax.ShapeDtypeStruct((5, 4), np.float32)
    exported = jax.export.export(jax.jit(image))(*given).serialize(vjp_order=1)
    module = invert.from_exported(jax.export.deserialize(exported))
    assert len(searches) == 1
    (told,) = module.report.gradients
    assert told.endswith("agrees with autodiff, with stop_gradient put back")
    assert "straight_through" not in module.source
    x, codes = (np.random.default_rng(0).normal(size=a.shape).astype(a.dtype) for a in given)
    for i in (0, 1):
        ours, theirs = (jax.grad(f, i)(x, codes) for f in (module, image))
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)
