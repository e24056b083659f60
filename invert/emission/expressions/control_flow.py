"""Writes equations that hold jaxprs: calls, loops, branches, custom derivatives."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Mapping, Sequence

import jax
import numpy as np

from invert._errors import EmissionError
from invert._opaque import custom_call_p
from invert._private.jax import close_like, consts_of, dce, holds_jaxprs, is_jaxpr, open_jaxpr
from invert._private.meshes import is_on_shards, on_shards
from invert.emission.expressions import copies, library, literals, spelling, tables
from invert.emission.expressions.body import Body, Placed
from invert.emission.expressions.statements import FunctionText, Parameter, Pattern, ValueType
from invert.emission.expressions.writer import Writer
from invert.emission.layers import roles
from invert.emission.layers.cut import calls
from invert.emission.layers.scans import step_of
from invert.emission.python import syntax
from invert.emission.python.naming import snake, stem
from invert.emission.python.nouns import FILLED, LOOP_SCOPES, PLAIN, STREAM, says
from invert.emission.python.syntax import call, number
from invert.ir import associative_scans, kinds
from invert.ir.associative_scans import AssociativeScan
from invert.ir.avals import is_differentiable
from invert.ir.composite import composite_of
from invert.ir.counted import counted
from invert.ir.graph import is_var
from invert.ir.loops import CondParts, ScanParts, WhileParts
from invert.ir.sizes import is_open
from invert.ir.types import Atom, ClosedJaxpr, Eqn, Jaxpr, Literal, Var

Row = Callable[[Writer, Body, Eqn], Placed]


def parameter_hints(count: int) -> list[str]:
    """Names of unnamed parameters."""
    if count <= 3:
        return list("xyz"[:count])
    return list("abcdefgh"[:count]) if count <= 8 else [f"x_{i}" for i in range(count)]


def name_of(closed: ClosedJaxpr | Jaxpr) -> str:
    """The name of the function that a jaxpr was traced from."""
    info = getattr(open_jaxpr(closed), "debug_info", None)
    return getattr(info, "func_name", "") or "function"


def constants_of(closed: ClosedJaxpr | Jaxpr) -> dict[Var, ast.expr]:
    """The constants of a called program, as literals.

    They are JAX arrays: operators and methods of NumPy arrays would not be traced.
    """
    jaxpr = open_jaxpr(closed)
    values = consts_of(closed)
    return {
        v: call("jnp.asarray", _constant(np.asarray(c)))
        for v, c in zip(jaxpr.constvars, values, strict=True)
    }


def read_by(outer: Body, atom: Atom) -> ast.expr:
    """An atom of the outer body, as read by a function inside it."""
    if isinstance(atom, Literal):
        return outer.literal(atom)
    token = outer.token(atom)
    return outer.given.get(token, ast.Name(token, ast.Load()))


def _constant(value: np.ndarray) -> ast.expr:
    return tables.array(value, "np") if tables.is_table(value) else literals.array(value)


def local(
    file: Writer,
    outer: Body,
    closed: ClosedJaxpr | Jaxpr,
    hint: str,
    operands: Sequence[Atom],
    parameters: Sequence[tuple[str, int]],
    result: Callable[[list[ast.expr]], ast.expr],
    starts: Sequence[Atom] = (),
    called: Mapping[int, str] | None = None,
    modules: Sequence[tuple[str, str]] = (),
) -> FunctionText:
    """A local function of the current body.

    **Arguments:**

    - `operands`: atoms of the outer body for the leading arguments, which it closes over.
    - `parameters`: the name of each parameter and its number of values; -1 for a bare value.
    - `result`: makes the returned expression from the results.
    - `starts`: atoms of the outer body after which the first parameters are named.
    - `called`: names of parameters by number, which take precedence.
    - `modules`: tokens and names of modules that come first in its last parameter.
    """
    jaxpr = open_jaxpr(closed)
    given = constants_of(closed)
    given |= {v: read_by(outer, a) for v, a in zip(jaxpr.invars, operands, strict=False)}
    names: dict[Atom, str] = {
        v: outer.names[a]
        for i, (v, a) in enumerate(zip(jaxpr.invars, [*operands, *starts], strict=False))
        if is_var(a) and (says if i < len(operands) else _stays_true)(outer.names.get(a))
    }
    values = jaxpr.invars[len(operands) :]
    names |= {values[i]: name for i, name in (called or {}).items()}
    rest = iter(values)
    taken: list[Parameter] = []
    types: dict[str, ValueType | None] = {}
    held: list[list[Var]] = []
    for _, count in parameters:
        chosen = [next(rest) for _ in range(abs(count))]
        held.append(chosen)
        types.update((outer.token(v), outer.type_of(v)) for v in chosen)
        tokens = tuple(outer.token(v) for v in chosen)
        taken.append(tokens[0] if count == -1 else tokens)
    hints = [
        names.get(variables[0], name) if count == -1 else name
        for (name, count), variables in zip(parameters, held, strict=True)
    ]
    if modules:
        tokens = [*(token for token, _ in modules), *map(outer.token, held[-1])]
        taken[-1] = tokens[0] if len(tokens) == 1 else tuple(tokens)
        hints[-1] = modules[0][1] if len(tokens) == 1 else parameters[-1][0]
    body = Body(file, jaxpr, given, names)
    value = result(body.run())
    return FunctionText(
        syntax.new_token(),
        hint,
        taken,
        hints,
        body.statements,
        value,
        types=types,
        parts={outer.token(v): names[v] for v in jaxpr.invars if v in names} | dict(modules),
    )


def _named(body: Body, atoms: Sequence[Atom], other: str) -> list[str]:
    """Names of carried values, from their initial values `atoms`."""
    names = [body.names.get(a) if is_var(a) else None for a in atoms]
    return [n if n is not None and _stays_true(n) else other for n in names]


def _stays_true(name: str | None) -> bool:
    """Return whether a name fits all values of a loop; `zeros` fits the first only."""
    return says(name) and stem(name or "") not in FILLED


def _reference(function: FunctionText) -> ast.expr:
    return ast.Name(function.token, ast.Load())


def packed(items: Sequence[ast.expr]) -> ast.expr:
    """`None`, one value or a tuple."""
    if not items:
        return number(None)
    return syntax.one_or_tuple(items)


def unpacking(numbers: Sequence[int]) -> Pattern:
    """The pattern that unpacks the result of `packed`, by the numbers of the values."""
    if not numbers:
        return None
    return numbers[0] if len(numbers) == 1 else tuple(numbers)


def _jit(file: Writer, body: Body, eqn: Eqn) -> Placed:
    closed, name = eqn.params["jaxpr"], eqn.params["name"]
    if (scan := associative_scans.of_call(eqn)) is not None:
        return _associative_scan(file, body, eqn, scan)
    if (public := _of_library(file, eqn, name)) is not None:
        return Placed(public, hints=[library.noun(name)], flows=True)
    if (copied := _of_package(file, eqn, name)) is not None:
        return Placed(copied, hints=copies.nouns(name), flows=True)
    args = [body.operand(a) for a in eqn.invars]
    if name in LOOP_SCOPES:  # of a loop that was written out
        return Placed(file.jitted(closed, "step", args), flows=True)
    return Placed(file.jitted(closed, name, args), hints=[library.noun(name)], flows=True)


def _of_library(file: Writer, eqn: Eqn, name: str) -> ast.expr | None:
    """The public JAX function that traces to a call, if any."""
    if file.plain:
        return None
    variables = {file.token(v): v for v in eqn.invars if not isinstance(v, Literal)}
    for row, bare in itertools.product((library.candidates, library.mapped), (True, False)):
        args = spelling.operands(eqn, file, bare)
        for candidate in row(name, eqn, args):
            if file.prover.holds(candidate, variables, [eqn], eqn.outvars):
                return candidate
    return None


def _of_package(file: Writer, eqn: Eqn, name: str) -> ast.expr | None:
    """The function of this package, copied into files, that traces to a call."""
    for bare in () if file.plain else (True, False):
        args = spelling.operands(eqn, file, bare)
        variables = {file.token(v): v for v in eqn.invars if not isinstance(v, Literal)}
        candidate = copies.candidate(eqn, args)
        if candidate is not None and file.prover.holds(candidate, variables, [eqn], eqn.outvars):
            return syntax.renamed(candidate, {name: file.copied(copies.FUNCTIONS[name])})
    return None


def _scan(file: Writer, body: Body, eqn: Eqn) -> Placed:
    params, parts = eqn.params, ScanParts.of(eqn)
    carried, scanned = len(parts.init), len(parts.xs)

    def result(values: list[ast.expr]) -> ast.expr:
        return syntax.tuple_of([packed(values[:carried]), packed(values[carried:])])

    layers = [c.layer for c in calls([eqn]) if c.layer.count]
    modules = [(file.module(layer), snake(layer.kind)) for layer in layers]
    rows = scanned + len(modules)
    parameters = [("carry", _arity(carried)), ("x" if rows < 2 else "xs", _arity(scanned))]
    names = {} if file.plain else roles.carried(parts)
    if modules and carried == 1:
        names = {0: STREAM, **names}
    plain = [i for i, a in enumerate(parts.xs) if is_var(a) and not says(body.names.get(a))]
    if len(plain) == 1:
        names = {**names, carried + plain[0]: PLAIN if names.get(0) == STREAM else STREAM}
    starts = [*parts.init, *parts.xs]
    closed, whole = (parts.body, None) if file.plain else step_of(parts.body)
    function = local(
        file, body, closed, "step", parts.consts, parameters, result, starts, names, modules
    )
    init, xs = ([body.operand(a) for a in atoms] for atoms in (parts.init, parts.xs))
    stacked = [file.stacked(layer) for layer in layers]
    keywords: dict[str, ast.expr] = {}
    if not rows:
        keywords["length"] = literals.size(params["length"])
    if params["reverse"]:
        keywords["reverse"] = number(True)
    if params["unroll"] != 1:
        keywords["unroll"] = number(params["unroll"])
    if params.get("_split_transpose"):
        keywords["_split_transpose"] = number(True)
    step = _reference(function) if whole is None else _checkpointed(function, whole)
    expression = call("lax.scan", step, packed(init), packed([*stacked, *xs]), **keywords)
    outs = len(eqn.outvars)
    pattern = (unpacking(range(carried)), unpacking(range(carried, outs)))
    hints = _named(body, parts.init, "carry") + ["ys"] * (outs - carried)
    hints = [names.get(i, h) if i < carried else h for i, h in enumerate(hints)]
    return Placed(expression, False, [function], hints, pattern=pattern)


def _associative_scan(file: Writer, body: Body, eqn: Eqn, scan: AssociativeScan) -> Placed:
    inner = open_jaxpr(eqn.params["jaxpr"])
    outside = dict(zip(inner.invars, eqn.invars, strict=True))
    consts, elements = ([outside[v] for v in held] for held in (scan.consts, scan.elements))
    count = len(elements)
    parameters = [("left", _arity(count)), ("right", _arity(count))]
    function = local(file, body, scan.combine, "combine", consts, parameters, packed)
    keywords: dict[str, ast.expr] = {}
    if scan.reverse:
        keywords["reverse"] = number(True)
    if scan.axis:
        keywords["axis"] = number(scan.axis)
    arrays = packed([body.operand(a) for a in elements])
    expression = call("lax.associative_scan", _reference(function), arrays, **keywords)
    place = {of: inner.outvars.index(v) for of, v in zip(scan.of, scan.results, strict=True)}
    pattern = 0 if count == 1 else tuple(place.get(i) for i in range(count))
    return Placed(expression, False, [function], ["scanned"] * len(place), pattern=pattern)


def _arity(count: int) -> int:
    """-1 for a single bare value; several or none form a tuple."""
    return -1 if count == 1 else count


def _while(file: Writer, body: Body, eqn: Eqn) -> Placed:
    parts = WhileParts.of(eqn)
    aval = open_jaxpr(parts.cond).outvars[0].aval
    if aval.shape:
        # `jax.vmap` of a loop makes a batched condition, which `lax.while_loop` refuses.
        return _bound(file, body, eqn)
    if not file.plain and (counted := _for(file, body, eqn)) is not None:
        return counted
    state = parts.init
    parameter = [("state", _arity(len(state)))]
    test = local(
        file, body, parts.cond, "condition", parts.cond_consts, parameter, lambda v: v[0], state
    )
    step = local(file, body, parts.body, "step", parts.body_consts, parameter, packed, state)
    init = packed([body.operand(a) for a in state])
    expression = call("lax.while_loop", _reference(test), _reference(step), init)
    pattern = unpacking(range(len(state)))
    return Placed(expression, False, [test, step], _named(body, state, "state"), pattern=pattern)


def _for(file: Writer, body: Body, eqn: Eqn) -> Placed | None:
    """`lax.fori_loop` up to an open size; at concrete sizes it has a reverse derivative."""
    loop, parts = counted(eqn), WhileParts.of(eqn)
    state, counter = parts.init[1:], eqn.outvars[0]
    if loop is None or not is_open(loop.length) or loop.counter != 0 or not state:
        return None
    if body.graph.users.get(counter) or counter in body.graph.results:
        return None
    jaxpr = open_jaxpr(parts.body)
    program = close_like(parts.body, dce(jaxpr.replace(outvars=jaxpr.outvars[1:])))
    parameters = [("i", -1), ("state", _arity(len(state)))]
    step = local(file, body, program, "step", parts.body_consts, parameters, packed, parts.init)
    init = packed([body.operand(a) for a in state])
    limit = literals.size(loop.length)
    start = body.operand(parts.init[0])
    expression = call("lax.fori_loop", start, limit, _reference(step), init)
    hints = ["", *_named(body, state, "state")]
    return Placed(expression, False, [step], hints, pattern=unpacking(range(1, len(parts.init))))


def _cond(file: Writer, body: Body, eqn: Eqn) -> Placed:
    parts = CondParts.of(eqn)
    choice = body.chosen.get(id(eqn))
    if choice is None:
        return _bound(file, body, eqn)
    names = [f"branch_{i}" for i in range(len(parts.branches))]
    if choice.platforms:
        names = ["on_" + "_".join(p or ("others",)) for p in choice.platforms]
    elif not choice.is_switch:
        names = ["if_false", "if_true"]
    functions = [
        local(file, body, branch, name, parts.operands, [], syntax.one_or_tuple)
        for branch, name in zip(parts.branches, names, strict=True)
    ]
    references = list(map(_reference, functions))
    if choice.platforms:
        names = [p or ("default",) for p in choice.platforms]
        keywords = {n: r for ns, r in zip(names, references, strict=True) for n in ns}
        return Placed(call("lax.platform_dependent", **keywords), False, functions, ["chosen"])
    assert choice.atom is not None
    index = body.operand(choice.atom)
    if choice.is_switch:
        expression = call("lax.switch", index, syntax.list_of(references))
    else:
        expression = call("lax.cond", index, references[1], references[0])
    return Placed(expression, False, functions, ["chosen"])


def _custom(file: Writer, body: Body, eqn: Eqn) -> Placed:
    """A function with a custom derivative, or a composite."""
    name = name_of(eqn.params["call_jaxpr"])
    if (known := composite_of(eqn)) is not None:
        args = [body.operand(a) for a in eqn.invars]
        hints = [library.noun(name.rpartition(".")[2])]
        return Placed(call(file.composed(known), *args), hints=hints, flows=True)
    if (public := _of_library(file, eqn, name)) is not None:
        return Placed(public, hints=[library.noun(name)], flows=True)
    args = [body.operand(a) for a in eqn.invars]
    hints = [library.noun(name)]
    return Placed(file.differentiated(eqn, name, args), hints=hints, flows=True)


def _solve(file: Writer, body: Body, eqn: Eqn) -> Placed:
    """`lax.custom_linear_solve` with its functions."""
    lengths, jaxprs = eqn.params["const_lengths"], eqn.params["jaxprs"]
    atoms = list(eqn.invars)
    functions: dict[str, FunctionText] = {}
    count = len(atoms) - sum(lengths)
    start = 0
    for name, length in zip(lengths._fields, lengths, strict=True):
        closed = getattr(jaxprs, name)
        if closed is not None and name != "vecmat":
            operands = atoms[start : start + length]
            functions[name] = local(
                file, body, closed, name, operands, [("b", _arity(count))], packed
            )
            if name != "matvec":
                functions[name].first = ["_"]  # JAX passes `matvec`, which is not needed
        start += length
    b = packed([body.operand(a) for a in atoms[start:]])
    args = [_reference(functions["matvec"]), b, _reference(functions["solve"])]
    keywords: dict[str, ast.expr] = {}
    if "transpose_solve" in functions:
        keywords["transpose_solve"] = _reference(functions["transpose_solve"])
    if jaxprs.transpose_solve is not None and jaxprs.vecmat is jaxprs.matvec:
        keywords["symmetric"] = number(True)
    expression = call("lax.custom_linear_solve", *args, **keywords)
    pattern = unpacking(range(count))
    return Placed(expression, False, list(functions.values()), ["solution"], pattern=pattern)


def _reduce(file: Writer, body: Body, eqn: Eqn) -> Placed:
    """`lax.reduce` and `lax.reduce_window` with a custom function."""
    params = eqn.params
    closed = params["jaxpr"]
    n = len(eqn.invars) // 2
    parameters = [("x", _arity(n)), ("y", _arity(n))]
    function = local(file, body, closed, "combine", [], parameters, packed)
    args = [body.operand(a) for a in eqn.invars]
    operands = [packed(args[:n]), packed(args[n:]), _reference(function)]
    if eqn.primitive.name == "reduce":
        operands.append(literals.value(tuple(params["dimensions"])))
        return Placed(call("lax.reduce", *operands), False, [function])
    names = {
        "window_dimensions": "window_dimensions",
        "window_strides": "window_strides",
        "padding": "padding",
        "base_dilation": "base_dilation",
        "window_dilation": "window_dilation",
    }
    keywords = {k: literals.value(params[v]) for k, v in names.items()}
    pattern = unpacking(range(n))
    expression = call("lax.reduce_window", *operands, **keywords)
    return Placed(expression, False, [function], pattern=pattern)


def _remat(file: Writer, body: Body, eqn: Eqn) -> Placed:
    parameters = [(h, -1) for h in parameter_hints(len(eqn.invars))]
    function = local(file, body, eqn.params["jaxpr"], "block", [], parameters, syntax.one_or_tuple)
    wrapped = _checkpointed(function, eqn)
    return Placed(call(wrapped, *map(body.operand, eqn.invars)), False, [function])


def _checkpointed(function: FunctionText, eqn: Eqn) -> ast.expr:
    """`jax.checkpoint(function)`, with the options of an equation."""
    keywords: dict[str, ast.expr] = {}
    policies = vars(jax.checkpoint_policies).items()
    if named := [name for name, policy in policies if policy == eqn.params["policy"]]:
        keywords["policy"] = syntax.name(f"jax.checkpoint_policies.{named[0]}")
    if not eqn.params["prevent_cse"]:
        keywords["prevent_cse"] = number(False)
    return call("jax.checkpoint", _reference(function), **keywords)


def _shard_map(file: Writer, body: Body, eqn: Eqn) -> Placed:
    p = eqn.params
    mesh = None if is_on_shards() else literals.mesh_literal(p["mesh"].abstract_mesh)
    parameters = [(h, -1) for h in parameter_hints(len(eqn.invars))]
    with on_shards(eqn):
        function = local(
            file, body, p["jaxpr"], "on_shards", [], parameters, syntax.one_or_tuple, eqn.invars
        )
    keywords: dict[str, ast.expr] = {} if mesh is None else {"mesh": mesh}
    keywords["in_specs"] = syntax.tuple_of(map(literals.spec, p["in_specs"]))
    keywords["out_specs"] = syntax.one_or_tuple(list(map(literals.spec, p["out_specs"])))
    axes = [a for a in p["mesh"].axis_names if a in p["newly_manual_axes"]]
    if len(axes) < len(p["mesh"].axis_names):
        keywords["axis_names"] = ast.Set(list(map(number, axes)))
    if not p["check_vma"]:
        keywords["check_vma"] = number(False)
    mapped = call("jax.shard_map", _reference(function), **keywords)
    count = len(eqn.outvars)
    expression = call(mapped, *map(body.operand, eqn.invars))
    return Placed(expression, False, [function], pattern=unpacking(range(count)))


def _opaque(file: Writer, body: Body, eqn: Eqn) -> Placed:
    """A custom call that was not recovered, for which the text imports `invert`."""
    params = eqn.params
    if params["computations"]:
        return _bound(file, body, eqn)
    avals = [
        number(None)
        if a is None
        else call("jax.ShapeDtypeStruct", literals.shape(a[0]), literals.dtype(a[1]))
        for a in params["avals"]
    ]
    keywords = {
        "target": number(params["target"]),
        "attributes": literals.value(params["attributes"]),
        "avals": syntax.tuple_of(avals),
    }
    args = [body.operand(a) for a in eqn.invars]
    expression = call("custom_call", *args, **keywords)
    pattern = (0,) if len(eqn.outvars) == 1 else None
    return Placed(expression, False, pattern=pattern)


def _bound(file: Writer, body: Body, eqn: Eqn) -> Placed:
    """`lax.name_p.bind(...)`, with each jaxpr traced from a local function."""
    functions: list[FunctionText] = []

    def spelled(value: object) -> ast.expr:
        if not is_jaxpr(value):
            if isinstance(value, tuple) and any(map(is_jaxpr, value)):
                return syntax.tuple_of(map(spelled, value))
            return literals.value(value)
        jaxpr = open_jaxpr(value)
        parameters = [(h, -1) for h in parameter_hints(len(jaxpr.invars))]
        function = local(file, body, value, "inner", [], parameters, syntax.one_or_tuple)
        functions.append(function)
        types = [
            call("jax.ShapeDtypeStruct", literals.shape(file.program.shape(v)),
                 literals.dtype(v.aval.dtype))
            for v in jaxpr.invars
        ]  # fmt: skip
        traced = call(call("jax.make_jaxpr", _reference(function)), *types)
        return traced if value is not jaxpr else syntax.field(traced, "jaxpr")

    where = literals.public_primitives().get(eqn.primitive.name)
    if where is None:
        raise EmissionError(f"the primitive {eqn.primitive.name} has no public name")
    params = {k: spelled(v) for k, v in eqn.params.items()}
    args = [body.operand(a) for a in eqn.invars]
    expression = syntax.method(syntax.name(where), "bind", *args, **params)
    pattern = None
    if len(eqn.outvars) == 1 and eqn.primitive.multiple_results:
        pattern = (0,)
    return Placed(expression, False, functions, pattern=pattern)


# Primitives whose inner jaxpr is usually the one made by their `lax` function.
_SPELLED = frozenset("scatter scatter-add scatter-sub scatter-mul scatter-min scatter-max".split())

ROWS: Mapping[str, Row] = {
    "jit": _jit,
    "scan": _scan,
    "while": _while,
    "cond": _cond,
    "custom_jvp_call": _custom,
    "custom_vjp_call": _custom,
    "custom_linear_solve": _solve,
    "reduce": _reduce,
    "reduce_window": _reduce,
    kinds.CHECKPOINT: _remat,
    "shard_map": _shard_map,
    custom_call_p.name: _opaque,
}


def structured(file: Writer, body: Body, eqn: Eqn) -> Placed | None:
    """Write an equation that holds jaxprs; `None` if it holds none."""
    name = eqn.primitive.name
    if name in ROWS:
        return ROWS[name](file, body, eqn)
    if not holds_jaxprs(eqn):
        return None
    if name in _SPELLED:
        try:
            expression = spelling.spell(eqn, file)
        except EmissionError:  # it has a custom combining function
            return _bound(file, body, eqn)
        return Placed(expression, flows=spelling.FLOWS.get(name, True))
    return _bound(file, body, eqn)


def rule_function(
    file: Writer, eqn: Eqn, rule: ClosedJaxpr, name: str, hints: Sequence[str]
) -> FunctionText:
    """The rule of a function with a custom derivative, whose arguments are named by `hints`.

    For `jax.custom_jvp` it is `(primals, tangents) -> (results, tangents of results)`, for
    `jax.custom_vjp` the backward rule `(arguments, cotangents) -> cotangents of arguments`.
    """
    is_jvp = eqn.primitive.name == "custom_jvp_call"
    # Without the unused zeros that JAX creates for tangents of integers.
    jaxpr = dce(open_jaxpr(rule)) if is_jvp else open_jaxpr(rule)
    count = len(eqn.invars)
    arguments = tuple(file.token(v) for v in jaxpr.invars[:count])
    rest = iter(jaxpr.invars[count:])
    moving, derived = (eqn.invars, eqn.outvars) if is_jvp else (eqn.outvars, eqn.invars)
    given = tuple(
        file.token(next(rest)) if is_differentiable(v.aval) else syntax.new_token() for v in moving
    )
    parts = dict(zip(arguments, hints, strict=True))
    if is_jvp:
        parts |= {token: f"{hint}_dot" for token, hint in zip(given, hints, strict=True)}
    body = Body(file, jaxpr, constants_of(rule))
    values = body.run()
    results = values[: len(eqn.outvars)] if is_jvp else []
    smooth = iter(values[len(results) :])
    derivatives = [
        next(smooth) if is_differentiable(v.aval) else _no_derivative(v, is_jvp) for v in derived
    ]
    if is_jvp:
        value = syntax.tuple_of([syntax.one_or_tuple(results), syntax.one_or_tuple(derivatives)])
        return FunctionText(
            "", f"{name}_jvp", [arguments, given], ["primals", "tangents"], body.statements, value,
            decorators=[syntax.name(f"{name}.defjvp")], parts=parts,
        )  # fmt: skip
    return FunctionText(
        "", f"{name}_backward", [arguments, given[0] if len(given) == 1 else given],
        ["residuals", "cotangent"], body.statements, syntax.tuple_of(derivatives), parts=parts,
    )  # fmt: skip


def _no_derivative(v: Atom, is_jvp: bool) -> ast.expr:
    """The tangent or cotangent that JAX expects for a value without one, such as an integer."""
    if not is_jvp:
        return number(None)
    if any(map(is_open, v.aval.shape)):  # NumPy has no arrays of open sizes
        zero = call("np.zeros", syntax.tuple_of(()), syntax.name("jax.dtypes.float0"))
        return call("lax.broadcast", zero, literals.shape(v.aval.shape))
    return call("np.zeros", literals.shape(v.aval.shape), syntax.name("jax.dtypes.float0"))


def forbidden(name: str, message: str, sizes: int) -> ast.FunctionDef:
    """The rule of a function whose author forbids differentiation, with `sizes` open sizes."""
    raised = ast.Raise(call("LookupError", number(message)))
    arguments = [ast.arg(f"_size_{i}") for i in range(sizes)]
    arguments += [ast.arg("primals"), ast.arg("tangents")]
    decorators = [syntax.name(f"{name}.defjvp")]
    return syntax.function(f"{name}_jvp", arguments, [raised], decorators=decorators)
