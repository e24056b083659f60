"""Expressions for several equations: `jnp.mean(x, axis=-1)`, `jax.nn.softmax(x)`.

Each row belongs to the primitive of the last equation and proposes calls, which `groups` proves.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

import jax.numpy as jnp
import numpy as np

from invert.emission.expressions import (
    attention,
    fourier,
    helpers,
    indexing,
    library,
    literals,
    paddings,
    repeats,
)
from invert.emission.expressions.products import (
    dot_options,
    is_matrix_product,
    relettered,
    subscripts,
)
from invert.emission.expressions.proposals import LETTERS, Proposal, Row, axes_index, placeholder
from invert.emission.expressions.spelling import axis_of, one_axis
from invert.emission.expressions.writer import Writer
from invert.emission.python import syntax
from invert.emission.python.nouns import NOUNS, PLAIN, PRODUCT
from invert.emission.python.syntax import call, number
from invert.emission.sizes.expressions import expression
from invert.ir import kinds
from invert.ir.graph import Graph, is_var
from invert.ir.sizes import DimSize, is_open, may_wrap
from invert.ir.types import Atom, Eqn, Literal, Var


def _axis(axes: Sequence[int], x: Atom) -> dict[str, ast.expr]:
    axis = axis_of(axes, len(x.aval.shape))
    return {} if axis is None else {"axis": axis}


_KEPT = {
    "reduce_sum": "jnp.sum", "reduce_max": "jnp.max", "reduce_min": "jnp.min",
    "reduce_prod": "jnp.prod", "reduce_and": "jnp.all", "reduce_or": "jnp.any",
}  # fmt: skip


def _keepdims(eqn: Eqn, graph: Graph, writer: Writer) -> Iterator[Proposal]:
    """A reduction with `keepdims=True`."""
    inner = graph.producer(eqn.invars[0], *_KEPT)
    if inner is not None and "axes" in inner.params:
        x = inner.invars[0]
        if is_var(x) and len(eqn.params["shape"]) == len(x.aval.shape):
            name = _KEPT[inner.primitive.name]
            keywords = _axis(inner.params["axes"], x)
            reduction = call(name, placeholder(), **keywords, keepdims=number(True))
            yield Proposal(reduction, (x,), NOUNS.get(inner.primitive.name, PLAIN))


def _reduced(eqn: Eqn, graph: Graph) -> tuple[Eqn, bool] | None:
    """The sum that an equation divides, and whether it keeps its axes."""
    inner = graph.producer(eqn.invars[0], "reduce_sum", "broadcast_in_dim")
    if inner is None:
        return None
    if inner.primitive.name == "reduce_sum":
        return inner, False
    deeper = graph.producer(inner.invars[0], "reduce_sum")
    return None if deeper is None else (deeper, True)


def _division(eqn: Eqn, graph: Graph, writer: Writer) -> Iterator[Proposal]:
    """A softmax or a mean."""
    exponential = graph.producer(eqn.invars[0], "exp")
    if exponential is not None:
        centered = graph.producer(exponential.invars[0], "sub")
        if centered is not None and is_var(centered.invars[0]):
            x = centered.invars[0]
            rank = len(x.aval.shape)
            for axis in range(-1, -rank - 1, -1):
                keywords = {} if axis == -1 else {"axis": number(axis)}
                yield Proposal(call("jax.nn.softmax", placeholder(), **keywords), (x,), "softmax")
    size = _size_of(graph, eqn.invars[1])
    if (size is not None or not is_var(eqn.invars[1])) and (
        reduced := _reduced(eqn, graph)
    ) is not None:
        total, kept = reduced
        x = total.invars[0]
        if is_var(x) and "axes" in total.params:
            keywords = _axis(total.params["axes"], x)
            if kept:
                keywords["keepdims"] = number(True)
            yield Proposal(call("jnp.mean", placeholder(), **keywords), (x,), "mean")


def _logsumexp(eqn: Eqn, graph: Graph, writer: Writer) -> Iterator[Proposal]:
    """`jax.nn.logsumexp(x, axis=0)`: the logarithm of a sum, plus the maximum taken from `x`."""
    atom, found = eqn.invars[0], dict[str, Eqn]()
    for name in ("log", "abs", "broadcast_in_dim", "reduce_sum", "exp", "sub"):
        if (made := graph.producer(atom, name)) is not None:
            found[name], atom = made, made.invars[0]
        elif name != "broadcast_in_dim":  # as it is without `keepdims`
            return
    if is_var(atom):
        axes = found["reduce_sum"].params["axes"]
        keywords = {} if len(axes) == len(atom.aval.shape) else _axis(axes, atom)
        if "broadcast_in_dim" in found:
            keywords["keepdims"] = number(True)
        total = call("jax.nn.logsumexp", placeholder(), **keywords)
        yield Proposal(total, (atom,), "logsumexp")


def _average(eqn: Eqn, graph: Graph, writer: Writer) -> Iterator[Proposal]:
    """The sum of the numbers in each window, divided by their number."""
    total = graph.producer(eqn.invars[0], "reduce_window_sum")
    if total is not None and is_var(x := total.invars[0]):
        for pool in (helpers.avg_pool, helpers.avg_pool_same):
            if (sizes := indexing.window(total)) is not None:
                yield Proposal(helpers.calling(pool, placeholder(), *sizes), (x,), "avg_pool")


def _gelu(eqn: Eqn, graph: Graph, writer: Writer) -> Iterator[Proposal]:
    """`x * (0.5 * (1 + tanh(...)))`, in the forms of JAX's versions and of TensorFlow."""
    names = set()
    pending, steps = list(eqn.invars), 0
    while pending and steps < 16:
        steps += 1
        inner = graph.producer(pending.pop())
        if inner is not None:
            names.add(inner.primitive.name)
            if len(names) < 8:
                pending.extend(inner.invars)
    factors = [graph.producer(a, "mul") for a in eqn.invars]
    operands = [*eqn.invars, *(a for f in factors if f is not None for a in f.invars)]
    name = library.noun("gelu")
    for x in dict.fromkeys(a for a in operands if is_var(a)):
        if "tanh" in names:
            yield Proposal(call("jax.nn.gelu", placeholder()), (x,), name, True)
            yield Proposal(helpers.calling(helpers.gelu, placeholder()), (x,), name, True)
        if names & {"erf", "erfc"}:
            keywords = {"approximate": number(False)}
            yield Proposal(call("jax.nn.gelu", placeholder(), **keywords), (x,), name, True)


def _silu(eqn: Eqn, graph: Graph, writer: Writer) -> Iterator[Proposal]:
    """`x * jax.nn.sigmoid(x)`."""
    x, gate = eqn.invars
    inner = graph.producer(gate, "logistic")
    if is_var(x) and inner is not None and inner.invars[0] is x:
        yield Proposal(call("jax.nn.silu", placeholder()), (x,), library.noun("silu"), True)


def _hard_gate(eqn: Eqn, graph: Graph, writer: Writer) -> Iterator[Proposal]:
    """`jax.nn.relu6(x + 3.0) / 6.0`, also times `x`; the proof compares numbers."""
    factor = eqn.primitive.name == "mul"
    quotient = graph.producer(eqn.invars[1], "div") if factor else eqn
    clipped = None if quotient is None else graph.producer(quotient.invars[0], "custom_jvp_call")
    shifted = None if clipped is None else graph.producer(clipped.invars[0], "add")
    if quotient is None or clipped is None or shifted is None or not is_var(shifted.invars[0]):
        return
    name = "hard_silu" if factor else "hard_sigmoid"
    eqns = [shifted, clipped, quotient, *([eqn] if factor else [])]
    yield Proposal(
        call(f"jax.nn.{name}", placeholder()), shifted.invars[:1], library.noun(name), True, eqns
    )


def _scale_of_scores(eqn: Eqn, graph: Graph, writer: Writer) -> Iterator[Proposal]:
    """`scores * (1 / 16**0.5)`, the root of the head size."""
    x, factor = eqn.invars
    if not is_var(x) or not isinstance(factor, Literal) or factor.aval.shape:
        return
    for v, axis in _contracted(graph, x, eqn.outvars[0]):
        size = v.aval.shape[axis]
        divides = eqn.primitive.name == "div"
        root = size**0.5 if divides else size**-0.5
        if size > 1 and np.asarray(root, factor.aval.dtype) == factor.val:
            base = number(size)
            syntax.mark(base, [(id(v), axis)])
            power = syntax.infix(base, "**", number(0.5))
            value = power if divides else syntax.infix(number(1), "/", power)
            scaled = syntax.infix(placeholder(), "/" if divides else "*", value)
            yield Proposal(scaled, (x,), PRODUCT, True, [eqn])


def _fractions(eqn: Eqn, graph: Graph, writer: Writer) -> Iterator[Proposal]:
    """`jnp.arange(n) / n`, whose numbers are the same size."""
    counted, whole = graph.producer(eqn.invars[0], "iota"), eqn.invars[1]
    if counted is None or not isinstance(whole, Literal) or len(counted.params["shape"]) != 1:
        return
    (size,) = counted.params["shape"]
    if not is_open(size) and whole.val == size:
        count, total = number(size), number(size)
        for each in (count, total):
            syntax.mark(each, [(id(counted.outvars[0]), 0)])
        dtype = literals.dtype(counted.params["dtype"])
        steps = syntax.infix(call("jnp.arange", count, dtype=dtype), "/", total)
        yield Proposal(steps, (), "fractions")


def _contracted(graph: Graph, x: Var, scaled: Var) -> Iterator[tuple[Var, int]]:
    """The axes that products of batches sum over: from `x`, or of `scaled`."""
    products = [attention.product_behind(graph, x, kinds.LAYOUT)]
    pending = [scaled]
    while pending:
        for user in graph.users.get(pending.pop(), ()):
            if user.primitive.name in kinds.LAYOUT:
                pending += user.outvars
            elif user.primitive.name == "dot_general":
                products.append(user)
    for product in filter(None, products):
        (axes, _), (batch, _) = product.params["dimension_numbers"]
        v = product.invars[0]
        if batch and is_var(v) and len(axes) == 1 and not is_open(v.aval.shape[axes[0]]):
            yield v, axes[0]


def _einsum(eqn: Eqn, graph: Graph, writer: Writer) -> Iterator[Proposal]:
    """A `dot_general` whose result is transposed."""
    inner = graph.producer(eqn.invars[0], "dot_general")
    if inner is None or not all(map(is_var, inner.invars)) or inner.invars[0] is inner.invars[1]:
        return
    if sum(len(a.aval.shape) for a in inner.invars) > 20:
        return
    if (
        is_matrix_product(inner)
        and sum(i != n for i, n in enumerate(eqn.params["permutation"])) == 2
    ):
        return  # `jnp.swapaxes(x @ y, 1, 2)`
    left, right, out = subscripts(inner)
    moved = "".join(out[i] for i in eqn.params["permutation"])
    keywords = dot_options(inner)
    for text, atoms in (
        (f"{right},{left}->{moved}", inner.invars[::-1]),
        (f"{left},{right}->{moved}", inner.invars),
    ):
        product = call(
            "jnp.einsum", number(relettered(text)), placeholder(0), placeholder(1), **keywords
        )
        yield Proposal(product, tuple(atoms), PRODUCT)
    if len(out) > 2 and moved == out[1:] + out[0]:
        # A mapped `weight @ x`, whose features come first.
        text = number(relettered(f"{left},{right}->{out}"))
        product = call("jnp.einsum", text, placeholder(0), placeholder(1), **keywords)
        moveaxis = call("jnp.moveaxis", product, number(0), number(-1))
        yield Proposal(moveaxis, tuple(inner.invars), PRODUCT)


def _item(eqn: Eqn, graph: Graph, writer: Writer) -> Iterator[Proposal]:
    """`x[:, 0]`: a slice of size one whose axis is squeezed."""
    inner = graph.producer(eqn.invars[0], "slice")
    if inner is None or not is_var(inner.invars[0]):
        return
    parts = indexing.slice_parts(inner, writer.program)
    for axis in eqn.params["dimensions"]:
        part = parts[axis]
        if not isinstance(part, ast.Slice):
            return
        parts[axis] = part.lower if part.lower is not None else number(0)
        if part.upper is None and (
            is_open(inner.invars[0].aval.shape[axis]) or inner.params["start_indices"][axis] > 1
        ):
            parts[axis] = number(-1)  # the last one, if any
    parts = indexing.shortened(parts)
    index = syntax.one_or_tuple(parts)
    yield Proposal(syntax.item(placeholder(), index), (inner.invars[0],), PLAIN)


def _place(graph: Graph, atom: Atom) -> Iterator[tuple[Atom, dict[str, ast.expr]]]:
    """The index that a start is computed from, with keywords for functions."""
    chosen = graph.producer(atom, "select_n")
    if chosen is not None and len(chosen.invars) == 3 and is_var(chosen.invars[1]):
        yield chosen.invars[1], {}
    yield atom, {"allow_negative_indices": number(False)}


def _fixed_index(graph: Graph, start: Atom, size: DimSize) -> int | None:
    """An index that is a number, counted from the end if the start is computed from the size."""
    if isinstance(start, Literal):
        return int(start.val)
    maker = _made_of_size(graph, start)
    left = None if maker is None else maker.params["dim"] - size
    return None if is_open(left) else left


def _element(eqn: Eqn, graph: Graph, writer: Writer) -> Iterator[Proposal]:
    """`x[i]`, `x[1]` or `x[i, -2]`, a `dynamic_slice` whose axes of size one are squeezed."""
    inner = graph.producer(eqn.invars[0], "dynamic_slice")
    if inner is None or not is_var(x := inner.invars[0]):
        return
    starts, axes = inner.invars[1:], eqn.params["dimensions"]
    fixed = {axis: _fixed_index(graph, starts[axis], x.aval.shape[axis]) for axis in axes}
    places = {axis: next(_place(graph, starts[axis]))[0] for axis in axes if fixed[axis] is None}
    variables = list(dict.fromkeys(a for a in (x, *places.values()) if isinstance(a, Var)))
    if len(variables) <= len(LETTERS):
        parts: list[ast.expr] = [ast.Slice() for _ in starts]
        for axis, own in fixed.items():
            parts[axis] = number(own) if own is not None else _spelled(places[axis], variables)
        parts = indexing.shortened(parts)
        index = syntax.one_or_tuple(parts)
        yield Proposal(syntax.item(placeholder(), index), variables, PLAIN)
    if len(axes) == 1 and not isinstance(starts[axes[0]], Literal):
        where = {"axis": number(int(axes[0]))} if axes[0] else {}
        options = {**where, "keepdims": number(False)}
        yield from _moving(graph, "dynamic_index_in_dim", [x], starts[axes[0]], [], options)


def _moving(
    graph: Graph,
    name: str,
    arrays: Sequence[Atom],
    start: Atom,
    rest: Sequence[ast.expr],
    options: Mapping[str, ast.expr],
) -> Iterator[Proposal]:
    """Calls of a function of `lax` on arrays and a place, with and without negative indices."""
    for place, keywords in _place(graph, start):
        variables = _variables((*arrays, place))
        operands = [_spelled(a, variables) for a in (*arrays, place)]
        moved = call(f"lax.{name}", *operands, *rest, **options, **keywords)
        yield Proposal(moved, variables, PLAIN, len(arrays) > 1)


def _part(eqn: Eqn, graph: Graph, writer: Writer) -> Iterator[Proposal]:
    """`lax.dynamic_slice_in_dim(x, i, 3, axis=1)`."""
    x, *starts = eqn.invars
    moved = [i for i, a in enumerate(starts) if not isinstance(a, Literal)]
    if len(moved) == 1 and is_var(x):
        size = literals.size(eqn.params["slice_sizes"][moved[0]])
        axis = {"axis": number(moved[0])} if moved[0] else {}
        yield from _moving(graph, "dynamic_slice_in_dim", [x], starts[moved[0]], [size], axis)


def _update(eqn: Eqn, graph: Graph, writer: Writer) -> Iterator[Proposal]:
    """`lax.dynamic_update_index_in_dim(x, row, i, axis)`, or the function for several rows."""
    x, update, *starts = eqn.invars
    moved = [i for i, a in enumerate(starts) if not isinstance(a, Literal)]
    if len(moved) != 1 or not is_var(x):
        return
    start, axis = starts[moved[0]], [number(moved[0])]
    row = graph.producer(update, "broadcast_in_dim", "reshape")
    if row is not None and update.aval.shape[moved[0]] == 1:
        arrays = [x, row.invars[0]]
        yield from _moving(graph, "dynamic_update_index_in_dim", arrays, start, axis, {})
    yield from _moving(graph, "dynamic_update_slice_in_dim", [x, update], start, axis, {})


def _broadcast_of(graph: Graph, atom: Atom) -> Atom | None:
    """The variable that was broadcast to an atom, if any."""
    eqn = graph.producer(atom, "broadcast_in_dim")
    return eqn.invars[0] if eqn is not None and is_var(eqn.invars[0]) else None


def _broadcasting(sign: str) -> Row:
    """`x + b`, where one side is broadcast first."""

    def row(eqn: Eqn, graph: Graph, writer: Writer) -> Iterator[Proposal]:
        inner = [_broadcast_of(graph, a) for a in eqn.invars]
        for choice in ((0, 1), (1,), (0,)):
            if any(inner[i] is None for i in choice):
                continue
            atoms = [(inner[i] if i in choice else None) or a for i, a in enumerate(eqn.invars)]
            if not all(map(is_var, atoms)):
                continue
            yield Proposal(
                syntax.infix(placeholder(0), sign, placeholder(1)), tuple(atoms), PLAIN, True
            )

    return row


def _size_of(graph: Graph, atom: Atom) -> ast.expr | None:
    """The expression of a value, if a size that does not wrap around."""
    eqn = _made_of_size(graph, atom)
    if eqn is None or may_wrap(eqn.params["dim"], atom.aval.dtype):
        return None
    return expression(eqn.params["dim"])


def _made_of_size(graph: Graph, atom: Atom) -> Eqn | None:
    """The `dim_as_value` that an atom converts, if any."""
    eqn = graph.producer(atom, "dim_as_value", "convert_element_type")
    if eqn is not None and eqn.primitive.name == "convert_element_type":
        eqn = graph.producer(eqn.invars[0], "dim_as_value")
    return eqn


def _with_size(sign: str) -> Row:
    """`x / batch`: an operation on an array and a size."""

    def row(eqn: Eqn, graph: Graph, writer: Writer) -> Iterator[Proposal]:
        for i, (atom, other) in enumerate(zip(eqn.invars, eqn.invars[::-1], strict=True)):
            if is_var(other) and (size := _size_of(graph, atom)) is not None:
                sides = (size, placeholder()) if i == 0 else (placeholder(), size)
                yield Proposal(syntax.infix(sides[0], sign, sides[1]), (other,), PLAIN, True)

    return row


def _triangle(eqn: Eqn, graph: Graph, writer: Writer) -> Iterator[Proposal]:
    """`jnp.tri(length, dtype=bool)`: whether a column's index is at most the row's."""
    shape = eqn.outvars[0].aval.shape
    makers = [graph.producer(a, "add", "iota") for a in eqn.invars]
    if len(shape) == 2 and None not in makers:
        sizes = shape[:1] if str(shape[0]) == str(shape[1]) else shape
        yield Proposal(
            call("jnp.tri", *map(literals.size, sizes), dtype=syntax.name("bool")), (), "mask"
        )


def _cholesky(eqn: Eqn, graph: Graph, writer: Writer) -> Iterator[Proposal]:
    """`lax.linalg.cholesky(x)`: the lower triangle of the factor of `(x + x.mT) / 2` or of `x`."""
    factor = next((e for a in eqn.invars if (e := graph.producer(a, "cholesky"))), None)
    if factor is None:
        return
    (x,) = factor.invars
    total = graph.producer(half.invars[0], "add") if (half := graph.producer(x, "div")) else None
    for atom in total.invars if total is not None else ():
        if is_var(atom):
            yield Proposal(call("lax.linalg.cholesky", placeholder()), (atom,), "factor")
    if is_var(x):
        plain = {"symmetrize_input": number(False)}
        yield Proposal(call("lax.linalg.cholesky", placeholder(), **plain), (x,), "factor")


def _identity(eqn: Eqn, graph: Graph, writer: Writer) -> Iterator[Proposal]:
    """`jnp.eye(n, dtype=bool)`: whether a row's index is the column's."""
    shape = eqn.outvars[0].aval.shape
    if len(shape) == 2 and all(graph.producer(a, "iota", "add") for a in eqn.invars):
        sizes = shape[:1] if str(shape[0]) == str(shape[1]) else shape
        eye = call("jnp.eye", *map(literals.size, sizes), dtype=syntax.name("bool"))
        yield Proposal(eye, (), "identity")


def _identity_matrix(eqn: Eqn, graph: Graph, writer: Writer) -> Iterator[Proposal]:
    """`jnp.eye(n, dtype=jnp.float32)`."""
    if (mask := graph.producer(eqn.invars[0], "eq")) is not None:
        for made in _identity(mask, graph, writer):
            assert isinstance(made.expression, ast.Call)
            dtype = literals.dtype(eqn.outvars[0].aval.dtype)
            yield Proposal(call("jnp.eye", *made.expression.args, dtype=dtype), (), made.hint)


def _size_value(eqn: Eqn, graph: Graph, writer: Writer) -> Iterator[Proposal]:
    """`jnp.asarray(batch, jnp.int32)`; a narrow type is converted from an array."""
    if (size := _size_of(graph, eqn.outvars[0])) is not None:
        yield Proposal(call("jnp.asarray", size, literals.dtype(eqn.outvars[0].aval.dtype)), ())
    elif (maker := _made_of_size(graph, eqn.outvars[0])) is not None:
        array = call("jnp.asarray", expression(maker.params["dim"]))
        narrow = literals.dtype(eqn.outvars[0].aval.dtype)
        yield Proposal(syntax.method(array, "astype", narrow), ())


SIZES: Mapping[str, tuple[Row, ...]] = {
    "convert_element_type": (_size_value,),
    "dim_as_value": (_size_value,),
}


def _where(eqn: Eqn, graph: Graph, writer: Writer) -> Iterator[Proposal]:
    """`jnp.where`, which broadcasts its operands."""
    if len(eqn.invars) != 3:
        return
    mask, other, x = eqn.invars
    choices = [[a for a in (_repeated(graph, v), v) if a is not None] for v in (mask, x, other)]
    index = _index_with_axes(graph, mask)
    if index is not None and is_var(choices[0][0]):  # not broadcast from a smaller array
        for atoms in itertools.product(choices[0][:1], *choices[1:]):
            variables = _variables(atoms)
            args = [_spelled(a, variables) for a in atoms[1:]]
            chosen = call("jnp.where", syntax.item(placeholder(0), index), *args)
            yield Proposal(chosen, variables, PLAIN, "blank")
    for last, *others in itertools.product(choices[2], *choices[:2]):  # rather a number at last
        atoms = (*others, last)
        if isinstance(atoms[0], Literal) or all(isinstance(a, Literal) for a in atoms[1:]):
            continue
        variables = _variables(atoms)
        args = [_spelled(a, variables) for a in atoms]
        yield Proposal(call("jnp.where", *args), variables, PLAIN, "blank")


def _index_with_axes(graph: Graph, atom: Atom) -> ast.expr | None:
    """The index that adds the axes which a broadcast adds."""
    eqn = graph.producer(atom, "broadcast_in_dim")
    if eqn is None or not eqn.invars[0].aval.shape:
        return None
    return axes_index(eqn.params["broadcast_dimensions"], len(eqn.params["shape"]))


def _dropout(eqn: Eqn, graph: Graph, writer: Writer) -> Iterator[Proposal]:
    """`dropout(x, rate, key)`."""
    mask = graph.producer(eqn.invars[0], *kinds.COMPARISONS)
    kept = graph.producer(eqn.invars[-1], "mul")
    if mask is None or kept is None or not isinstance(rate := mask.invars[1], Literal):
        return
    drawn = graph.producer(mask.invars[0], "jit")
    if drawn is None or not is_var(key := drawn.invars[0]):
        return
    for x in filter(is_var, kept.invars):
        share = float(rate.val)
        for number_ in dict.fromkeys((float(str(np.float32(share))), share)):
            value = helpers.calling(
                helpers.dropout, placeholder(0), number(number_), placeholder(1)
            )
            yield Proposal(value, (x, key), PLAIN, True)


def _leaky_relu(eqn: Eqn, graph: Graph, writer: Writer) -> Iterator[Proposal]:
    """`leaky_relu(x, 0.2)`, as TensorFlow computes it."""
    mask, product = graph.producer(eqn.invars[0], "gt"), graph.producer(eqn.invars[1], "mul")
    x = eqn.invars[-1]
    if mask is None or product is None or not is_var(x) or x not in product.invars:
        return
    for slope in product.invars:
        if isinstance(slope, Literal):
            value = helpers.calling(
                helpers.leaky_relu, placeholder(), literals.of_literal(slope, plain=True)
            )
            yield Proposal(value, (x,), library.noun("leaky_relu"), True)


def _clip(eqn: Eqn, graph: Graph, writer: Writer) -> Iterator[Proposal]:
    """`jnp.clip(x, 0, 6)`."""
    for value, high in zip(eqn.invars[::-1], eqn.invars, strict=True):
        if (made := graph.producer(value, "max")) is not None:
            for atoms in zip(made.invars[::-1], made.invars, (high, high), strict=True):
                variables = _variables(atoms)
                if is_var(atoms[0]):
                    clip = call("jnp.clip", *(_spelled(a, variables) for a in atoms))
                    yield Proposal(clip, variables, library.noun("clip"), True, [made, eqn])


def _variables(atoms: Iterable[Atom]) -> list[Var]:
    """The variables among some atoms, each once."""
    return list(dict.fromkeys(filter(is_var, atoms)))


def _repeated(graph: Graph, atom: Atom) -> Atom | None:
    """The value that was broadcast to an atom, if any."""
    eqn = graph.producer(atom, "broadcast_in_dim")
    return None if eqn is None else eqn.invars[0]


def _spelled(atom: Atom, variables: Sequence[Var]) -> ast.expr:
    """An operand of a proposal."""
    if isinstance(atom, Var):
        return placeholder(variables.index(atom))
    return literals.of_literal(atom, plain=True)


_FLAGS = ("indices_are_sorted", "unique_indices")


def _transposed_convolution(eqn: Eqn, graph: Graph, writer: Writer) -> Iterator[Proposal]:
    """`lax.conv_transpose(x, kernel, ..., transpose_kernel=True)`, as TensorFlow computes it."""
    x, kernel = eqn.invars
    if not is_var(x) or graph.producer(kernel, "transpose") is None:
        return
    while (made := graph.producer(kernel, "transpose", "rev")) is not None:
        kernel = made.invars[0]
    keywords = {"transpose_kernel": number(True)}
    for upscaled in indexing.transposed_convolution(
        eqn, (placeholder(0), placeholder(1)), **keywords
    ):
        yield Proposal(upscaled, (x, kernel))


def _indices(graph: Graph, column: Atom) -> Iterator[Sequence[Var]]:
    """The arrays `i, j` of an index `x[i, j]`, perhaps after wrapping."""
    joined = graph.producer(column, "concatenate")
    columns = [column] if joined is None else joined.invars
    own = [_repeated(graph, c) for c in columns]
    chosen = [None if i is None else graph.producer(i, "select_n") for i in own]
    wrapped = [
        i if c is None or len(c.invars) != 3 else c.invars[1]
        for i, c in zip(own, chosen, strict=True)
    ]
    for found in (wrapped, own) if wrapped != own else (own,):
        if len(known := [i for i in found if isinstance(i, Var)]) == len(found):
            yield known


def _with_axes(index: ast.expr, of: Var, column: Atom) -> ast.expr:
    """`i[None]`, for the only index of a lookup that has further axes of size one in front."""
    more = len(column.aval.shape) - 1 - len(of.aval.shape)
    if more <= 0 or column.aval.shape[-1] != 1 or set(column.aval.shape[:more]) != {1}:
        return index
    return syntax.item(index, syntax.one_or_tuple([number(None)] * more))


def _place_of(axes: Sequence[int], indices: Sequence[ast.expr]) -> ast.expr:
    """`i`, `(i, j)` or `(:, i)`, for indices of these axes."""
    parts: list[ast.expr] = [ast.Slice() for _ in range(max(axes) + 1)]
    for axis, index in zip(axes, indices, strict=True):
        parts[axis] = index
    return syntax.one_or_tuple(parts)


def _mapped(
    expression: ast.expr, variables: Sequence[Var], batch: int, shared: int = 0
) -> ast.expr:
    """`jax.vmap(lambda x, i: x[i])(x, i)`, with a `vmap` for each axis of a batch.

    **Arguments:**

    - `shared`: how many of the variables, the first ones, are the same for all of the batch.
    """
    if not batch:
        return expression
    names = {"i": iter("ijklm"), "x": iter("xyzuvw")}
    operands, own, values = [], [], dict[str, ast.expr]()
    for position, v in list(enumerate(variables))[shared:]:
        is_index = position > 0 and jnp.issubdtype(v.aval.dtype, jnp.integer)
        own.append(next(names["i" if is_index else "x"]))
        operands.append(placeholder(position))
        values[syntax.tokens_in(operands[-1])[0]] = syntax.name(own[-1])
    function: ast.expr = syntax.lambda_of(own, syntax.substitute(expression, values))
    for _ in range(batch):
        function = call("jax.vmap", function)
    return call(function, *operands)


def _batch(axes: Sequence[int], others: Sequence[int]) -> int | None:
    """How many axes a gather or scatter is mapped over, if these are the first ones."""
    count = len(axes)
    return count if tuple(axes) == tuple(others) == tuple(range(count)) else None


def _lookup(eqn: Eqn, graph: Graph, writer: Writer) -> Iterator[Proposal]:
    """`table[i]`, `table[i, j]` or `jnp.take(table, i)`, with or without negative indices."""
    table, column = eqn.invars
    numbers = eqn.params["dimension_numbers"]
    batch = _batch(numbers.operand_batching_dims, numbers.start_indices_batching_dims)
    starts = numbers.start_index_map
    if isinstance(table, Literal) or batch is None or numbers.collapsed_slice_dims != starts:
        return
    axes = tuple(axis - batch for axis in starts)
    mode = indexing.MODES.get(eqn.params["mode"])
    first = axes == (0,) or len(axes) > 1
    value = eqn.params["fill_value"]
    fills = [{}] if value is None else [{}, {"fill_value": literals.value(value)}]
    single = batch > 0 and len(column.aval.shape) == batch + 1
    if not batch and len(axes) == 1 and column.aval.shape == (1,):
        filled = graph.filling(column)
        if filled is not None:
            where = {"axis": one_axis(axes[0], len(table.aval.shape))}
            for given in fills if mode is None else [*fills, {"mode": number(mode)}]:
                index = number(int(filled.val))
                yield Proposal(call("jnp.take", placeholder(), index, **where, **given), (table,))
    for indices in _indices(graph, column):
        variables = list(dict.fromkeys((table, *indices)))
        if len(indices) != len(axes) or len(variables) > len(LETTERS):
            continue
        own = [_with_axes(placeholder(variables.index(i)), i, column) for i in indices]
        place, found, others = _place_of(axes, own), [], []
        if mode in (None, "promise_in_bounds") or single:
            found.append(syntax.item(placeholder(0), place))
        if mode is not None:
            at = syntax.item(syntax.field(placeholder(0), "at"), place)
            flags = {n: number(True) for n in _FLAGS if eqn.params[n]}
            options = [{"mode": number(mode), **given, **flags} for given in fills]
            plain = {"wrap_negative_indices": number(False)}
            found += [syntax.method(at, "get", **given) for given in options]
            others = [syntax.method(at, "get", **given, **plain) for given in options]
        if len(axes) == 1:
            axis = {"axis": one_axis(axes[0], len(table.aval.shape) - batch)}
            modes = fills if mode is None else [*fills, {"mode": number(mode)}]
            taken = [call("jnp.take", placeholder(0), own[0], **axis, **given) for given in modes]
            found = [*found, *taken] if first and value is None else [*taken, *found]
        for looked_up in (*found, *others):
            yield Proposal(_mapped(looked_up, variables, batch), variables, "rows")
        if not batch and mode == "clip":  # as of a `dynamic_slice` at several places
            element = syntax.item(placeholder(0), place)
            each = _mapped(element, variables, len(column.aval.shape) - 1, shared=1)
            yield Proposal(each, variables, "rows")


def _slice_of_each(eqn: Eqn, graph: Graph, writer: Writer) -> Iterator[Proposal]:
    """`jax.vmap(lambda x, i: lax.dynamic_slice_in_dim(x, i, 3))(x, i)`."""
    x, column = eqn.invars
    numbers = eqn.params["dimension_numbers"]
    batch = _batch(numbers.operand_batching_dims, numbers.start_indices_batching_dims)
    if batch is not None and is_var(x) and not numbers.collapsed_slice_dims:
        axes = [axis - batch for axis in numbers.start_index_map]
        sizes = [literals.size(eqn.params["slice_sizes"][axis + batch]) for axis in axes]
        own = (graph, "dynamic_slice_in_dim", [x], column, axes, sizes)
        yield from _moving_each(*own, len(column.aval.shape) - 1, shared=int(not batch))


def _moving_each(
    graph: Graph,
    name: str,
    arrays: Sequence[Atom],
    column: Atom,
    axes: Sequence[int],
    sizes: Sequence[ast.expr],
    batch: int,
    shared: int = 0,
) -> Iterator[Proposal]:
    """Mapped calls of a function of `lax` on arrays and a place of each."""
    if len(axes) != 1 or len(column.aval.shape) != batch + 1 or not batch:
        return
    for (place,) in _indices(graph, column):
        variables = _variables((*arrays, place))
        operands = [_spelled(a, variables) for a in (*arrays, place)]
        given = [*sizes, *([number(int(axes[0]))] if axes[0] or not sizes else [])]
        for keywords in ({}, {"allow_negative_indices": number(False)}):
            moved = call(f"lax.{name}", *operands, *given, **keywords)
            mapped = _mapped(moved, variables, batch, shared)
            yield Proposal(mapped, variables, PLAIN, len(arrays) > 1)


# Methods of `x.at[i]`, and functions of segments with a name for what they return.
_SCATTERS = {
    "scatter": ("set", "", ""),
    "scatter-add": ("add", "segment_sum", "sums"),
    "scatter-sub": ("subtract", "", ""),
    "scatter-mul": ("multiply", "segment_prod", "products"),
    "scatter-min": ("min", "segment_min", "smallest"),
    "scatter-max": ("max", "segment_max", "largest"),
}


def _scatter(eqn: Eqn, graph: Graph, writer: Writer) -> Iterator[Proposal]:
    """`x.at[i].add(y)`, `x.at[2:4].set(y)` or `jax.ops.segment_sum(y, i, num_segments=10)`."""
    x, column, y = eqn.invars[:3]
    numbers = eqn.params["dimension_numbers"]
    batch = _batch(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims)
    if batch is None:
        return
    starts = numbers.scatter_dims_to_operand_dims
    axes = tuple(axis - batch for axis in starts)
    flags = [n for n in _FLAGS if eqn.params[n]]
    options = [{}, dict.fromkeys(flags, number(True))] if flags else [{}]
    if (mode := indexing.MODES.get(eqn.params["mode"])) in ("clip", "promise_in_bounds"):
        options = [{**given, "mode": number(mode)} for given in options]
    if mode == "clip" and batch and is_var(x) and eqn.primitive.name == "scatter":
        name = "dynamic_update_slice_in_dim"
        yield from _moving_each(graph, name, [x, y], column, axes, [], batch)
    method, segments, noun = _SCATTERS[eqn.primitive.name]
    count = {"num_segments": literals.size(x.aval.shape[batch])}
    at_start = isinstance(_repeated(graph, x), Literal) and axes == (0,) and is_var(y)
    fixed = _fixed_place(eqn, graph)
    wanted = [*_indices(graph, column), *([()] if fixed is not None else [])]
    # Indices of TensorFlow do not count from the end.
    unwrapped = [{**given, "wrap_negative_indices": number(False)} for given in options]
    for settings, indices in itertools.product((options, unwrapped), wanted):
        if at_start and segments and indices and settings is options:
            for given in settings:
                sums = call(f"jax.ops.{segments}", placeholder(0), placeholder(1), **count, **given)
                variables = [y, indices[0]]
                yield Proposal(_mapped(sums, variables, batch), variables, noun)
        for value in filter(None, (_repeated(graph, y), y)):
            variables = list(dict.fromkeys(v for v in (x, *indices, value) if isinstance(v, Var)))
            operand = _spelled(value, variables)
            fits = (not indices or len(indices) == len(axes)) and len(variables) <= len(LETTERS)
            if not is_var(x) or not fits:
                continue
            places = [placeholder(variables.index(i)) for i in indices]
            place = _place_of(axes, places) if indices or fixed is None else fixed
            at = syntax.item(syntax.field(placeholder(variables.index(x)), "at"), place)
            for given in settings:
                changed = _mapped(syntax.method(at, method, operand, **given), variables, batch)
                yield Proposal(changed, variables, PLAIN, True)


def _fixed_place(eqn: Eqn, graph: Graph) -> ast.expr | None:
    """`-1`, `(0, 1)`, `2:4`, `(:, 2:4)` or `:`: the element or part that a scatter changes."""
    numbers = eqn.params["dimension_numbers"]
    x, column = eqn.invars[:2]
    axes = numbers.scatter_dims_to_operand_dims
    if column.aval.shape == (0,) and x.aval.shape == eqn.invars[2].aval.shape:
        return ast.Slice()
    joined = graph.producer(column, "concatenate")
    columns = [column] if joined is None else joined.invars
    makers = [graph.producer(a, "broadcast_in_dim", "reshape") for a in columns]
    if not axes or len(makers) != len(axes) or len(column.aval.shape) != 1:
        return None
    starts = [
        None if made is None else _fixed_index(graph, made.invars[0], x.aval.shape[axis])
        for made, axis in zip(makers, axes, strict=True)
    ]
    known = [start for start in starts if start is not None]
    if len(known) < len(starts):
        return None
    if set(axes) <= set(numbers.inserted_window_dims):
        return _place_of(axes, [number(start) for start in known])
    if len(axes) > 1:
        return None
    (first,) = known
    if numbers.inserted_window_dims or numbers.operand_batching_dims:
        return None
    count = eqn.invars[2].aval.shape[axes[0]]
    if is_open(count) or first < 0:
        return None
    bounds = (first or None, first + count)
    return _place_of(axes, [syntax.slice_of(*(None if n is None else number(n) for n in bounds))])


ROWS: Mapping[str, tuple[Row, ...]] = {
    **SIZES,
    "broadcast_in_dim": (_keepdims,),
    "concatenate": (paddings.padded,),
    "conv_general_dilated": (_transposed_convolution,),
    "convert_element_type": (_size_value, _identity_matrix),
    "div": (
        _fractions,
        _hard_gate,
        _division,
        _scale_of_scores,
        _average,
        _with_size("/"),
        _broadcasting("/"),
    ),
    "mul": (_gelu, _silu, _hard_gate, _scale_of_scores, _with_size("*"), _broadcasting("*")),
    "add": (_logsumexp, _with_size("+"), _broadcasting("+")),
    "sub": (_with_size("-"), _broadcasting("-")),
    "gather": (repeats.repeat_each, _lookup, _slice_of_each),
    "jit": (fourier.to_length,),
    "min": (_clip,),
    "select_n": (_dropout, _leaky_relu, _cholesky, _where),
    **{
        name: (_with_size(sign),)
        for name, sign in (
            ("lt", "<"),
            ("le", "<="),
            ("gt", ">"),
            ("ne", "!="),
        )
    },
    "ge": (_triangle, _with_size(">=")),
    "eq": (_identity, _with_size("==")),
    **dict.fromkeys(_SCATTERS, (_scatter,)),
    "squeeze": (attention.attention, _element, _item, repeats.repeat),
    "dynamic_slice": (_part,),
    "dynamic_update_slice": (_update,),
    "reshape": (attention.attention, repeats.repeat),
    "transpose": (attention.attention, _einsum),
}
