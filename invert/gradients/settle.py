"""Restores derivatives that the forward program lacks.

A module inlines the author's `custom_jvp` and `custom_vjp` rules and drops `stop_gradient`. So
derivatives of the recovered program may differ from what the author meant. Where the container
holds a gradient function, raising left a marker (`invert.ir.gradient_marker`). Here each marker is
settled: its gradient is compared with that of the recovered program, first as a program, then
numerically. If they agree, the marker is removed. If they differ, the equations between the
arguments and the results become a function with a rule.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from invert._config import Config
from invert._errors import InvertError, in_short, only_refusals
from invert._private.jax import (
    consts_of,
    dce,
    eval_closed,
    eval_context,
    open_jaxpr,
    rename,
    trace_closed,
)
from invert.gradients.bounds import with_bounds
from invert.gradients.cache import GradientCache, without_rules_in_loops
from invert.gradients.checkpoints import with_checkpoints
from invert.gradients.compare import (
    FAILURES,
    OtherShapesError,
    first_difference,
    may_not_end,
)
from invert.gradients.conditions import Conditions
from invert.gradients.empty_arrays import without_empty_arrays
from invert.gradients.paddings import with_padded_parts, with_paddings
from invert.gradients.region import MarkedRegion
from invert.gradients.rules import (
    Rule,
    by_arguments_only,
    calls_of,
    is_transposable,
    is_zero,
    make_rule,
    meets_rules,
    plain_function,
    refused,
    stopped,
    with_calls,
)
from invert.gradients.stop_gradient import (
    with_needed_stops,
    with_stopped_cases,
    with_stopped_maxima,
    with_stops,
)
from invert.gradients.straight_through import with_passed_derivatives
from invert.ir import jaxprs
from invert.ir.avals import is_differentiable, type_of
from invert.ir.gradient_marker import Gradient, custom_gradient_p, parts
from invert.ir.graph import Graph, is_var
from invert.ir.interpret import bind, inlined, interpret
from invert.ir.lookups import adds_without_clipping, clipping
from invert.ir.lowered_form import lowered_form
from invert.ir.match import difference
from invert.ir.meshes import without_constraints
from invert.ir.types import AnyJaxpr, Atom, ClosedJaxpr, Eqn, J, Jaxpr, Value, Var
from invert.rewriting.driver import Replacement, replace
from invert.rewriting.pattern import Pattern
from invert.stablehlo.lowered import raised_again

Kind: TypeAlias = Literal["autodiff", "custom_jvp", "custom_vjp", "lost", "refused"]

# Where the higher derivatives of a rule come from.
_STORED = "; second derivatives are those of the container"
_TRANSPOSED = "; second derivatives leave out the rules of what its cotangents reach"
_NOT_STORED = "; higher derivatives are autodiff of the gradient, whose own rules were not stored"
_DROPPED = (
    "; second derivatives are those of the rule alone, without the forward pass of its author"
)
_UNMET = "they agree, but no sample met some of the conditions of one of them"
_AUTODIFF = 'Config(custom_gradients="ignore") gives plain autodiff, which is another derivative.'
_BY_CONSTANTS = "; there is none by arrays that the function closed over"
_AS_ARGUMENTS = (
    "Differentiate by others, such as those of invert.trainable, or export the function with these"
    " arrays as arguments or variables."
)

# Constants of at least this many elements are passed as arguments instead of lowered.
_LARGE = 1 << 14


def _compares_numbers(program: AnyJaxpr) -> bool:
    """Return whether a program compares numbers that have derivatives with others."""
    return any(
        e.primitive.name == "eq" and is_differentiable(e.invars[0].aval)
        for e in jaxprs.equations(open_jaxpr(program))
    )


def _held_outside(region: MarkedRegion) -> list[dict[Var, Value]]:
    """Choices of the constants to pass to the gradient as arguments, likeliest first.

    The derivative of a `scan` reads the rows of an argument or a JAX array again, but stores those
    of a NumPy array.
    """
    large = {v: c for v, c in region.constants.items() if np.size(c) >= _LARGE}
    rows = {v: c for v, c in region.constants.items() if np.ndim(c) and v not in large}
    loops = "scan" in jaxprs.names_in(open_jaxpr(region.forward))
    return [large | rows, large] if loops and rows else [large]


def plain(closed: J) -> J:
    """Remove markers, `stop_gradient` and rules: a lowered module cannot hold them."""

    def visit(jaxpr: Jaxpr) -> Jaxpr:
        names: dict[Var, Atom] = {}
        eqns: list[Eqn] = []
        if _FORWARD_ONLY.isdisjoint(jaxprs.names_in(jaxpr)):
            return jaxpr
        for eqn in jaxpr.eqns:
            results = _forward_only(eqn)
            if results is None:
                eqns.append(eqn)
                continue
            for v, result in zip(eqn.outvars, results, strict=True):
                names[v] = names.get(result, result) if is_var(result) else result
        return dce(rename(jaxpr.replace(eqns=eqns), names)) if names else jaxpr

    return jaxprs.map_jaxprs(closed, visit)


def _compared(gradient: ClosedJaxpr) -> ClosedJaxpr:
    """The form in which gradients are compared."""
    return with_padded_parts(without_empty_arrays(without_constraints(inlined(gradient))))


def _keeps_apart(eqn: Eqn) -> bool:
    """Return whether an equation only keeps the compiler from merging what `jax.checkpoint` runs.

    A policy rounds the results that it stores to their own precision.
    """
    return eqn.primitive.name == "optimization_barrier" or jaxprs.keeps_precision(eqn)


# The primitives of equations that may matter only to derivatives.
_FORWARD_ONLY = frozenset((custom_gradient_p.name, "stop_gradient", "custom_jvp_call"))


def _forward_only(eqn: Eqn) -> list[Atom] | None:
    """The operands that an equation returns unchanged, if it matters only to derivatives."""
    name = eqn.primitive.name
    if eqn.primitive is custom_gradient_p or name == "stop_gradient":
        return eqn.invars[: len(eqn.outvars)]
    if name == "custom_jvp_call":
        called = open_jaxpr(eqn.params["call_jaxpr"])
        if not called.eqns and not called.constvars:
            given = dict(zip(called.invars, eqn.invars, strict=True))
            return [given[v] if is_var(v) else v for v in called.outvars]
    return None


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The outcome for one gradient function of the container.

    `kind`: `"autodiff"` if automatic differentiation agrees or is made to, the kind of the rule as
    which it is kept, or, if it could not be read, `"lost"` where automatic differentiation
    replaces it, and `"refused"` where that is known to be another derivative. `stops`: whether
    automatic differentiation agrees only with a `stop_gradient` that was put back.
    """

    location: str
    kind: Kind
    text: str
    stops: bool = False

    @property
    def is_kept(self) -> bool:
        """Whether it is kept as a rule."""
        return self.kind in ("custom_jvp", "custom_vjp")

    def __str__(self) -> str:
        return f"{self.location}: {self.text}"


@dataclasses.dataclass(frozen=True)
class _Variant:
    """A region with a choice that lowering hides and that changes its derivative.

    `stops`: where derivatives stop; `promises`: whether its lookups promise bounds; `expands`:
    whether functions in loops have no rules.
    """

    region: MarkedRegion
    stops: bool = False
    promises: bool = False
    expands: bool = False

    def promising(self, chosen: Iterable[Eqn]) -> _Variant:
        region = self.region.promising(chosen)
        return dataclasses.replace(self, region=region, promises=True)

    def expanding(self) -> _Variant | None:
        """The variant without the rules of functions in loops, if there are any.

        The reverse derivative of a `scan` drops them in jax 0.10, so that the next derivative is
        that of their bodies.
        """
        forward = without_rules_in_loops(self.region.forward)
        if forward is self.region.forward:
            return None
        return dataclasses.replace(self, region=self.region.with_forward(forward), expands=True)

    def __str__(self) -> str:
        told = ", with stop_gradient put back" if self.stops else ""
        told += ", without rules in loops" if self.expands else ""
        return f"{told}, where gathers promise bounds" if self.promises else told


@dataclasses.dataclass
class GradientResolver:
    """Settles the markers of a program.

    **Arguments:**

    - `recognize`: rewrites a raw program by the patterns.
    - `config`: options.
    - `platform`: the platform the programs were lowered for.
    - `x64`: whether the program holds values of 64 bits.
    - `order`: 1, or 2 for the gradient functions inside a gradient function.
    - `itself`: for order 2, finds calls of the function whose gradient this is.
    - `knows_updates`: whether the updates are those of the program's own derivatives, as JAX traces
        them, so that only lookups may promise more.

    **Attributes:**

    - `outcomes`: the outcome for each marker.
    - `cache`: earlier results.
    """

    recognize: Callable[[ClosedJaxpr], ClosedJaxpr]
    config: Config
    platform: str
    x64: bool
    order: int = 1
    itself: Pattern | None = None
    knows_updates: bool = False
    outcomes: list[Outcome] = dataclasses.field(default_factory=list)
    cache: GradientCache = dataclasses.field(default_factory=GradientCache)

    def __call__(self, closed: J) -> J:
        """Settle all markers of a program."""
        if custom_gradient_p.name not in jaxprs.names_in(open_jaxpr(closed)):
            return closed
        outer = open_jaxpr(closed)

        def visit(jaxpr: Jaxpr) -> Jaxpr:
            consts = consts_of(closed) if jaxpr.constvars == outer.constvars else ()
            return self._body(Graph(jaxpr, consts))

        # The program may be recovered under a caller's trace; this has to run now.
        with eval_context():
            return jaxprs.map_jaxprs(closed, visit)

    def _body(self, graph: Graph) -> Jaxpr:
        replacements: dict[Eqn, Replacement] = {}
        for eqn in graph.eqns:
            if eqn.primitive is not custom_gradient_p:
                continue
            rule = self._rule(graph, eqn, replacements)
            results = parts(eqn)[0]
            if rule is None:
                same = trace_closed(lambda *xs: xs, *(v.aval for v in eqn.outvars))
                made = Replacement(same, results, eqn.outvars, frozenset({eqn}), eqn)
            else:
                call = trace_closed(rule.function, *(a.aval for a in rule.operands))
                made = Replacement(call, rule.operands, eqn.outvars, frozenset({eqn}), eqn)
            replacements[eqn] = made
        return replace(graph, list(replacements.values())) if replacements else graph.jaxpr

    def _rule(self, graph: Graph, eqn: Eqn, settled: Mapping[Eqn, Replacement]) -> Rule | None:
        gradient = eqn.params["gradient"]
        if gradient.problem:
            return self._lose(gradient, gradient.problem, eqn)
        region = MarkedRegion(graph, eqn, self, settled)
        if not (region.numbers and region.wanted):
            self._say(gradient, "there is none: integers have no derivative")
            return None
        is_complex = any(jnp.issubdtype(v.aval.dtype, jnp.complexfloating) for v in region.numbers)
        if is_complex and gradient.convention != "jax":
            return self._lose(gradient, "the gradient is complex and not a JAX one", eqn)
        try:
            raw = jaxprs.canonicalize(region.backward())
        except InvertError as error:
            return self._lose(gradient, f"the gradient cannot be raised: {error}", eqn)
        rule = self._first(region, raw)
        region.forget_traces()
        if self.order > 1 or not gradient.compares_nested or self.config.custom_gradients == "keep":
            return rule
        # Stops and other changes are part of what is differentiated again.
        variant = region if rule is None else rule.region
        if variant is None or not self._differs_again(variant):
            return rule
        self.outcomes.pop()
        return self._kept(region, raw, "its own derivative differs from autodiff")

    def _first(self, region: MarkedRegion, raw: ClosedJaxpr) -> Rule | None:
        """The rule that makes first derivatives those of the container, if one is needed."""
        gradient = region.gradient
        reason = "asked for"
        # A TensorFlow graph was never lowered, so lowering autodiff proves nothing about its
        # gradient, and it has no stop_gradient to restore. The gradient is compared numerically.
        from_jax = gradient.convention == "jax"
        checks = self.config.custom_gradients == "check"
        needed = with_needed_stops(region) if from_jax and checks else None
        region = needed or region
        variants = [_Variant(region, stops=needed is not None)]
        if from_jax and checks:
            variants = self._variants(variants[0], raw)
            for variant in variants:
                if self.cache.is_proved(variant.region, raw, self._is_proved):
                    return self._as_autodiff(variant)
            if (rule := self._checkpointed(variants, raw)) is not None:
                return rule
        # What `jax.checkpoint` computes again has the values that it had before.
        once = jaxprs.without(raw, _keeps_apart)
        if from_jax and checks and once is not raw:
            for variant in variants:
                if self.cache.is_proved(variant.region, once, self._is_proved):
                    return self._as_autodiff(variant, ", which computes nothing again")
        if checks:
            unmet = False
            for variant in sorted(variants, key=lambda v: v.promises):
                # Where the numbers differ, `with_bounds` searches for promises.
                if variant.promises and not unmet:
                    break
                reason = self.cache.difference(variant.region, once, self._difference)
                if not reason:
                    return self._as_autodiff(variant, " numerically")
                unmet |= reason == _UNMET
        if is_zero(raw):
            return self._stopped(region)
        likeliest = next(v.region for v in variants if not v.promises)
        if checks and from_jax and (rule := self._adjusted(likeliest, once)) is not None:
            return rule
        if checks and (rule := self._calling_itself(region, raw)) is not None:
            return rule
        return self._kept(region, raw, reason)

    def _variants(self, plain: _Variant, raw: ClosedJaxpr) -> list[_Variant]:
        """Regions that lower to the same program and have other derivatives, likeliest first.

        A proof that fails takes as long as one that holds.
        """
        starts = [_Variant(r, stops=True) for r in with_stopped_cases(plain.region)] + [plain]
        found: list[_Variant] = []
        for start in starts:
            found.append(start)
            if (maxima := with_stopped_maxima(start.region)) is not None:
                # The derivative of a maximum compares it with the numbers.
                place = len(found) if _compares_numbers(raw) else -1
                found.insert(place, _Variant(maxima, stops=True))
        found += [e for v in found if (e := v.expanding()) is not None]
        promising: list[_Variant] = []
        for variant in found:
            forward = variant.region.forward
            chosen = clipping(forward) if self.knows_updates else variant.region.undecided
            promising += [variant.promising(chosen)] if chosen else []
        return [*promising, *found] if adds_without_clipping(raw) else [*found, *promising]

    def _as_autodiff(self, variant: _Variant, how: str = "") -> Rule | None:
        told = f"agrees with autodiff{how}{variant}"
        return (self._plain if str(variant) else self._agrees)(variant.region, told)

    def _kept(self, region: MarkedRegion, raw: ClosedJaxpr, reason: str) -> Rule:
        """The container's gradient as a rule."""
        rule = self._rule_of(region, raw)
        # JAX's own error names neither the function nor a remedy.
        forward = (
            '; for jax.jvp or jax.hessian, convert with Config(custom_gradients="ignore")'
            if rule.kind == "custom_vjp"
            else ""
        )
        dropped = _DROPPED if region.gradient.drops_forward else ""
        told = f"kept as {rule.kind}: {reason}{forward}{rule.higher}{dropped}"
        kind = "custom_vjp" if rule.kind == "custom_vjp" else "custom_jvp"
        self._say(region.gradient, f"{told}{self._by_constants(region)}", kind)
        return self._by_arguments(rule, region)

    def _stopped(self, region: MarkedRegion) -> Rule:
        """The results without a derivative by the arguments."""
        told = f"stop_gradient: it is zero{self._by_constants(region)}"
        self._say(region.gradient, told, stops=True)
        if not self._by_constants(region):
            return Rule(stopped, region.results, "stop_gradient")
        function = plain_function(region, self.x64)
        rule = Rule(lambda *xs: stopped(*function(*xs)), region.operands, "stop_gradient")
        return self._by_arguments(rule, region)

    def _by_constants(self, region: MarkedRegion) -> str:
        """What there is to say of derivatives by the constants of a program of JAX.

        Its weights may be among them. The container's gradient has no part for these, and autodiff
        is not known to have the right one, since the container's gradient differs from it.
        """
        if region.gradient.convention != "jax" or self.order > 1:
            return ""
        return _BY_CONSTANTS if any(is_differentiable(v.aval) for v in region.held) else ""

    def _by_arguments(self, rule: Rule, region: MarkedRegion) -> Rule:
        if not self._by_constants(region):
            return rule
        text = f"{region.gradient.location} has no part for arrays that the function closed over."
        return by_arguments_only(rule, region, f"{text} {_AS_ARGUMENTS} {_AUTODIFF}")

    def _checkpointed(self, variants: Sequence[_Variant], raw: ClosedJaxpr) -> Rule | None:
        """A variant that recomputes steps of loops and whose autodiff agrees."""
        for variant in variants:
            try:
                with only_refusals(), jax.enable_x64(self.x64):
                    candidates = list(with_checkpoints(variant.region, raw, self.x64))
            except FAILURES:
                return None
            for candidate in candidates:
                if self._is_proved(candidate, raw):
                    told = f"agrees with autodiff, with checkpoints put back{variant}"
                    return self._plain(candidate, told)
        return None

    def _adjusted(self, region: MarkedRegion, raw: ClosedJaxpr) -> Rule | None:
        """A variant of the region whose autodiff agrees, in which derivatives stop or pass."""
        variants = [region, *([region.promising()] if clipping(region.forward) else ())]
        searched: set[int] = set()  # starts whose stops were tried with promised bounds, too
        for variant in variants:
            passed = list(with_passed_derivatives(variant))
            through = "agrees with autodiff, passed straight through roundings"
            for candidate in passed:
                if self._is_proved(candidate, raw):
                    return self._plain(candidate, through)
            starts = [(p, through) for p in passed] + [(variant, "agrees with autodiff")]
            for i, (start, told) in enumerate(starts):
                candidates = () if i in searched else with_stops(start, raw, self.x64)
                for candidate in candidates:
                    searched.add(i)
                    if self._is_proved(candidate, raw):
                        told = f"{told}, with stop_gradient put back"
                        return self._plain(candidate, told, stops=True)
            # After the stops, since each of its candidates is compiled.
            bounded = with_bounds(region, raw, self.x64) if variant is region else None
            if bounded is not None:
                proved = self._is_proved(bounded, raw)
                if not proved and self._difference(bounded, raw):
                    continue
                how = "" if proved else " numerically"
                told = f"agrees with autodiff{how}, where some gathers promise bounds"
                return self._plain(bounded, told)
        return None

    def _calling_itself(self, region: MarkedRegion, raw: ClosedJaxpr) -> Rule | None:
        """The gradient with calls of its function, if autodiff then agrees.

        An author's rule may read the results of the function, as that of a norm does.
        """
        candidate = None if self.itself is None else with_calls(region, self.itself)
        if candidate is None:
            return None
        proved = self._is_proved(candidate, raw)
        if not proved and self._difference(candidate, raw):
            return None
        how = "" if proved else " numerically"
        return self._plain(candidate, f"agrees with autodiff{how}, where it calls the function")

    def _agrees(self, region: MarkedRegion, told: str) -> Rule | None:
        """No rule, unless derivatives have to stop at closed-over values."""
        if region.closed_over:
            return self._plain(region, f"{told}, which stops at values that it closes over")
        self._say(region.gradient, told)
        return None

    def _plain(self, region: MarkedRegion, told: str, stops: bool = False) -> Rule:
        """A variant of the region that needs no rule."""
        self._say(region.gradient, told, stops=stops)
        function = plain_function(region, self.x64)
        return Rule(function, region.operands, "plain", region=region)

    def _rule_of(self, region: MarkedRegion, raw: ClosedJaxpr) -> Rule:
        """The region as a function with the container's gradient as its rule."""
        read_nested = region.gradient.read_nested
        if self.order > 1 or read_nested is None:
            backward = self.cache.rewritten(raw, lambda: self.recognize(raw))
            linear = self.cache.is_linear(
                region, raw, lambda: is_transposable(region, backward, self.x64)
            )
            rule = make_rule(region, backward, self.x64, linear)
            higher = _NOT_STORED if region.gradient.first_only else ""
            return dataclasses.replace(rule, higher=higher)
        first = self.recognize(raw)
        itself = None
        if is_transposable(region, first, self.x64):
            itself = calls_of(region, make_rule(region, first, self.x64, linear=True), self.x64)
        nested = jaxprs.canonicalize(self._with_nested(region))
        backward, outcomes = self._settled(nested, itself)
        own = [o for o in outcomes if o.is_kept or o.kind == "refused"]
        self.outcomes += [
            dataclasses.replace(o, location=f"second derivative, {o.location}") for o in own
        ]
        # If the gradient has rules that differ from autodiff, the function gets a rule for reverse
        # mode only, which keeps second derivatives right.
        linear = not own and is_transposable(region, backward, self.x64)
        rule = make_rule(region, backward, self.x64, linear)
        higher = _NOT_STORED if any(o.kind == "lost" for o in outcomes) else _STORED
        # Transposing drops rules of functions of the cotangents, such as the function itself.
        if linear and meets_rules(backward, len(region.numbers)):
            higher = _TRANSPOSED
        return dataclasses.replace(rule, higher=higher)

    def _with_nested(self, region: MarkedRegion) -> ClosedJaxpr:
        """The gradient, with the gradient functions inside it marked."""
        assert region.gradient.read_nested is not None
        with jax.enable_x64(self.x64):
            region.gradient.read_nested()
        return region.backward(nested=True)

    def _settled(
        self, nested: ClosedJaxpr, itself: Pattern | None = None
    ) -> tuple[ClosedJaxpr, Sequence[Outcome]]:
        """A gradient with the gradient functions inside it settled, and their outcomes."""
        # The options request this gradient; nested ones are kept only if they differ.
        config = dataclasses.replace(self.config, custom_gradients="check")
        inner = dataclasses.replace(
            self, config=config, order=self.order + 1, itself=itself, outcomes=[]
        )
        return inner(self.recognize(nested)), inner.outcomes

    def _differs_again(self, variant: MarkedRegion) -> bool:
        """Return whether a derivative of autodiff differs from the one in the container."""
        nested = self._with_nested(variant)

        def run(*values: Value) -> list[Value]:
            def on_eqn(eqn: Eqn, operands: list[Value]) -> Sequence[Value]:
                if eqn.primitive is custom_gradient_p:
                    moved = [i for i, v in enumerate(eqn.outvars) if is_differentiable(v.aval)]
                    operands = jaxprs.with_values(operands, moved, variant.autodiff(*values))
                return bind(eqn, operands)

            return interpret(nested, values, on_eqn)

        with jax.enable_x64(self.x64):
            marked = trace_closed(run, *variant.avals)
        outcomes = self._settled(jaxprs.canonicalize(marked))[1]
        return any(o.is_kept or o.stops for o in outcomes)

    def _say(
        self, gradient: Gradient, text: str, kind: Kind = "autodiff", stops: bool = False
    ) -> None:
        self.outcomes.append(Outcome(gradient.location, kind, text, stops))

    def _lose(self, gradient: Gradient, reason: str, eqn: Eqn) -> Rule | None:
        """No rule for a gradient that cannot be read, or one that refuses the derivative."""
        if not gradient.has_rule:
            self._say(gradient, f"plain autodiff: {reason}", "lost")
            return None
        self._say(gradient, f"without a derivative: {reason}", "refused")
        text = f"{gradient.location} has no derivative here: {reason}. {_AUTODIFF}"
        results, inputs, _ = parts(eqn)
        # JAX does not call the rule of the results where the derivative by the inputs is zero.
        by = dict.fromkeys(a for a in inputs if is_var(a) and is_differentiable(a.aval))
        return Rule(refused(text, len(results)), [*results, *by], "refused")

    def _is_proved(self, region: MarkedRegion, raw: ClosedJaxpr) -> bool:
        """Return whether the gradient is isomorphic to the lowering of autodiff.

        Large constants are arguments of both, so that they are not lowered.
        """
        # Exporters write shardings of arguments and results on gradient functions too.
        inner = _compared(raw)
        forms = [inner]
        if (padded := with_paddings(inner)) is not None:
            forms.append(padded)
        return any(self._is_lowered(region, forms, held) for held in _held_outside(region))

    def _is_lowered(
        self, region: MarkedRegion, forms: Sequence[ClosedJaxpr], held: Mapping[Var, Value]
    ) -> bool:
        """Return whether autodiff lowers to one of `forms`, with the constants `held` outside."""
        constants = list(map(np.asarray, held.values()))
        wanted = [
            lowered_form(jaxprs.over_constants(f, constants) if constants else f) for f in forms
        ]
        for x64 in jaxprs.x64_settings(open_jaxpr(forms[0]), self.x64):
            try:
                with only_refusals():
                    again = self._lowered(region, list(held), x64)
            except FAILURES:
                return False
            lowered = lowered_form(_compared(again))
            if any(difference(form, lowered, constants) is None for form in wanted):
                return True
        return False

    def _difference(self, region: MarkedRegion, raw: AnyJaxpr) -> str:
        """`""` if the gradient agrees numerically with autodiff, otherwise how they differ."""
        if may_not_end(raw) or may_not_end(region.forward):
            return "another program, which was not run, because the end of a loop depends on data"
        conditions = Conditions()
        try:
            with only_refusals():
                gap = first_difference(region, raw, self.x64, None, conditions)
                if gap == 0 and not conditions.are_met and region.gradient.convention == "jax":
                    # Lowering adds the conditions of JAX's expansions and index checks.
                    conditions = Conditions()
                    again = self._lowered(region, (), self.x64)
                    gap = first_difference(region, raw, self.x64, again, conditions)
        except OtherShapesError:
            raise  # the program is recovered again, under the constraints that were met
        except FAILURES as error:
            return f"another program, which could not be run ({in_short(error)})"
        if gap == 0 and not conditions.are_met:
            return _UNMET
        return "" if gap == 0 else f"they differ by {gap:.3g}"

    def _lowered(self, region: MarkedRegion, large: Sequence[Var], x64: bool) -> ClosedJaxpr:
        """The gradient by autodiff, lowered and raised, over the constants `large`."""
        avals = [*map(type_of, large), *region.avals]
        program = region.traced_autodiff(x64, large)
        return raised_again(
            lambda *values: eval_closed(program, values), avals, platform=self.platform, x64=x64
        )
