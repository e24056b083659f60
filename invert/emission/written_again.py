"""Layers of equal programs, of which one method is written and the others are copies.

Programs may differ in sizes, too, as long as nothing in the method could depend on what these are.
"""

from __future__ import annotations

import ast
import dataclasses
import itertools
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any

import numpy as np

from invert._private.jax import holds_jaxprs, jvp_rule_of, names_of, open_jaxpr, sub_jaxprs
from invert.emission.layers.cut import LayerCall
from invert.emission.layers.library_names import is_automatic, without_number
from invert.emission.layers.memory import residuals
from invert.emission.layers.state import StateVar
from invert.emission.layers.tree import parameters_of
from invert.emission.python import syntax
from invert.emission.python.nouns import of_layer, of_scope, says
from invert.ir import kinds
from invert.ir.avals import is_key
from invert.ir.jaxprs import equations
from invert.ir.merging import operation_key, structure_key
from invert.ir.types import Atom, Eqn, Jaxpr, Literal, ShapedArray, Var

# Smaller numbers may be axes, or the sides of kernels.
_SMALL = 8
# Primitives whose expressions contain no size, and depend on sizes only as `_fixed_by` says.
_PLAIN = (
    kinds.ELEMENTWISE
    | kinds.IDENTITIES
    | kinds.REDUCTIONS
    | kinds.CONTRACTIONS
    | {"broadcast_in_dim", "transpose"}
)
# Functions with such primitives inside, if they are functions of JAX.
_CALLS = frozenset(("jit", "custom_jvp_call"))
# The parameters of these primitives that are sizes.
_SIZES = frozenset(("shape", "feature_group_count"))


@dataclasses.dataclass(frozen=True)
class Free:
    """What a key leaves out, in the same order for equal keys.

    **Arguments:**

    - `sizes`: the sizes that only stand for themselves.
    - `scopes`: the names of the steps' name scopes.
    """

    sizes: Sequence[int]
    scopes: Sequence[str]


@dataclasses.dataclass
class Written:
    """The method of a layer.

    **Arguments:**

    - `program`: its program, over fields and arguments.
    - `free`: the sizes and name scopes that a copy may have others for.
    - `method`: the method.
    - `arguments`: the names of its arguments, in the order of the program's.
    - `names`: preferred names of its values.
    - `texts`: as for a `Draft`, once they are read.
    """

    program: Jaxpr
    free: Free
    method: ast.FunctionDef
    arguments: Sequence[str]
    names: Mapping[Atom, str]
    texts: list[str] = dataclasses.field(default_factory=list)

    def copied(self, program: Jaxpr, free: Free) -> tuple[ast.FunctionDef, dict[Atom, str]] | None:
        """The method of a layer with an equal program, and the names of its values.

        `None` if it is unknown where a number in the text comes from, or the text depends on what
        is free after all.
        """
        variables: dict[Atom, Var] = dict(
            zip(_variables(self.program), _variables(program), strict=True)
        )
        own = {id(v): id(w) for v, w in variables.items()}
        own |= {id(e): id(f) for e, f in zip(self.program.eqns, program.eqns, strict=True)}
        sizes = dict(zip(self.free.sizes, free.sizes, strict=True))
        scopes = dict(zip(self.free.scopes, free.scopes, strict=True))
        method = syntax.cloned(self.method)
        for node in syntax.walk(method):
            if isinstance(node, ast.Name | ast.arg):
                name = node.id if isinstance(node, ast.Name) else node.arg
                if any(name.startswith(s) and s != new for s, new in scopes.items()):
                    return None
            if not isinstance(node, ast.Constant):
                continue
            if type(node.value) is int and (new := sizes.get(node.value)) is not None:
                if len(str(new)) != len(str(node.value)):  # lines are laid out by their width
                    return None
                node.value = new
            if origin := syntax.origin_of(node):
                if not all((p if isinstance(p, int) else p[0]) in own for p in origin):
                    return None
                syntax.originate(
                    node, [own[p] if isinstance(p, int) else (own[p[0]], p[1]) for p in origin]
                )
        return method, {variables.get(a, a): scopes.get(n, n) for a, n in self.names.items()}


def key_of(
    program: Jaxpr,
    path: Sequence[str],
    wanted: Mapping[Atom, str],
    called: Callable[[LayerCall], Hashable | None],
) -> tuple[Hashable, Free] | None:
    """All that the text of a layer's program depends on; `None` if that is more than a key holds.

    **Arguments:**

    - `path`: the name scopes of the layer.
    - `wanted`: preferred names of some values.
    - `called`: all that the text of a call of a layer depends on, but its operands.

    **Returns:** the key, and what it does not hold.
    """
    called_programs = [p for e in program.eqns if holds_jaxprs(e) for p in sub_jaxprs(e)]
    inner = [e for p in called_programs for e in equations(p)]
    if any(type(e) is not Eqn for e in inner):  # of layers inside, or of a state
        return None
    if any(type(e) not in (Eqn, LayerCall) for e in program.eqns):
        return None
    if any(is_key(v) or isinstance(v, StateVar) for v in program.invars):
        return None
    sizes = _free_sizes(program)
    named = {n: (i,) for i, n in enumerate(sizes)}

    def free(value: Any) -> Hashable:
        """A parameter or a part of one, without these sizes."""
        if type(value) is int:
            return named.get(value, value)
        if isinstance(value, ShapedArray):
            if named.keys().isdisjoint(n for n in value.shape if type(n) is int):
                return value
            return free(value.shape), value.dtype, value.weak_type
        return tuple(map(free, value)) if type(value) is tuple else value

    def operation(eqn: Eqn) -> Hashable | None:
        if isinstance(eqn, LayerCall):
            return called(eqn)
        params = dict(eqn.params)
        if not named:
            return operation_key(eqn, with_jaxprs=True)
        for name in params.keys() & _SIZES:
            params[name] = free(params[name])
        if eqn.primitive.name == "custom_jvp_call" and (rule := jvp_rule_of(params)) is not None:
            params["jvp_jaxpr_fun"] = free(rule)
        if (body := kinds.called(eqn, _CALLS)) is not None:
            params[kinds.CALLS[eqn.primitive.name]] = structure_key(body, operation, free)
        return operation_key(eqn.replace(params=params), with_jaxprs=True)

    key = structure_key(program, operation, free)
    if key is None:
        return None
    scopes: dict[str, int] = {}
    steps = [of_scope(e, path) for e in program.eqns]
    numbered = tuple([scopes.setdefault(s, len(scopes)) if says(s) else s for s in steps])
    # The text of a function that an equation calls may have names of its own.
    inside = tuple(map(names_of, inner))
    places: dict[Atom, int] = {v: i for i, v in enumerate(_variables(program))}
    names = tuple([(places.get(v, -1), name) for v, name in wanted.items()])
    if any(i < 0 for i, _ in names):
        return None
    whole = key, numbered, inside, names
    try:
        hash(whole)
    except TypeError:  # a parameter or a rule that has no hash
        return None
    return whole, Free(sizes, [*scopes])


def call_key(
    call: LayerCall,
    method: str,
    field: str,
    inside: Mapping[Atom, str],
    memory: Mapping[Var, str],
    passed: Set[Var],
) -> Hashable | None:
    """All that the text of a call depends on except its operands; `None` if there is more.

    **Arguments:**

    - `method`, `field`: what is called.
    - `inside`: the names of values inside the layer, and `memory` those of its inputs.
    - `passed`: the results that a loop changes.
    """
    layer = call.layer
    if layer.native is not None or layer.count or layer.arguments or any(map(is_key, layer.inputs)):
        return None
    listed = field.split(".")[-1].isdigit()
    name = is_automatic(without_number(layer.name)), layer.name == "cell"
    plain = not parameters_of(layer), bool(residuals(layer))
    results = tuple([(inside.get(v), v in passed) for v in call.outvars])
    inputs = tuple([memory.get(v) for v in layer.inputs])
    return method, field, of_layer(layer.name) if listed else "", name, plain, results, inputs


def _free_sizes(program: Jaxpr) -> list[int]:
    """The sizes of a program on which its text cannot depend, in order.

    That is so where they only stand for themselves: no number of the program is one, or a power of
    one, and no operation depends on it. Which of them are equal, and which are larger, may count.
    """
    found: set[int] = set()
    fixed: set[int] = set()
    numbers: set[float] = set()
    if any(_is_sharded(v) for v in program.invars):
        return []

    def add(eqns: Iterable[Eqn], *, outermost: bool) -> None:
        for eqn in eqns:
            atoms = [*eqn.invars, *eqn.outvars]
            own = {n for a in atoms for n in getattr(a.aval, "shape", ()) if type(n) is int}
            found.update(own)
            numbers.update(_values(eqn.invars))
            if isinstance(eqn, LayerCall):
                continue
            if (body := kinds.called(eqn, _CALLS)) is not None and (
                not outermost or eqn.primitive.name == "custom_jvp_call"
            ):
                add(open_jaxpr(body).eqns, outermost=False)
            elif eqn.primitive.name in (_PLAIN if outermost else kinds.ELEMENTWISE):
                fixed.update(_fixed_by(eqn))
            else:
                fixed.update(own)
                fixed.update(n for v in eqn.params.values() for n in _integers(v))

    add(program.eqns, outermost=True)
    found.update(n for v in program.invars for n in getattr(v.aval, "shape", ()) if type(n) is int)
    free = [n for n in sorted(found - fixed) if n >= _SMALL]
    return [n for n in free if not any(_is_power(x, n) for x in numbers)]


def _is_power(number: float, size: int) -> bool:
    """Return whether a number is, up to rounding, a small power of a size or of its root."""
    if number <= 0:
        return False
    exponent = 2 * math.log(number, size)
    return abs(exponent) < 5 and abs(exponent - round(exponent)) < 1e-6 and round(exponent) != 0


def _fixed_by(eqn: Eqn) -> Iterator[int]:
    """The sizes and other numbers on which an expression of an operation may depend."""
    shapes = [a.aval.shape for a in (*eqn.invars, *eqn.outvars)]
    for name, value in eqn.params.items():
        if name not in _SIZES:
            yield from _integers(value)
    if eqn.primitive.name in kinds.REDUCTIONS:  # a mean divides by their number
        yield from _integers([shapes[0][i] for i in eqn.params["axes"]])
    elif eqn.primitive.name == "dot_general":
        _, (batch, _) = eqn.params["dimension_numbers"]
        yield from _integers(shapes if batch else ())
    elif eqn.primitive.name == "conv_general_dilated":
        images, kernel, result = shapes
        numbers, groups = eqn.params["dimension_numbers"], eqn.params["feature_group_count"]
        yield from _integers([kernel[i] for i in numbers.rhs_spec[2:]])
        moves = ("window_strides", "lhs_dilation", "rhs_dilation")
        if any(n != 1 for name in moves for n in eqn.params[name]):  # what padding is the usual one
            yield from _integers([images[i] for i in numbers.lhs_spec[2:]])
            yield from _integers([result[i] for i in numbers.out_spec[2:]])
        # The channels of a group are a quotient.
        if groups not in (1, images[numbers.lhs_spec[1]]) or groups not in (
            1,
            result[numbers.out_spec[1]],
        ):
            yield from _integers(shapes)


def _is_sharded(v: Var) -> bool:
    """Return whether a type is more than a shape and a dtype."""
    return type(v.aval) is not ShapedArray or not v.aval.sharding.mesh.empty


def _integers(value: Any) -> Iterator[int]:
    if type(value) is int:
        yield value
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from _integers(each)


def _values(atoms: Iterable[Atom]) -> Iterator[float]:
    """The real numbers among some operands."""
    for atom in atoms:
        if isinstance(atom, Literal) and np.ndim(atom.val) == 0:
            value = np.asarray(atom.val)
            if value.dtype.kind in "iuf" or value.dtype.name == "bfloat16":
                yield abs(float(value))


def _variables(program: Jaxpr) -> Iterator[Var]:
    return itertools.chain(program.invars, *(eqn.outvars for eqn in program.eqns))
