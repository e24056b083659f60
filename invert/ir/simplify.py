"""Simplifies the output of TensorFlow op rules.

A matrix product of flattened rows becomes a product over the last axes, a transposed one that of
the other two matrices, and a convolution of images of height one, as TensorFlow convolves
sequences, one of sequences. An element of a vector of scalars, as TensorFlow packs indices, is the
scalar. Duplicate carries and conditions of loops are merged.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Hashable, Iterator, Mapping, Sequence

import numpy as np
from jax import lax

from invert._private.jax import close_like, dce, open_jaxpr, rename, renamed
from invert.ir.avals import is_weak
from invert.ir.carries import equal_carries, sharing
from invert.ir.counted import with_counted_places
from invert.ir.graph import Graph, is_var
from invert.ir.jaxprs import (
    canonicalize,
    is_wide,
    is_wide_dtype,
    map_equations,
    map_jaxprs,
    reshape_in_place_of,
)
from invert.ir.loops import WhileParts
from invert.ir.merging import atom_key
from invert.ir.passes import replaced
from invert.ir.traced_form import merged
from invert.ir.types import Atom, Eqn, J, Jaxpr, Literal, ShapedArray, Var
from invert.ir.unit_axes import only_unit_axes, with_flat_convolutions


def simplify(closed: J) -> J:
    """Remove reshapes around products and convolutions, and duplicate carries and conditions."""

    def one(jaxpr: Jaxpr) -> Jaxpr:
        jaxpr = with_flat_convolutions(_with_single_carries(_with_scalars(jaxpr)))
        return _with_products(_without_transposed_products(jaxpr))

    simple = map_equations(
        canonicalize(map_jaxprs(closed, one)), lambda e: _with_narrow_numbers(_with_single_tests(e))
    )
    counted = with_counted_places(simple)
    return counted if counted is simple else canonicalize(counted)


def _with_scalars(jaxpr: Jaxpr) -> Jaxpr:
    """Replace elements of vectors that are made of scalars by the scalars."""
    graph: Graph | None = None
    names: dict[Var, Atom] = {}
    for eqn in jaxpr.eqns:
        if eqn.primitive in (lax.squeeze_p, lax.reshape_p) and len(eqn.invars) == 1:
            (out,) = eqn.outvars
            if out.aval.shape or not is_var(eqn.invars[0]):
                continue
            graph = graph or Graph(jaxpr)
            if (scalar := _element(eqn.invars[0], 0, graph)) is not None:
                (names[out],) = renamed([scalar], names)
    return dce(rename(jaxpr, names)) if names else jaxpr


def _element(vector: Atom, place: int, graph: Graph) -> Atom | None:
    """The scalar at a place of a vector, if the program has it."""
    eqn = graph.producer(vector)
    if eqn is None or len(vector.aval.shape) != 1:
        return None
    if eqn.primitive in (lax.broadcast_in_dim_p, lax.reshape_p):
        (x, *_) = eqn.invars
        return x if not x.aval.shape else None
    if eqn.primitive is lax.slice_p:
        (start,), (step,) = eqn.params["start_indices"], eqn.params["strides"] or (1,)
        return _element(eqn.invars[0], start + place * step, graph)
    if eqn.primitive is lax.concatenate_p:
        for part in eqn.invars:
            (count,) = part.aval.shape
            if place < count:
                return _element(part, place, graph)
            place -= count
    return None


def _with_products(jaxpr: Jaxpr) -> Jaxpr:
    """Replace products of reshaped operands by products of the operands themselves.

    The elements are the same sums in the same order, since a reshape keeps the order.
    """
    if not any(e.primitive is lax.dot_general_p for e in jaxpr.eqns):
        return jaxpr
    graph = Graph(jaxpr)
    products: dict[Eqn, list[Eqn]] = {}
    for eqn in graph.by_primitive.get("dot_general", ()):
        found = _product(eqn, graph)
        if found is not None:
            last, product = found
            products[last] = [product]
    return replaced(jaxpr, products.get)


def _without_transposed_products(jaxpr: Jaxpr) -> Jaxpr:
    """Replace the transpose of `a @ b` by `swapaxes(b) @ swapaxes(a)`, if that transposes less.

    Each element is the same sum, of products whose factors are exchanged. Keras decomposes the
    `einsum` of an attention into such products.
    """
    graph = Graph(jaxpr)
    products: dict[Eqn, list[Eqn]] = {}
    for eqn in graph.by_primitive.get("transpose", ()):
        product = graph.alone(eqn.invars[0], "dot_general")
        rank = len(eqn.outvars[0].aval.shape)
        rows = tuple(range(rank - 2))
        if product is None or tuple(eqn.params["permutation"]) != (*rows, rank - 1, rank - 2):
            continue
        (contract, batch) = product.params["dimension_numbers"]
        plain = tuple(map(tuple, batch)) == (rows, rows)
        if not plain or [*map(len, contract)] != [1, 1] or not rows:
            continue
        left, right = (graph.alone(a, "transpose") for a in product.invars)
        if left is None or right is None or left is right:
            continue
        (first,), (second,) = contract
        made = [
            _transposed(right, [*rows, 2 * rank - 3 - second, second]),
            _transposed(left, [*rows, first, 2 * rank - 3 - first]),
        ]
        numbers = (((rank - 1,), (rank - 2,)), (rows, rows))
        products[eqn] = [
            *made,
            product.replace(
                invars=[e.outvars[0] for e in made],
                outvars=eqn.outvars,
                params={**product.params, "dimension_numbers": numbers},
            ),
        ]
    return dce(replaced(jaxpr, products.get)) if products else jaxpr


def _transposed(eqn: Eqn, axes: Sequence[int]) -> Eqn:
    """A transpose whose result has other axes of an earlier one's, in this order."""
    shape, permutation = eqn.outvars[0].aval.shape, eqn.params["permutation"]
    out = Var(ShapedArray(tuple(shape[i] for i in axes), eqn.outvars[0].aval.dtype))
    return eqn.replace(outvars=[out], params={"permutation": tuple(permutation[i] for i in axes)})


def _product(eqn: Eqn, graph: Graph) -> tuple[Eqn, Eqn] | None:
    """A product, and the last equation that it replaces."""
    left, right = eqn.invars
    contract = [len(left.aval.shape) - 1], [0]
    (lhs, rhs), (batch, _) = eqn.params["dimension_numbers"]
    if (list(lhs), list(rhs)) != contract or batch:
        return None
    size = left.aval.shape[-1]
    for x, w in itertools.product(_forms(left, graph), _forms(right, graph)):
        if x is left and w is right:
            continue
        for rows, columns in itertools.product(
            _tails(x.aval.shape, size), _tails(w.aval.shape[::-1], size)
        ):
            columns = len(w.aval.shape) - columns
            if x.aval.shape[rows:] != w.aval.shape[:columns] or not columns:
                continue
            shape = (*x.aval.shape[:rows], *w.aval.shape[columns:])
            if (last := _last(eqn, shape, graph)) is None:
                continue
            axes = tuple(range(rows, len(x.aval.shape))), tuple(range(columns))
            params = {**eqn.params, "dimension_numbers": (axes, ((), ()))}
            return last, eqn.replace(invars=[x, w], outvars=last.outvars, params=params)
    return None


def _forms(atom: Atom, graph: Graph) -> list[Atom]:
    """The value that was reshaped into an operand, if any, and the operand."""
    eqn = graph.producer(atom)
    if eqn is None or eqn.primitive is not lax.reshape_p or eqn.params["dimensions"] is not None:
        return [atom]
    return [*(a for a in eqn.invars[:1] if is_var(a)), atom]


def _tails(shape: Sequence[int], size: int) -> list[int]:
    """The first of trailing axes whose sizes multiply to `size`; there may be unit axes before."""
    return [start for start in reversed(range(len(shape))) if math.prod(shape[start:]) == size]


def _last(eqn: Eqn, shape: Sequence[int], graph: Graph) -> Eqn | None:
    """The equation whose result has this shape: the product, or a reshape of it."""
    (out,) = eqn.outvars
    if tuple(out.aval.shape) == tuple(shape):
        return eqn
    users = graph.users.get(out, ())
    if len(users) != 1 or out in graph.results or users[0].primitive is not lax.reshape_p:
        return None
    (user,) = users
    sizes = tuple(user.params["new_sizes"])
    return user if sizes == tuple(shape) and user.params["dimensions"] is None else None


def _with_single_carries(jaxpr: Jaxpr) -> Jaxpr:
    """Merge duplicate loop carries, also those that differ only in axes of size one."""
    if not any(e.primitive is lax.while_p for e in jaxpr.eqns):
        return jaxpr
    graph = Graph(jaxpr)
    eqns: list[Eqn] = []
    names: dict[Var, Atom] = {}
    for eqn in jaxpr.eqns:
        if eqn.primitive is not lax.while_p:
            eqns.append(eqn)
            continue
        # With its own operands, as the graph knows them.
        eqn, after, same = _merged(eqn, graph)
        eqns += [eqn, *after]
        names |= same
    return rename(jaxpr.replace(eqns=eqns), names)


def _with_single_tests(eqn: Eqn) -> Eqn:
    """Merge duplicate conditions of a loop."""
    if eqn.primitive is not lax.while_p:
        return eqn
    parts = WhileParts.of(eqn)
    cond = merged(parts.cond)
    names: dict[Var, Atom] = {}
    for test in open_jaxpr(cond).eqns:
        if test.primitive.name == "and":
            a, b = renamed(test.invars, names)
            if a is b:
                names[test.outvars[0]] = a
    if not names:
        return eqn
    cond = close_like(cond, dce(rename(open_jaxpr(cond), names)))
    return dataclasses.replace(parts, cond=cond).put_into(eqn)


def _with_narrow_numbers(eqn: Eqn) -> Eqn:
    """Give a function its numbers in the types to which it converts them.

    A Python number passed to a function of `jax.numpy` has 64 bits where a session allows that,
    and the program would have a type that neither TensorFlow nor the function computes with.
    """
    if eqn.primitive.name != "jit":
        return eqn
    inner = eqn.params["jaxpr"]
    jaxpr = open_jaxpr(inner)
    names: dict[Var, Atom] = {}
    invars = list(eqn.invars)
    for i, (atom, v) in enumerate(zip(eqn.invars, jaxpr.invars, strict=True)):
        if not isinstance(atom, Literal) or not is_wide(atom) or v in jaxpr.outvars:
            continue
        users = [e for e in jaxpr.eqns if any(a is v for a in e.invars)]
        converts = all(e.primitive is lax.convert_element_type_p for e in users)
        types = {e.params["new_dtype"] for e in users} if converts else ()
        for dtype in types if len(types) == 1 else ():
            if dtype.kind == atom.aval.dtype.kind and not is_wide_dtype(dtype):
                aval = ShapedArray((), dtype, weak_type=is_weak(atom))
                with np.errstate(all="ignore"):
                    number = np.asarray(atom.val).astype(dtype)[()]
                names[v], invars[i] = Var(aval), Literal(number, aval)
    if not names:
        return eqn
    narrow = rename(jaxpr, names).replace(invars=[names.get(v, v) for v in jaxpr.invars])
    return eqn.replace(invars=invars, params={**eqn.params, "jaxpr": close_like(inner, narrow)})


def _merged(eqn: Eqn, graph: Graph) -> tuple[Eqn, list[Eqn], dict[Var, Atom]]:
    """A `while` with fewer carries, the equations after it, and renamed results."""
    parts = WhileParts.of(eqn)
    starts = [_start(a, graph) for a in parts.init]
    same, body = equal_carries(parts, starts)
    parts = sharing(parts, same)
    names: dict[Var, Atom] = {eqn.outvars[i]: eqn.outvars[k] for i, k in same.items()}
    outvars, after = list(eqn.outvars), []
    for i, k in _wider(parts, starts, body, same):
        old, outvars[i] = outvars[i], Var(outvars[i].aval)
        after.append(reshape_in_place_of(eqn, outvars[k], old))
    return parts.put_into(eqn).replace(outvars=outvars), after, names


def _wider(
    parts: WhileParts, starts: Sequence[Hashable], body: Jaxpr, same: Mapping[int, int]
) -> Iterator[tuple[int, int]]:
    """Pairs of an unread carry and one equal to it up to unit axes."""
    graph = Graph(body)
    for i, v in enumerate(parts.carried):
        if i in same or _used(parts, i):
            continue
        for k, w in enumerate(parts.carried):
            alike = v.aval.dtype == w.aval.dtype and _bare(v) == _bare(w) and starts[i] == starts[k]
            if not alike or len(v.aval.shape) <= len(w.aval.shape) or k in same:
                continue
            out = body.outvars[i]
            while out.aval.shape and (made := graph.producer(out)) and only_unit_axes(made):
                (out,) = made.invars
            if atom_key(out) == atom_key(body.outvars[k]):
                yield i, k
                break


def _bare(v: Atom) -> tuple[int, ...]:
    return tuple(n for n in v.aval.shape if n != 1)


def _used(parts: WhileParts, i: int) -> bool:
    """Return whether a step or the condition reads a carried value."""
    for program, v in ((parts.body, parts.carried[i]), (parts.cond, parts.tested[i])):
        jaxpr = open_jaxpr(program)
        if any(a is v for e in jaxpr.eqns for a in e.invars):
            return True
    return False


def _start(atom: Atom, graph: Graph) -> Hashable:
    """The number that fills an initial value, or the value itself."""
    filled = _filled(atom, graph)
    return atom_key(atom) if filled is None else filled


def _filled(atom: Atom, graph: Graph) -> bytes | None:
    """The bits of the number that fills an array; `None` if unknown."""
    number = graph.filling(atom)
    return None if number is None else np.asarray(number.val, number.aval.dtype).tobytes()
