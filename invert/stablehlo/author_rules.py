"""The derivative rules in programs that JAX traced in this process.

Lowering drops the rules. Where JAX cannot export the derivative of a whole program, each equation
with a rule is lowered as a function of its own name, and its derivative by itself. Raising marks
the results of such a function with that derivative.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence

import jax
import jax.export
from jax import lax
from jax.lax import GatherScatterMode as Mode

from invert._config import Config
from invert._errors import in_short
from invert._private.artifacts import exported_program, stated_mesh
from invert._private.jax import (
    eval_closed,
    from_words,
    has_rule_of_jax,
    is_solved_by_jax,
    is_stopped_by_jax,
    is_tracer,
    open_jaxpr,
    trace_closed,
    words_of,
)
from invert.ir.avals import is_differentiable, type_of
from invert.ir.gradient_marker import Gradient, mark, without_derivative
from invert.ir.interpret import bind, inlined
from invert.ir.jaxprs import (
    canonicalize,
    enabling_x64,
    equations,
    has_wide_types,
    is_wide,
    is_wide_dtype,
    map_equations,
    names_in,
    sub_jaxprs,
    with_values,
)
from invert.ir.lookups import hides_mode
from invert.ir.lowered_form import lowered_form
from invert.ir.match import difference
from invert.ir.order import reached
from invert.ir.sizes import DimSize, dimensions, evaluate
from invert.ir.types import AnyJaxpr, ClosedJaxpr, Eqn, J, Jaxpr, Value
from invert.stablehlo.lowered import Lowered, lower
from invert.stablehlo.ops.interpreter import MarkedCall
from invert.stablehlo.program import Program


def is_rule(eqn: Eqn) -> bool:
    """Return whether an equation has a derivative rule of its author."""
    if eqn.primitive.name == "stop_gradient":
        return not is_stopped_by_jax(eqn)
    if eqn.primitive.name == "custom_jvp_call":
        return not has_rule_of_jax(eqn)
    if eqn.primitive.name == "custom_linear_solve":
        # Its derivative is that of an exact solution; the steps of the author's may have another.
        return not is_solved_by_jax(eqn)
    # In jax 0.12, `custom_root` is a primitive of the latter kind.
    return eqn.primitive.name in ("custom_vjp_call", "call_hi_primitive")


def has_rules(jaxpr: Jaxpr, ignored: str = "") -> bool:
    """Return whether a program has derivative rules of its author; visits shared parts once.

    Those of the primitive `ignored` do not count.
    """

    def inside(current: Jaxpr) -> Iterator[Jaxpr]:
        for eqn in current.eqns:
            # The derivative of a linear solve does not depend on how it is solved.
            solve = eqn.primitive.name == "custom_linear_solve"
            yield from map(open_jaxpr, [eqn.params["jaxprs"].matvec] if solve else sub_jaxprs(eqn))

    eqns = (eqn for current in reached([jaxpr], inside) for eqn in current.eqns)
    return any(eqn.primitive.name != ignored and is_rule(eqn) for eqn in eqns)


def with_named_rules(
    program: J, platform: str, chosen: Callable[[Eqn], bool] = is_rule
) -> tuple[J, dict[str, MarkedCall]]:
    """The program with a named function for each chosen equation, and their rules by name."""
    rules: dict[str, MarkedCall] = {}
    count = itertools.count()

    def named(eqn: Eqn) -> Eqn:
        if not chosen(eqn) or not any(is_differentiable(v.aval) for v in eqn.outvars):
            return eqn

        def function(*values: Value) -> list[Value]:
            return bind(eqn, values)

        function.__name__ = function.__qualname__ = f"equation_{next(count)}_with_a_rule"
        rules[function.__name__] = AuthorRule.of(eqn, platform).call
        (call,) = open_jaxpr(trace_closed(jax.jit(function), *map(type_of, eqn.invars))).eqns
        return eqn.replace(primitive=call.primitive, params=call.params, effects=call.effects)

    return map_equations(program, named), rules


def gather_modes(program: AnyJaxpr | None) -> set[Mode]:
    """How a program's gathers of numbers with derivatives treat indices, where they lower alike."""
    eqns = () if program is None else equations(open_jaxpr(program))
    modes = {e.params["mode"] for e in eqns if hides_mode(e)}
    return modes & {Mode.CLIP, Mode.PROMISE_IN_BOUNDS}


def types_of(exported: jax.export.Exported) -> contextlib.AbstractContextManager[object]:
    """Enable 64-bit types if the arguments or results of an artifact have them."""
    is_wide = any(is_wide_dtype(a.dtype) for a in (*exported.in_avals, *exported.out_avals))
    return enabling_x64(is_wide)


def flat_function(
    exported: jax.export.Exported, program: Program
) -> Callable[[Sequence[Value]], list[Value]]:
    """An artifact's program as a function of all arguments, with keys as in JAX."""
    kept, out_avals = exported.module_kept_var_idx, exported.out_avals

    def run(values: Sequence[Value]) -> list[Value]:
        found = program.on_devices(*(words_of(values[i]) for i in kept))
        return [from_words(r, aval.dtype) for r, aval in zip(found, out_avals, strict=True)]

    return run


def may_have_rules(exported: jax.export.Exported, ignored: str = "") -> bool:
    """Return whether an artifact's program has rules; true of one that is not known."""
    traced = exported_program(exported)
    return traced is None or has_rules(open_jaxpr(traced), ignored)


def differs_from_autodiff(exported: jax.export.Exported) -> bool:
    """Return whether the derivative of an artifact may be another than that of its module.

    Gathers of both modes lower to the same op, and only the gradient tells them apart. Recovered
    functions have rules that JAX may have dropped.
    """
    traced = exported_program(exported)
    if may_have_rules(exported) or len(gather_modes(traced)) > 1:
        return True
    return traced is not None and _has_reversed_loop(traced) and _drops_rules_in_loops()


def _has_reversed_loop(program: AnyJaxpr) -> bool:
    """Return whether a program has loops in both directions, as one that holds a derivative."""
    loops = (e for e in equations(open_jaxpr(program)) if e.primitive.name == "scan")
    return len({e.params["reverse"] for e in loops}) > 1


@functools.cache
def _drops_rules_in_loops() -> bool:
    """Return whether the reverse derivative of a `scan` lacks the rules of its body (jax 0.10)."""

    def last(x: Value) -> Value:
        return lax.scan(lambda x, _: (x * jax.nn.relu(x), None), x, length=2)[0]

    derivative = trace_closed(jax.grad(last), jax.ShapeDtypeStruct((), "float32"))
    return "custom_jvp_call" not in names_in(open_jaxpr(derivative))


def marked_function(
    exported: jax.export.Exported, config: Config
) -> Callable[[Sequence[Value]], list[Value]] | None:
    """The program of an artifact of this process, with the rules of its author marked.

    `None` if the artifact does not know its program, or if that lowers to another module.
    """
    traced = exported_program(exported)
    if traced is None or exported.nr_devices > 1:
        return None
    own = _program(exported, config)
    platform = own.platforms[own.platform_index() if own.takes_platform_index else 0]
    several = len(gather_modes(traced)) > 1

    def chosen(eqn: Eqn) -> bool:
        return is_rule(eqn) or (several and hides_mode(eqn))

    with types_of(exported):
        named, rules = with_named_rules(traced, platform, chosen)
        again = jax.export.export(
            jax.jit(lambda *values: eval_closed(named, values)),
            platforms=exported.platforms,
            disabled_checks=exported.disabled_safety_checks,
        )(*exported.in_avals)
    program = _program(again, config)
    if difference(_form(again, program), _form(exported, own)) is not None:
        return None
    return flat_function(again, dataclasses.replace(program, rules=rules))


def _program(exported: jax.export.Exported, config: Config) -> Program:
    return Program.from_bytes(
        exported.mlir_module_serialized,
        config=config,
        platforms=tuple(exported.platforms),
        trusted=True,
        mesh=stated_mesh(exported),
    )


def _form(exported: jax.export.Exported, program: Program) -> ClosedJaxpr:
    """A program in the form in which programs are compared."""
    run = flat_function(exported, program)
    with jax.enable_x64(True):
        raised = trace_closed(lambda *values: run(values), *exported.in_avals)
        return lowered_form(inlined(canonicalize(raised)))


@dataclasses.dataclass(frozen=True, eq=False)
class AuthorRule:
    """The derivative of an equation with a rule.

    **Arguments:**

    - `location`: names the function of the author.
    - `smooth`: for each operand, whether there is a derivative by it.
    - `closed_over`: the number of leading operands that a `custom_vjp` closes over.
    - `derivative`: the cotangents of those operands as a function of all operands and the
        cotangents of the results that have a derivative; `None` if JAX cannot trace it.
    - `lowered`: the same, lowered; `None` if JAX cannot lower it.
    - `problem`: the reason for that.
    - `drops_forward`: see `invert.ir.gradient_marker.Gradient`.
    """

    location: str
    platform: str
    smooth: Sequence[bool]
    closed_over: int
    derivative: ClosedJaxpr | None
    lowered: Lowered | None
    problem: str = ""
    drops_forward: bool = False

    @classmethod
    def of(cls, eqn: Eqn, platform: str) -> AuthorRule:
        """The rule of an equation."""
        operands = list(map(type_of, eqn.invars))
        # JAX refuses the derivative of a `custom_vjp` by values that it closes over.
        is_vjp = eqn.primitive.name == "custom_vjp_call"
        closed_over = eqn.params["num_consts"] if is_vjp else 0
        smooth = [i for i, a in enumerate(operands) if i >= closed_over and is_differentiable(a)]
        places = [i for i, v in enumerate(eqn.outvars) if is_differentiable(v.aval)]

        def differentiated(given: Sequence[Value]) -> tuple[Sequence[Value], Callable[..., Value]]:
            def function(*numbers: Value) -> list[Value]:
                results = bind(eqn, with_values(list(given), smooth, numbers))
                return [results[i] for i in places]

            return jax.vjp(function, *(given[i] for i in smooth))

        def pull(*values: Value) -> list[Value]:
            _, pulled = differentiated(values[: len(operands)])
            return list(pulled(list(values[len(operands) :])))

        avals = [*operands, *(type_of(eqn.outvars[i]) for i in places)]
        wide = any(map(is_wide, (*eqn.invars, *eqn.outvars)))
        derivative = lowered = None
        problem = ""
        drops_forward = False

        def trace() -> tuple[ClosedJaxpr, Lowered, bool]:
            with enabling_x64(wide):
                made = trace_closed(pull, *avals)
                passed = trace_closed(lambda *given: differentiated(given)[0], *operands)
            dropped = "custom" in eqn.primitive.name and not has_rules(open_jaxpr(passed))
            return made, _lowered(made, platform), dropped

        try:
            derivative, lowered, drops_forward = trace()
        except Exception as error:  # noqa: BLE001  the author's code may raise anything
            problem = f"JAX cannot export it: {in_short(error)}"
        location = f"the rule of {_name(eqn)}"
        has = [i in smooth for i in range(len(operands))]
        return cls(
            location, platform, has, closed_over, derivative, lowered, problem, drops_forward
        )

    def call(
        self,
        sizes: Mapping[str, DimSize],
        operands: Sequence[Value],
        run: Callable[..., list[Value]],
    ) -> list[Value]:
        """Run the function, and mark its results with this derivative at these open sizes."""
        forbid = without_derivative(f"{self.location} closes over a value, by which it has none")
        given = [
            forbid(x) if i < self.closed_over and is_differentiable(x) and is_tracer(x) else x
            for i, x in enumerate(operands)
        ]
        carriers = () if self.lowered is None else self.lowered.carriers
        is_known = all(dimensions(c.shape[0]) <= sizes.keys() for c in carriers)
        gradient = Gradient(
            self.location,
            self._run,
            self.problem if is_known else "its open sizes are computed from data",
            convention="jax",
            read_nested=(lambda: self._nested) if self._has_rules else None,
            compares_nested=self._has_rules,
            has_rule=True,
            drops_forward=self.drops_forward,
        )
        # As values of the program, they have the names of sizes that the program will have.
        shapes = [(evaluate(c.shape[0], sizes),) for c in carriers] if is_known else []
        held = [lax.full(shape, False) for shape in shapes]
        return mark(gradient, run(*given), given, [*held, *given])

    def _run(
        self, captures: Sequence[Value], cotangents: Sequence[Value], inside: bool
    ) -> list[Value | None]:
        lowered = self._nested if inside and self._has_rules else self.lowered
        assert lowered is not None, self.problem
        found = iter(lowered.program(*captures, *cotangents))
        return [next(found) if has else None for has in self.smooth]

    @functools.cached_property
    def _has_rules(self) -> bool:
        return self.derivative is not None and has_rules(open_jaxpr(self.derivative))

    @functools.cached_property
    def _nested(self) -> Lowered:
        """The derivative, with the rules inside it named."""
        assert self.derivative is not None
        program, rules = with_named_rules(self.derivative, self.platform)
        lowered = _lowered(program, self.platform)
        return dataclasses.replace(
            lowered, program=dataclasses.replace(lowered.program, rules=rules)
        )


def _lowered(program: ClosedJaxpr, platform: str) -> Lowered:
    jaxpr = open_jaxpr(program)
    return lower(
        lambda *values: eval_closed(program, values),
        [type_of(v) for v in jaxpr.invars],
        platform=platform,
        x64=has_wide_types(jaxpr),
    )


def _name(eqn: Eqn) -> str:
    """The function of the author that became an equation, otherwise its primitive."""
    called = eqn.params.get("call_jaxpr")
    info = None if called is None else open_jaxpr(called).debug_info
    return (info and info.func_name) or eqn.primitive.name
