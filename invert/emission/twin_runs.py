"""Traces a text's classes at their twins' sizes, which no program has."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any, TypeAlias

import equinox as eqx
import jax

from invert._errors import only_refusals
from invert._private.jax import SIZE_ERRORS, trace_closed
from invert.emission.equal_layers import traced_once
from invert.emission.layers.cut import Layer
from invert.emission.layers.shared import Code
from invert.emission.layers.state import StateVar
from invert.emission.layers.tree import Path
from invert.emission.python import load
from invert.ir import jaxprs
from invert.ir.avals import type_of_key
from invert.ir.sizes import Shape
from invert.ir.types import Atom, Eqn, Var

CallOf: TypeAlias = Callable[[Any, Sequence[jax.Array]], Sequence[Any]]


def runs(
    namespace: ModuleType,
    name: str,
    arguments: Mapping[str, object],
    run: CallOf,
    inputs: Sequence[Var],
    results: Sequence[Var],
    shape: Callable[[Atom], Shape],
    *,
    keyed: bool,
    leaves: Iterable[tuple[Path, Sequence[Shape]]] = (),
) -> bool:
    """Return whether a text's class computes the expected shapes at other sizes.

    **Arguments:**

    - `arguments`: those of its constructor, besides the key.
    - `run`: calls an instance on arrays.
    - `inputs`, `results`: the variables of these arrays and of the results.
    - `shape`: the shape of a variable at these sizes.
    - `leaves`: the parameters that its constructor has to make, with their shapes: each size is
        that at these sizes, or the program's if the text has it as a number.
    """
    own = {n: _value(v, namespace) for n, v in arguments.items()}

    def traced_run(key: jax.Array, *arrays: jax.Array) -> Sequence[Any]:
        # Users make an instance outside of the methods that switch 64-bit types on.
        with jax.enable_x64(False):
            module = getattr(namespace, name)(**own, **({"key": key} if keyed else {}))
        if not all(_has(module, *leaf) for leaf in leaves):
            raise ValueError("parameters have other shapes")
        return run(module, arrays)

    avals = [jax.ShapeDtypeStruct(shape(v), v.aval.dtype) for v in inputs]
    try:
        with only_refusals(), traced_once(namespace, name):
            traced = trace_closed(traced_run, type_of_key(), *avals)
    except (TypeError, ValueError, AttributeError, IndexError, ZeroDivisionError, *SIZE_ERRORS):
        return False
    if not all(map(_is_whole, jaxprs.equations(traced.jaxpr))):
        return False
    types = [(tuple(a.shape), a.dtype) for a in traced.out_avals]
    return types == [(shape(v), v.aval.dtype) for v in results]


def _has(module: Any, path: Path, shapes: Sequence[Shape]) -> bool:
    """Return whether each axis of a parameter, but those of stacks, has one of some sizes."""
    for name in path:
        module = module[int(name)] if name.isdigit() else getattr(module, name)
        if module is None:  # its sizes need no such layer
            return False
    if not eqx.is_array(module):
        return True
    sizes = [*zip(*shapes, strict=True)]
    own = module.shape[max(module.ndim - len(sizes), 0) :]
    if len(own) < len(sizes):  # a layer of Equinox, which has another layout
        return False
    return all(n in known for n, known in zip(own, sizes, strict=True))


def _is_whole(eqn: Eqn) -> bool:
    """Return whether a reshape keeps its elements, untested by JAX at open sizes."""
    if eqn.primitive.name != "reshape":
        return True
    (x, *_), (out,) = eqn.invars, eqn.outvars
    return bool(math.prod(x.aval.shape) == math.prod(out.aval.shape))


def calling(
    methods: Sequence[tuple[str, Layer]], named: Mapping[Layer, Mapping[Var, str]]
) -> tuple[CallOf, list[Var], list[Var]]:
    """A function that calls a layer's methods in turn, with inputs and results.

    **Arguments:**

    - `methods`: the methods, with the layers that they compute.
    - `named`: names of the arguments that are given by keyword.
    """

    def run(module: Any, arrays: Sequence[jax.Array]) -> list[Any]:
        values = iter(arrays)
        results: list[Any] = []
        for method, layer in methods:
            given = {
                v: eqx.nn.State(module) if isinstance(v, StateVar) else next(values)
                for v in layer.inputs
            }
            names = named[layer]
            args = [a for v, a in given.items() if v not in names]
            keywords = {names[v]: a for v, a in given.items() if v in names}
            made = getattr(module, method)(*args, **keywords)
            made = made if len(layer.results) > 1 else (made,)
            results += [r for r in made if not isinstance(r, eqx.nn.State)]
        return results

    layers = [layer for _, layer in methods]
    inputs = [v for x in layers for v in x.inputs if not isinstance(v, StateVar)]
    results = [v for x in layers for v in x.results if not isinstance(v, StateVar)]
    return run, inputs, results


def _value(value: object, namespace: ModuleType) -> Any:
    """An argument; a function is given by its text."""
    if not isinstance(value, Code):
        return value
    return load.function_of([], ast.parse(value.text, mode="eval").body, vars(namespace))()
