"""Retraces programs with meshes: on another mesh, or with type checks.

Types in the body of a `shard_map`, including its loops and calls, name the mesh. To move to another
mesh, the whole program is traced again.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import jax
from jax import lax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from invert._errors import only_refusals
from invert._private.jax import (
    bind_equation,
    close_like,
    open_jaxpr,
    params_of_jaxprs,
    trace_closed,
)
from invert._private.meshes import is_on_shards, on_shards, on_whole_values, pvary, varying
from invert.ir.avals import is_differentiable, with_float0
from invert.ir.hints import hint_of
from invert.ir.jaxprs import (
    equations,
    map_param,
    names_in,
    sub_jaxprs,
    with_values,
    without,
)
from invert.ir.retrace import Retracer
from invert.ir.types import (
    AnyJaxpr,
    Aval,
    ClosedJaxpr,
    Eqn,
    J,
    Jaxpr,
    Value,
)

AnyMesh: TypeAlias = AbstractMesh | Mesh
# Replacements by mesh.
OnMesh: TypeAlias = Callable[[AbstractMesh], AnyMesh]

_WITH_MESH = frozenset({"shard_map", "sharding_constraint"})


def has_meshes(program: AnyJaxpr) -> bool:
    """Return whether a program names a mesh of devices."""
    return not _WITH_MESH.isdisjoint(names_in(open_jaxpr(program)))


def meshes_of(program: AnyJaxpr) -> dict[AbstractMesh, frozenset[str]]:
    """The meshes that a program names, each with the axes that are manual somewhere."""
    meshes: dict[AbstractMesh, frozenset[str]] = {}
    seen: set[tuple[Jaxpr, AbstractMesh | None]] = set()

    def visit(jaxpr: Jaxpr, outer: AbstractMesh | None) -> None:
        if (jaxpr, outer) in seen:
            return
        seen.add((jaxpr, outer))
        for eqn in jaxpr.eqns:
            mesh = outer
            if eqn.primitive.name == "shard_map":
                mesh = outer or eqn.params["mesh"].abstract_mesh
                axes = frozenset(eqn.params["newly_manual_axes"])
                meshes[mesh] = meshes.get(mesh, frozenset()) | axes
            elif eqn.primitive.name == "sharding_constraint" and outer is None:
                meshes.setdefault(eqn.params["sharding"].mesh.abstract_mesh, frozenset())
            for inner in sub_jaxprs(eqn):
                visit(inner, mesh)

    visit(open_jaxpr(program), None)
    return meshes


@dataclasses.dataclass
class MeshRetracer(Retracer[frozenset[str]]):
    """Retraces programs on other meshes; marks are axes along which shards differ.

    **Arguments:**

    - `on_mesh`: the replacement of each mesh.
    - `check`: whether `shard_map`s check along which axes shards differ; `None` keeps the setting
        of each.
    """

    on_mesh: OnMesh
    check: Callable[[Eqn], bool] | None = None
    # the `shard_map`s around the current equation
    _around: list[Eqn] = dataclasses.field(default_factory=list)

    def equation(self, eqn: Eqn, operands: list[Value]) -> Sequence[Value]:
        if (rule := _RULES.get(eqn.primitive.name)) is not None:
            return rule(self, eqn, operands)
        if is_on_shards():
            axes = self.common(list(map(varying, operands)))
            operands = [self.marked(x, axes) for x in operands]
        return bind_equation(eqn, operands)

    def mark(self, value: object) -> frozenset[str]:
        return varying(value)

    def common(self, marks: Sequence[frozenset[str]]) -> frozenset[str]:
        return frozenset().union(*marks)

    def marked(self, value: Value, mark: frozenset[str]) -> Value:
        missing = mark - varying(value)
        return pvary(value, tuple(sorted(missing))) if missing else value

    def inside(self, eqn: Eqn, values: Sequence[Value]) -> list[Value]:
        """The results of the body of a `shard_map`."""
        self._around.append(eqn)
        try:
            return self(eqn.params["jaxpr"], values)
        finally:
            self._around.pop()

    def rule_of(self, eqn: Eqn) -> ClosedJaxpr:
        """The derivative of a function with a rule, traced where the function was."""
        types = [v.aval for v in eqn.invars]
        if not self._around:
            return jvp_of(eqn, types)
        with on_whole_values(), on_shards(self._around[-1], checked=True):
            return jvp_of(eqn, types)

    def forget(self) -> None:
        """Forget the traced calls after a failure."""
        self._calls.clear()


def checked(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Enable type checks in `shard_map`s where JAX accepts them.

    A `psum` known to have the same result on all devices has a cheaper derivative. Values do not
    change.
    """
    if not has_shards(closed):
        return closed
    retracer = MeshRetracer(lambda mesh: mesh, lambda eqn: not _says_unchecked(eqn))
    types = [v.aval for v in open_jaxpr(closed).invars]
    return trace_closed(lambda *xs: retracer(closed, xs), *types)


def set_for(program: AnyJaxpr) -> contextlib.AbstractContextManager[object]:
    """Set the abstract mesh of a program that runs on shards."""
    meshes = meshes_of(program) if has_shards(program) else {}
    if len(meshes) != 1:
        return contextlib.nullcontext()
    return jax.sharding.use_abstract_mesh(next(iter(meshes)))


def unchecked(closed: AnyJaxpr, says: bool | None = None) -> AnyJaxpr:
    """Remove redundant marks of varying mesh axes.

    Each `shard_map` keeps its own setting for checking them, unless `says` overrides it.
    """
    if not has_shards(closed):
        return closed
    retracer = MeshRetracer(lambda mesh: mesh, lambda eqn: False)
    types = [v.aval for v in open_jaxpr(closed).invars]
    with jax.enable_x64(True):
        made = trace_closed(lambda *xs: retracer(closed, xs), *types)
    flags = [e.params["check_vma"] for e in _in_order(open_jaxpr(closed))]
    checks = iter(flags if says is None else [says] * len(flags))

    def relabel(jaxpr: Jaxpr) -> Jaxpr:
        eqns = []
        for eqn in jaxpr.eqns:
            params = dict(eqn.params)
            if eqn.primitive.name == "shard_map":
                params["check_vma"] = next(checks)
            for name in params_of_jaxprs(eqn):
                params[name] = map_param(params[name], inner)
            eqns.append(eqn.replace(params=params))
        return jaxpr.replace(eqns=eqns)

    def inner(program: AnyJaxpr) -> AnyJaxpr:
        return close_like(program, relabel(open_jaxpr(program))) if has_shards(program) else program

    return close_like(made, relabel(open_jaxpr(made)))


def without_constraints(closed: J) -> J:
    """Remove sharding constraints, which do not change values."""
    return without(closed, lambda eqn: eqn.primitive.name == "sharding_constraint")


def _in_order(jaxpr: Jaxpr) -> Iterator[Eqn]:
    """The `shard_map`s of a program, outermost first."""
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "shard_map":
            yield eqn
        for inner in sub_jaxprs(eqn):
            yield from _in_order(inner)


def has_shards(program: AnyJaxpr) -> bool:
    """Return whether any part of a program runs on shards."""
    return "shard_map" in names_in(open_jaxpr(program))


def jvp_of(
    eqn: Eqn,
    types: Sequence[Aval],
    run: Callable[[Eqn, Sequence[Value]], list[Value]] = bind_equation,
) -> ClosedJaxpr:
    """Results and tangents of an equation at operands of `types`, given the known tangents."""
    smooth = [i for i, t in enumerate(types) if is_differentiable(t)]

    def jvp(*values: Value) -> list[Value]:
        primals, tangents = values[: len(types)], values[len(types) :]

        def function(*numbers: Value) -> list[Value]:
            return run(eqn, with_values(primals, smooth, numbers))

        results, moved = jax.jvp(function, tuple(primals[i] for i in smooth), tuple(tangents))
        kept = [t for t, v in zip(moved, eqn.outvars, strict=True) if is_differentiable(v.aval)]
        return [*results, *kept]

    return trace_closed(jvp, *types, *(types[i] for i in smooth))


def vjp_of(
    eqn: Eqn,
    types: Sequence[Aval],
    run: Callable[[Eqn, Sequence[Value]], list[Value]] = bind_equation,
) -> ClosedJaxpr:
    """Cotangents of the operands of an equation, given these and the cotangents of its results.

    Integers have none.
    """
    smooth = [i for i, t in enumerate(types) if is_differentiable(t)]
    outs = [v.aval for v in eqn.outvars]
    places = [i for i, o in enumerate(outs) if is_differentiable(o)]

    def vjp(*values: Value) -> list[Value]:
        primals, cotangents = values[: len(types)], values[len(types) :]

        def function(*numbers: Value) -> list[Value]:
            results = run(eqn, with_values(primals, smooth, numbers))
            return [results[i] for i in places]

        _, pull = jax.vjp(function, *(primals[i] for i in smooth))
        return list(pull(list(cotangents)))

    cotangents = [jax.ShapeDtypeStruct(outs[i].shape, outs[i].dtype) for i in places]
    return trace_closed(vjp, *types, *cotangents)


def _says_unchecked(eqn: Eqn) -> bool:
    """Return whether a location names a `psum` as programs without type checks do."""
    bodies = [e for inner in sub_jaxprs(eqn) for e in equations(inner)]
    return any(e.primitive.name == "psum" == hint_of(e).primitive for e in bodies)


# What JAX raises if checked types do not match: `shard_map` and `scan` a `TypeError` or a
# `ValueError`, a primitive without a rule for varying axes `NotImplementedError`; some rules only
# assert that their operands vary alike.
_UNFIT = (TypeError, ValueError, NotImplementedError, AssertionError)


def _shard_map(retracer: MeshRetracer, eqn: Eqn, operands: list[Value]) -> Sequence[Value]:
    p = eqn.params
    mesh = None if is_on_shards() else retracer.on_mesh(p["mesh"])

    def run(check: bool) -> Sequence[Value]:
        mapped = jax.shard_map(
            lambda *xs: tuple(retracer.inside(eqn, xs)),
            mesh=mesh,
            in_specs=tuple(p["in_specs"]),
            out_specs=tuple(p["out_specs"]),
            axis_names=set(p["newly_manual_axes"]),
            check_vma=check,
        )
        return mapped(*operands)

    check = p["check_vma"] if retracer.check is None else retracer.check(eqn)
    if retracer.check is None or not check:
        return run(check)
    try:
        with only_refusals():
            return run(True)
    except _UNFIT:
        retracer.forget()
        return run(False)


def _constraint(retracer: MeshRetracer, eqn: Eqn, operands: list[Value]) -> Sequence[Value]:
    sharding = eqn.params["sharding"]
    spec: PartitionSpec = sharding.spec
    if not is_on_shards():
        to = NamedSharding(retracer.on_mesh(sharding.mesh), spec)
        return [lax.with_sharding_constraint(operands[0], to)]
    return [lax.with_sharding_constraint(operands[0], spec)]


def _jit(retracer: MeshRetracer, eqn: Eqn, operands: list[Value]) -> Sequence[Value]:
    moves = is_on_shards() or has_meshes(eqn.params["jaxpr"])
    return retracer.call(eqn, operands) if moves else bind_equation(eqn, operands)


def _custom_jvp(retracer: MeshRetracer, eqn: Eqn, operands: list[Value]) -> Sequence[Value]:
    """A function with a derivative rule, both retraced."""
    if not is_on_shards() and not has_meshes(eqn.params["call_jaxpr"]):
        return bind_equation(eqn, operands)
    try:
        rule = retracer.rule_of(eqn)
    except LookupError as error:
        if type(error) is not LookupError:
            raise  # a missing key or index
        return bind_equation(eqn, operands)  # its author forbids differentiation
    # The rule runs after the context of the equation has been left.
    moved = dataclasses.replace(retracer, _calls={}, _around=list(retracer._around))
    function = jax.custom_jvp(lambda *xs: moved(eqn.params["call_jaxpr"], xs))

    def jvp(primals: Sequence[Value], tangents: Sequence[Value]) -> Value:
        smooth = [t for x, t in zip(primals, tangents, strict=True) if is_differentiable(x)]
        found = iter(moved(rule, [*primals, *smooth]))
        results = [next(found) for _ in eqn.outvars]
        return results, with_float0(found, eqn.outvars)

    function.defjvp(jvp)
    return function(*operands)


def _custom_vjp(retracer: MeshRetracer, eqn: Eqn, operands: list[Value]) -> Sequence[Value]:
    """A function with a rule for reverse mode, both retraced."""
    program = eqn.params["call_jaxpr"]
    if is_on_shards() or not has_meshes(program):
        return bind_equation(eqn, operands)
    moved = dataclasses.replace(retracer, _calls={}, _around=[])
    smooth = [i for i, v in enumerate(eqn.invars) if is_differentiable(v.aval)]

    @jax.custom_vjp
    def function(*values: Value) -> list[Value]:
        return moved(program, values)

    def back(values: Sequence[Value], cotangents: Sequence[Value]) -> tuple[Value, ...]:
        pairs = zip(eqn.outvars, cotangents, strict=True)
        given = [t for v, t in pairs if is_differentiable(v.aval)]
        pulled = moved(vjp_of(eqn, [v.aval for v in eqn.invars]), [*values, *given])
        return tuple(with_values([None] * len(values), smooth, pulled))

    function.defvjp(lambda *values: (function(*values), values), back)
    return function(*operands)


def _reduction(function: Callable[..., Value]) -> Callable[..., Sequence[Value]]:
    def rule(retracer: MeshRetracer, eqn: Eqn, operands: list[Value]) -> Sequence[Value]:
        p = eqn.params
        groups = p.get("axis_index_groups")
        if groups is not None:
            name = p["axes"][0] if len(p["axes"]) == 1 else p["axes"]
            return [function(operands[0], name, axis_index_groups=groups)]
        return [function(operands[0], p["axes"])]

    return rule


def _spread(retracer: MeshRetracer, eqn: Eqn, operands: list[Value]) -> Sequence[Value]:
    """Collectives that require an operand varying along their axes."""
    axes = eqn.params["axis_name"]
    wanted = frozenset(axes if isinstance(axes, tuple) else (axes,))
    return bind_equation(eqn, [retracer.marked(x, wanted) for x in operands])


def _pvary(retracer: MeshRetracer, eqn: Eqn, operands: list[Value]) -> Sequence[Value]:
    """Keep earlier marks where the operand is not marked yet."""
    return [retracer.marked(x, frozenset(eqn.params["axes"])) for x in operands]


_RULES: dict[str, Callable[..., Sequence[Value]]] = {
    "shard_map": _shard_map,
    "sharding_constraint": _constraint,
    "jit": _jit,
    "scan": MeshRetracer.scan,
    "while": MeshRetracer.while_loop,
    "cond": MeshRetracer.cond,
    "custom_jvp_call": _custom_jvp,
    "custom_vjp_call": _custom_vjp,
    "psum": _reduction(lax.psum),
    "psum_invariant": _reduction(lax.psum),
    "pmax": _reduction(lax.pmax),
    "pmin": _reduction(lax.pmin),
    "all_gather": _spread,
    "reduce_scatter": _spread,
    "ppermute": _spread,
    "all_to_all": _spread,
    "pbroadcast": _spread,
    "pvary": _pvary,
}
