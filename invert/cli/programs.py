"""Programs as text in canonical order, for line-by-line comparison."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import equinox as eqx
import jax

from invert._errors import SignatureError, only_refusals
from invert._private.jax import SIZE_ERRORS, open_jaxpr, trace_closed
from invert.cli.annotated import SIZES, Arguments, annotated, with_state
from invert.ir import jaxprs
from invert.ir.avals import type_of_key
from invert.ir.graph import is_var
from invert.ir.interpret import without_outer_call
from invert.ir.order import postorder
from invert.ir.sizes import Shape, evaluate, renaming, variables
from invert.ir.traced_form import strong
from invert.ir.types import AnyJaxpr, Jaxpr, Tree, Value
from invert.ir.written_form import without_neutral
from invert.modules.dimensions import at_numbers, dimension_order, named_shapes
from invert.modules.function import Function
from invert.modules.methods import Methods
from invert.modules.module import Module


@dataclasses.dataclass(frozen=True)
class ComparedProgram:
    """A program with its arrays.

    **Arguments:**

    - `jaxpr`: the program over its arrays, in order of use, and its arguments.
    - `held`: names and values of the arrays.
    - `arguments`: names of the arguments.
    """

    jaxpr: Jaxpr
    held: tuple[tuple[str, Value], ...]
    arguments: tuple[str, ...]


def programs_of(module: Value, other: Value) -> Mapping[str, ComparedProgram]:
    """The programs of a module by name.

    **Arguments:**

    - `other`: the module to compare with, which determines the arguments of an emitted module.

    **Raises:** `SignatureError` if its arguments are unknown.
    """
    if isinstance(module, Methods):
        return {name: _of_function(f, module.constants[name]) for name, f in module._functions}
    if isinstance(module, Module):
        return {module._function.entry.name: _of_function(module._function, module.constants)}
    return {type(module).__name__: _of_emitted(module, other)}


def _avals(function: Function) -> list[jax.ShapeDtypeStruct]:
    """The argument types, with open sizes of a program for all sizes."""
    names = named_shapes(function.specs)
    whole = function.whole()
    shapes = at_numbers(names, SIZES) if whole is None else _anonymous(whole.shapes)
    return [
        jax.ShapeDtypeStruct(shape, spec.dtype)
        for shape, spec in zip(shapes, function.specs, strict=True)
    ]


def _anonymous(shapes: Sequence[Shape]) -> list[Shape]:
    """The shapes with numbered dimensions, since containers may use different names."""
    sizes = variables(n for shape in shapes for n in shape)
    order = dimension_order(shapes)
    names = renaming(sizes, {name: f"n{i}" for i, name in enumerate(order)})
    return [tuple(evaluate(n, names) for n in shape) for shape in shapes] if names else [*shapes]


def _of_function(function: Function, constants: Sequence[Value]) -> ComparedProgram:
    stage = function.stage(_avals(function))
    values = stage.constants if len(stage.constants) != len(constants) else constants
    held = [(f"constant {i}", value) for i, value in enumerate(values)]
    held += [(p.name, p.value) for p in function.entry.params]
    names = [spec.name for spec in function.specs]
    names += [function.key_name] if function.key_name else []
    return _program(stage.jaxpr, held, names)


def _of_emitted(model: eqx.Module, other: object) -> ComparedProgram:
    if isinstance(other, Methods) or "__call__" not in vars(type(model)):
        raise SignatureError(
            f"{type(model).__name__}, or the module it is compared with, has several functions",
            remedy="Compare a directory written by invert.save that has one function.",
        )
    leaves, tree = jax.tree_util.tree_flatten_with_path(model)
    values = [value for _, value in leaves]
    if isinstance(other, Module):
        function = other._function
        if function.state_name is not None:
            raise with_state()
        names = [s.name for s in function.specs]
        taken = Arguments(names, function.in_tree, [_avals(function)], function.key_name)
    else:
        taken = annotated(model)
    names, key = taken.names, taken.key
    types = [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in values]
    drawn = [type_of_key()] if key else []

    def run(*given: Value) -> Value:
        held, rest = given[: len(values)], given[len(values) :]
        args, kwargs = jax.tree_util.tree_unflatten(taken.tree, rest[: len(names)])
        keywords = dict(kwargs) | ({key: rest[-1]} if key else {})
        called: Tree = jax.tree_util.tree_unflatten(tree, held)
        return jax.tree_util.tree_leaves(called(*args, **keywords))

    closed = _traced(type(model).__name__, run, [[*types, *avals, *drawn] for avals in taken.tried])
    held = [
        (jax.tree_util.keystr(path, simple=True, separator="."), value) for path, value in leaves
    ]
    return _program(without_outer_call(closed), held, [*names, *([key] if key else [])])


def _traced(
    name: str, run: Callable[..., Value], tried: Sequence[Sequence[jax.ShapeDtypeStruct]]
) -> AnyJaxpr:
    """The program of an emitted module at the first types that it takes."""
    errors: list[Exception] = []
    for types in tried:
        try:
            with jax.enable_x64(True), only_refusals():
                return trace_closed(run, *types)
        except (TypeError, ValueError) as error:
            errors.append(error)
        except SIZE_ERRORS as error:
            first = str(error).splitlines()[0]
            raise SignatureError(
                f"{name} takes only some of the sizes that the other takes: {first}",
                remedy="Compare modules of the same open sizes.",
            ) from error
    raise SignatureError(
        f"{name} does not take the arguments of the other: {errors[0]}",
        remedy="Compare modules of the same arguments.",
    ) from errors[0]


def _program(
    closed: AnyJaxpr, held: Sequence[tuple[str, Value]], arguments: Sequence[str]
) -> ComparedProgram:
    """A program with its equations and arrays in order of use.

    Texts leave `x + 0.0` out, so it makes no difference.
    """
    jaxpr = open_jaxpr(jaxprs.map_jaxprs(strong(closed), lambda j: _in_order(without_neutral(j))))
    count = len(held)
    names = dict(zip(jaxpr.invars[:count], held, strict=True))
    read = (v for e in jaxpr.eqns for v in e.invars)
    used = dict.fromkeys(v for v in (*read, *jaxpr.outvars) if is_var(v) and v in names)
    jaxpr = jaxpr.replace(invars=[*used, *jaxpr.invars[count:]])
    return ComparedProgram(jaxpr, tuple(names[v] for v in used), tuple(arguments))


def _in_order(jaxpr: Jaxpr) -> Jaxpr:
    """The equations in the order that the results need."""
    makers = {v: i for i, e in enumerate(jaxpr.eqns) for v in e.outvars}
    effects = [i for i, e in enumerate(jaxpr.eqns) if e.effects]
    roots = [makers[v] for v in jaxpr.outvars if is_var(v) and v in makers]

    def before(i: int) -> list[int]:
        return [makers[v] for v in jaxpr.eqns[i].invars if is_var(v) and v in makers]

    return jaxpr.replace(eqns=[jaxpr.eqns[i] for i in postorder([*roots, *effects], before)])
