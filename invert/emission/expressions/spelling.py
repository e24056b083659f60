"""Expressions for single equations: idiomatic ones, if they trace to the same equation.

Each row yields expressions to try, best first. Since each is proved by tracing, a row may guess. If
no row fits, the `lax` function of that name is used, otherwise the primitive itself.
"""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax

from invert._errors import EmissionError
from invert._private.meshes import is_on_shards, mesh_of_now
from invert.emission.expressions import helpers, indexing, literals, products
from invert.emission.expressions.writer import Writer
from invert.emission.python import syntax
from invert.emission.python.syntax import call, infix, method, number
from invert.emission.sizes.program import Program
from invert.ir import kinds
from invert.ir.graph import is_var
from invert.ir.sizes import is_open
from invert.ir.types import Eqn, JaxFunction, Literal, Params, Var

Expressions = Iterator[ast.expr]
Row = Callable[[Eqn, Sequence[ast.expr], Program], Expressions]


def _infix(sign: str, *others: str) -> Row:
    def row(eqn: Eqn, args: Sequence[ast.expr], program: Program) -> Expressions:
        yield infix(args[0], sign, args[1])
        for other in others:
            yield call(other, *args)

    return row


def _named(*names: str) -> Row:
    def row(eqn: Eqn, args: Sequence[ast.expr], program: Program) -> Expressions:
        for name in names:
            yield call(name, *args)

    return row


def _prefix(sign: str) -> Row:
    def row(eqn: Eqn, args: Sequence[ast.expr], program: Program) -> Expressions:
        yield syntax.prefix(sign, args[0])

    return row


def axis_of(axes: Sequence[int], rank: int) -> ast.expr | None:
    """An `axis` argument; `None` for all axes."""
    axes = tuple(int(a) for a in axes)
    if len(axes) == rank:
        return None
    if len(axes) == 1:
        return one_axis(axes[0], rank)
    return syntax.tuple_of(map(number, axes))


def one_axis(axis: int, rank: int) -> ast.expr:
    """An axis as a literal; the last one is -1."""
    return number(-1 if axis == rank - 1 and rank > 1 else axis)


def _different(eqn: Eqn, args: Sequence[ast.expr], program: Program) -> Expressions:
    if eqn.invars[0] is eqn.invars[1]:
        yield call("jnp.isnan", args[0])
    yield infix(args[0], "!=", args[1])


def _tile(eqn: Eqn, args: Sequence[ast.expr], program: Program) -> Expressions:
    yield call("jnp.tile", args[0], literals.shape(eqn.params["reps"]))


def _reduction(name: str) -> Row:
    def row(eqn: Eqn, args: Sequence[ast.expr], program: Program) -> Expressions:
        axis = axis_of(eqn.params["axes"], len(eqn.invars[0].aval.shape))
        keywords = {} if axis is None else {"axis": axis}
        yield call(f"jnp.{name}", args[0], **keywords)

    return row


def _extremum(name: str) -> Row:
    def row(eqn: Eqn, args: Sequence[ast.expr], program: Program) -> Expressions:
        yield from _reduction(name)(eqn, args, program)
        dtype = literals.dtype(eqn.params["index_dtype"])
        axis = number(int(eqn.params["axes"][0]))
        yield call(f"lax.{name}", args[0], axis, dtype)

    return row


def _cumulative(name: str) -> Row:
    def row(eqn: Eqn, args: Sequence[ast.expr], program: Program) -> Expressions:
        axis = eqn.params["axis"]
        if not eqn.params["reverse"] and name in ("sum", "prod"):
            yield call(f"jnp.cum{name}", args[0], axis=number(axis))
        keywords = {"reverse": number(True)} if eqn.params["reverse"] else {}
        yield call(f"lax.cum{name}", args[0], axis=number(axis), **keywords)

    return row


def _power(eqn: Eqn, args: Sequence[ast.expr], program: Program) -> Expressions:
    yield infix(args[0], "**", number(eqn.params["y"]))


def _convert(eqn: Eqn, args: Sequence[ast.expr], program: Program) -> Expressions:
    dtype = eqn.params["new_dtype"]
    if isinstance(eqn.invars[0], Literal):
        yield call("jnp.asarray", args[0], literals.dtype(dtype))
    else:
        yield method(args[0], "astype", literals.dtype(dtype))
    yield call("lax.convert_element_type", args[0], literals.dtype(dtype))


def _select(eqn: Eqn, args: Sequence[ast.expr], program: Program) -> Expressions:
    if len(args) == 3:
        yield call("jnp.where", args[0], args[2], args[1])
        yield call("lax.select", args[0], args[2], args[1])
    yield call("lax.select_n", *args)


def _clamp(eqn: Eqn, args: Sequence[ast.expr], program: Program) -> Expressions:
    yield call("lax.clamp", *args)


def _concatenate(eqn: Eqn, args: Sequence[ast.expr], program: Program) -> Expressions:
    axis = eqn.params["dimension"]
    keywords = {} if axis == 0 else {"axis": one_axis(axis, len(eqn.invars[0].aval.shape))}
    yield call("jnp.concatenate", syntax.list_of(args), **keywords)


def _iota(eqn: Eqn, args: Sequence[ast.expr], program: Program) -> Expressions:
    params = eqn.params
    dtype = literals.dtype(params["dtype"])
    if len(params["shape"]) == 1:
        size = literals.size(params["shape"][0])
        yield call("jnp.arange", size, dtype=dtype)
        yield call("lax.iota", dtype, size)  # of an open size
    dimension = number(params["dimension"])
    yield call("lax.broadcasted_iota", dtype, literals.shape(params["shape"]), dimension)


def _sort(eqn: Eqn, args: Sequence[ast.expr], program: Program) -> Expressions:
    axis = eqn.params["dimension"]
    if len(args) == 1:
        last = axis == len(eqn.invars[0].aval.shape) - 1
        yield call("jnp.sort", args[0], **({} if last else {"axis": number(axis)}))
    operand = syntax.one_or_tuple(args)
    keywords = {"dimension": number(axis)}
    if not eqn.params["is_stable"]:
        keywords["is_stable"] = number(False)
    keys = {} if eqn.params["num_keys"] == 1 else {"num_keys": number(eqn.params["num_keys"])}
    yield call("lax.sort", operand, **keywords, **keys)


def _split(eqn: Eqn, args: Sequence[ast.expr], program: Program) -> Expressions:
    sizes, axis = eqn.params["sizes"], eqn.params["axis"]
    where = {} if axis == 0 else {"axis": one_axis(axis, len(eqn.invars[0].aval.shape))}
    if len(set(sizes)) == 1:
        yield call("jnp.split", args[0], number(len(sizes)), **where)
    yield call("lax.split", args[0], literals.shape(sizes), **where)


def _stack(eqn: Eqn, args: Sequence[ast.expr], program: Program) -> Expressions:
    axis = eqn.params["axis"]
    keywords = {} if axis == 0 else {"axis": one_axis(axis, len(eqn.outvars[0].aval.shape))}
    yield call("jnp.stack", syntax.list_of(args), **keywords)


def _pad(eqn: Eqn, args: Sequence[ast.expr], program: Program) -> Expressions:
    config = eqn.params["padding_config"]
    plain = not any(is_open(n) for part in config for n in part)
    if plain and all(low >= 0 and high >= 0 and inner == 0 for low, high, inner in config):
        widths = syntax.tuple_of(literals.shape((low, high)) for low, high, _ in config)
        yield call("jnp.pad", args[0], widths)
        yield call("jnp.pad", args[0], widths, constant_values=args[1])
    yield call("lax.pad", *args, literals.value(tuple(map(tuple, eqn.params["padding_config"]))))


def _key(function: str, *params: str) -> Row:
    def row(eqn: Eqn, args: Sequence[ast.expr], program: Program) -> Expressions:
        yield call(
            f"jax.random.{function}", *args, *(literals.value(eqn.params[p]) for p in params)
        )

    return row


def _wrap(eqn: Eqn, args: Sequence[ast.expr], program: Program) -> Expressions:
    name = getattr(eqn.params["impl"], "name", "")
    yield call("jax.random.wrap_key_data", args[0])
    yield call("jax.random.wrap_key_data", args[0], impl=number(name))


def _seed(eqn: Eqn, args: Sequence[ast.expr], program: Program) -> Expressions:
    yield call("jax.random.key", args[0])
    name = getattr(eqn.params["impl"], "name", "")
    yield call("jax.random.key", args[0], impl=number(name))


def _constraint(eqn: Eqn, args: Sequence[ast.expr], program: Program) -> Expressions:
    sharding = eqn.params["sharding"]
    if is_on_shards():
        yield call("lax.with_sharding_constraint", args[0], literals.spec(sharding.spec))
    yield call("lax.with_sharding_constraint", args[0], literals.value(sharding))


def _axes(names: Any) -> ast.expr:
    """A single axis, or a tuple."""
    names = names if isinstance(names, (tuple, list)) else (names,)
    return number(names[0]) if len(names) == 1 else literals.value(tuple(names))


def _collective(function: str, *params: str) -> Row:
    """A function of axes, with other parameters that are not at their defaults."""

    def row(eqn: Eqn, args: Sequence[ast.expr], program: Program) -> Expressions:
        given = eqn.params
        axes = given["axes"] if "axes" in given else given["axis_name"]
        keywords = {
            _KEYWORDS.get(p, p): literals.value(given[p])
            for p in params
            if given.get(p) is not None
        }
        plain = {
            k: v for k, v in keywords.items() if not (isinstance(v, ast.Constant) and not v.value)
        }
        yield call(f"lax.{function}", *args, _axes(axes), **plain)
        yield call(f"lax.{function}", *args, literals.value(axes), **keywords)

    return row


_KEYWORDS = {"all_gather_dimension": "axis"}


def _all_to_all(eqn: Eqn, args: Sequence[ast.expr], program: Program) -> Expressions:
    p = eqn.params
    groups = p["axis_index_groups"]
    keywords = {} if groups is None else {"axis_index_groups": literals.value(groups)}
    places = (number(p["split_axis"]), number(p["concat_axis"]))
    for tiled in (True, False):
        yield call(
            "lax.all_to_all",
            args[0],
            _axes(p["axis_name"]),
            *places,
            tiled=number(tiled),
            **keywords,
        )


def _axis_index(eqn: Eqn, args: Sequence[ast.expr], program: Program) -> Expressions:
    yield call("lax.axis_index", _axes(eqn.params["axis_name"]))


def _split_key(eqn: Eqn, args: Sequence[ast.expr], program: Program) -> Expressions:
    shape = eqn.params["shape"]
    yield _of_keys("jax.random.split", eqn, args[0])
    if len(shape) == 1:
        yield _of_keys("jax.random.split", eqn, args[0], literals.size(shape[0]))
    yield _of_keys("jax.random.split", eqn, args[0], literals.shape(shape))


def _bits(eqn: Eqn, args: Sequence[ast.expr], program: Program) -> Expressions:
    shape = literals.shape(eqn.params["shape"])
    width = eqn.params["bit_width"]
    yield _of_keys("jax.random.bits", eqn, args[0], shape, syntax.name(f"jnp.uint{width}"))


def _of_keys(name: str, eqn: Eqn, keys: ast.expr, *args: ast.expr) -> ast.expr:
    """The call of a function of one key, with a `vmap` for each axis of an array of keys."""
    batch = len(eqn.invars[0].aval.shape)
    if not batch:
        return call(name, keys, *args)
    function: ast.expr = syntax.name(name)
    if args:
        function = syntax.lambda_of(["key"], call(name, syntax.name("key"), *args))
    for _ in range(batch):
        function = call("jax.vmap", function)
    return call(function, keys)


def _scatter_nd(eqn: Eqn, args: Sequence[ast.expr], program: Program) -> Expressions:
    """`scatter_nd(lax.scatter_add, x, indices, updates)`, for indices in one array."""
    yield helpers.calling(
        helpers.scatter_nd,
        syntax.name(f"lax.{_RENAMED.get(eqn.primitive.name, eqn.primitive.name)}"),
        *args[:3],
    )


# Scatters whose `lax` function has another name.
_SCATTERS = {f"scatter-{kind}": f"scatter_{kind}" for kind in ("add", "sub", "mul", "min", "max")}
# Primitives whose `lax` function has another name.
_RENAMED = {**_SCATTERS, "add_any": "add_any"}
_BITWISE = {"and": "&", "or": "|", "xor": "^"}

ROWS: dict[str, tuple[Row, ...]] = {
    "add": (_infix("+"),),
    "sub": (_infix("-"),),
    "mul": (_infix("*"),),
    "div": (_infix("/", "lax.div"),),
    "rem": (_named("lax.rem"),),
    "pow": (_infix("**"),),
    "max": (_named("jnp.maximum"),),
    "min": (_named("jnp.minimum"),),
    **{name: (_infix(sign),) for name, sign in _BITWISE.items()},
    "shift_left": (_infix("<<"),),
    "shift_right_arithmetic": (_infix(">>"),),
    "shift_right_logical": (_infix(">>", "lax.shift_right_logical"),),
    "eq": (_infix("=="),),
    "ne": (_different,),
    "lt": (_infix("<"),),
    "le": (_infix("<="),),
    "gt": (_infix(">"),),
    "ge": (_infix(">="),),
    "neg": (_prefix("-"),),
    "not": (_prefix("~"),),
    "logistic": (_named("jax.nn.sigmoid"),),
    "erf": (_named("jax.scipy.special.erf"),),
    "is_finite": (_named("jnp.isfinite"),),
    "integer_pow": (_power,),
    "reduce_sum": (_reduction("sum"),),
    "reduce_prod": (_reduction("prod"),),
    "reduce_max": (_reduction("max"),),
    "reduce_min": (_reduction("min"),),
    "reduce_and": (_reduction("all"),),
    "reduce_or": (_reduction("any"),),
    "argmax": (_extremum("argmax"),),
    "argmin": (_extremum("argmin"),),
    **{f"cum{n}": (_cumulative(n),) for n in ("sum", "prod", "max", "min", "logsumexp")},
    "dot_general": (products.product,),
    "convert_element_type": (_convert,),
    "select_n": (_select,),
    "clamp": (_clamp,),
    "concatenate": (_concatenate,),
    "iota": (_iota,),
    "sort": (_sort,),
    "split": (_split,),
    "pad": (_pad,),
    "stack": (_stack,),
    "tile": (_tile,),
    "broadcast_in_dim": (indexing.broadcast,),
    "reshape": (indexing.reshape,),
    "squeeze": (indexing.squeeze,),
    "transpose": (indexing.transpose,),
    "rev": (indexing.reverse,),
    "slice": (indexing.slices,),
    "dynamic_slice": (indexing.dynamic_slice,),
    "dynamic_update_slice": (indexing.dynamic_update_slice,),
    "gather": (indexing.gather,),
    **dict.fromkeys(("scatter", *_SCATTERS), (_scatter_nd,)),
    "conv_general_dilated": (indexing.convolution,),
    "reduce_window_max": (indexing.pooling("max", "-jnp.inf"),),
    "reduce_window_min": (indexing.pooling("min", "jnp.inf"),),
    "reduce_window_sum": (indexing.pooling("add", "0.0"),),
    "sharding_constraint": (_constraint,),
    **{n: (_collective(n, "axis_index_groups"),) for n in ("psum", "pmax", "pmin")},
    "all_gather": (
        _collective("all_gather", "axis_index_groups", "all_gather_dimension", "tiled"),
    ),
    "reduce_scatter": (
        _collective("psum_scatter", "scatter_dimension", "axis_index_groups", "tiled"),
    ),
    "ppermute": (_collective("ppermute", "perm"),),
    "pbroadcast": (_collective("pbroadcast", "source"),),
    "all_to_all": (_all_to_all,),
    "axis_index": (_axis_index,),
    "random_seed": (_seed,),
    "random_wrap": (_wrap,),
    "random_unwrap": (_key("key_data"),),
    "random_clone": (_key("clone"),),
    "random_fold_in": (_key("fold_in"),),
    "random_split": (_split_key,),
    "random_bits": (_bits,),
}  # fmt: skip

# Whether a result takes the name of an operand that is not used later: of one of the same type
# (`True`), or of any type, if it is the same array in another form (`"any"`).
FLOWS: dict[str, bool | str] = {
    # A broadcast is often of a number, and an array has many slices.
    **dict.fromkeys(kinds.MOVES - kinds.PARTS - {"broadcast_in_dim"}, "any"),
    "convert_element_type": "any",
    **dict.fromkeys(("reduce_sum", "reduce_max", "exp", "iota", "random_bits", "rsqrt"), False),
}


def operands(eqn: Eqn, writer: Writer, bare: bool) -> list[ast.expr]:
    """The operands of an equation as expressions; literals are Python numbers if `bare`."""
    expressions: list[ast.expr] = []
    for atom in eqn.invars:
        if not isinstance(atom, Literal):
            expressions.append(ast.Name(writer.token(atom), ast.Load()))
        else:
            expressions.append(literals.of_literal(atom, plain=bare))
    return expressions


def spell(eqn: Eqn, writer: Writer) -> ast.expr:
    """The best expression that traces to an equation.

    **Raises:** `EmissionError` if none does, e.g. if a parameter cannot be written, such as a
    sharding over the devices of this process.
    """
    if eqn.primitive.name == "pure_callback":
        raise EmissionError(
            "the program calls back into a function of this process, such as an op that TensorFlow "
            'runs by Config(host_ops="callback"), and a text cannot hold it'
        )
    forms = _forms(eqn, writer)
    key = _signature(eqn, writer.program)
    known = writer.prover.chosen.get(key) if key is not None else None
    if known is not None:
        # The same equation on other operands: the proof is shared.
        return next(itertools.islice(forms, known, None))
    variables = {writer.token(v): v for v in eqn.invars if not isinstance(v, Literal)}
    for i, form in enumerate(forms):
        if writer.prover.holds(form, variables, [eqn], eqn.outvars):
            if key is not None:
                writer.prover.chosen[key] = i
            return form
    raise EmissionError(
        f"no expression traces to the equation {eqn.primitive.name} with the parameters "
        f"{ {k: v for k, v in eqn.params.items() if v is not None} }"
    )


def _forms(eqn: Eqn, writer: Writer) -> Expressions:
    """All expressions to try."""
    alone = eqn.primitive.multiple_results and len(eqn.outvars) == 1
    for candidate in _candidates(eqn, writer, any(not is_var(a) for a in eqn.invars)):
        yield candidate
        if alone:
            yield syntax.item(candidate, number(0))


def _signature(eqn: Eqn, program: Program) -> Hashable | None:
    """An equation up to its variables; `None` if its parameters are not hashable."""
    try:
        params = _frozen(tuple(eqn.params.items()))
        hash(params)
    except TypeError:
        return None
    order: dict[Var, int] = {}
    operands = []
    for atom in eqn.invars:
        if not isinstance(atom, Literal):
            shape = _frozen(program.shape(atom)) if hasattr(atom.aval, "shape") else ()
            number = order.setdefault(atom, len(order))
            operands.append((number, shape, getattr(atom.aval, "dtype", None)))
        else:
            value = np.asarray(atom.val)
            operands.append((value.dtype, value.tobytes(), value.shape))
    outs = tuple(_frozen(program.shape(v)) for v in eqn.outvars if hasattr(v.aval, "shape"))
    return eqn.primitive.name, params, tuple(operands), outs, mesh_of_now()


def _frozen(value: object) -> Hashable:
    """A hashable value in which numbers of different types differ."""
    if isinstance(value, (tuple, list)):
        return type(value).__name__, tuple(_frozen(v) for v in value)
    if isinstance(value, (bool, float)):
        return type(value).__name__, repr(value)
    return value


def _candidates(eqn: Eqn, writer: Writer, has_literals: bool) -> Expressions:
    name = eqn.primitive.name
    both = [operands(eqn, writer, bare) for bare in ((True, False) if has_literals else (True,))]
    if not writer.plain:
        for row in ROWS.get(name, ()):
            for args in both:
                yield from row(eqn, args, writer.program)
        if name not in ROWS:
            for module in ("jnp", "jax.scipy.special"):
                if _lookup(module, name) and not _nondefault(eqn):
                    for args in both:
                        yield call(f"{module}.{name}", *args)
    for args in reversed(both):
        yield from _of_lax(eqn, args)
    yield from _bound(eqn, both[-1])
    if writer.plain:  # for primitives without a function of `lax`
        for row in ROWS.get(name, ()):
            yield from row(eqn, both[-1], writer.program)


@functools.lru_cache(maxsize=1024)
def _lookup(module: str, name: str) -> JaxFunction | None:
    """The public function of a module, if there is one of that name."""
    roots = {"jax": jax, "lax": lax, "jnp": jax.numpy}
    first, *rest = module.split(".")
    owner: Any = roots[first]
    for part in rest:
        owner = getattr(owner, part)
    function = getattr(owner, name, None)
    return function if callable(function) else None


# Parameters of most primitives, `None` by default.
_UNSET = {"accuracy", "out_dtype", "sharding", "out_sharding"}


def _nondefault(eqn: Eqn) -> Params:
    """The parameters that differ from their defaults."""
    return {k: v for k, v in eqn.params.items() if not (k in _UNSET and v is None)}


def _of_lax(eqn: Eqn, args: Sequence[ast.expr]) -> Expressions:
    """`lax.name(*operands, **params)`, with the parameters that the function takes."""
    name = _RENAMED.get(eqn.primitive.name, eqn.primitive.name)
    for module in ("lax", "lax.linalg"):
        function = _lookup(module, name)
        if function is None:
            continue
        signature = inspect.signature(function).parameters
        try:
            full = {
                k: literals.value(v)
                for k, v in eqn.params.items()
                if k in signature and not _is_default(v, signature[k].default)
            }
        except EmissionError:
            continue
        yield call(f"{module}.{name}", *args, **full)
        if len(args) > 1:
            yield call(f"{module}.{name}", syntax.tuple_of(args), **full)


def _is_default(value: object, default: object) -> bool:
    try:
        return value is default or bool(value == default)
    except ValueError:
        return False


def _bound(eqn: Eqn, args: Sequence[ast.expr]) -> Expressions:
    """`lax.name_p.bind(*operands, **params)`, if the parameters can be written."""
    where = literals.public_primitives().get(eqn.primitive.name)
    if where is None:
        return
    try:
        params = {k: literals.value(v) for k, v in eqn.params.items()}
    except EmissionError:
        return
    yield method(syntax.name(where), "bind", *args, **params)
