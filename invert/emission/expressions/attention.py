"""Attention as one call: `jax.nn.dot_product_attention`."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Set

from invert.emission.expressions import literals
from invert.emission.expressions.proposals import Proposal, axes_index, placeholder
from invert.emission.expressions.writer import Writer
from invert.emission.python import syntax
from invert.emission.python.syntax import call, number
from invert.ir import kinds
from invert.ir.graph import Graph, computed_from, is_var
from invert.ir.types import Atom, Eqn, Literal, Var


def attention(eqn: Eqn, graph: Graph, writer: Writer) -> Iterator[Proposal]:
    """`jax.nn.dot_product_attention`, whose last equation is one on axes."""
    product = product_behind(graph, eqn.invars[0], kinds.LAYOUT)
    if product is None:
        return
    for weights, values in (product.invars, product.invars[::-1]):
        scores = product_behind(graph, weights, _OF_WEIGHTS)
        if scores is None or len(scores.outvars[0].aval.shape) != 5:
            continue  # query heads are grouped by the key that they share
        value = _with_four_axes(graph, values)
        sides = [_with_four_axes(graph, a) for a in scores.invars]
        options = list(_attention_options(graph, weights, scores))
        for query, key in (sides, sides[::-1]):
            operands = [a for a in (query, key, value) if a is not None]
            if len(operands) == 3:
                for extra, keywords in options:
                    every = [*operands, *(v for v, _ in extra.values())]
                    variables = list(dict.fromkeys(every))
                    places = [placeholder(variables.index(a)) for a in every]
                    indexed = {
                        name: place if index is None else syntax.item(place, index)
                        for (name, (_, index)), place in zip(extra.items(), places[3:], strict=True)
                    }
                    function = "jax.nn.dot_product_attention"
                    attention = call(function, *places[:3], **indexed, **keywords)
                    yield Proposal(attention, variables, "attention")


# An array, and the index that gives it four axes.
_Indexed = tuple[Var, "ast.expr | None"]


def _attention_options(
    graph: Graph, weights: Atom, scores: Eqn
) -> Iterator[tuple[dict[str, _Indexed], dict[str, ast.expr]]]:
    """Further operands of an attention, and its other keywords."""
    arrays: dict[str, _Indexed] = {}
    scale: ast.expr | None = None
    between = _between(graph, weights, scores)
    for eqn in between:
        for atom in eqn.invars:
            if (maker := graph.producer(atom)) in between or maker is scores:
                continue
            found, name = None, ""
            if eqn.primitive.name == "select_n" and atom is eqn.invars[0]:
                found, name = _with_heads(graph, _unmasked(graph, atom)), "mask"
            elif eqn.primitive.name == "add":
                found, name = _with_heads(graph, atom), "bias"
            elif eqn.primitive.name == "mul" and isinstance(atom, Literal):
                scale = scale or literals.of_literal(atom, plain=True)
            if found is not None:
                arrays.setdefault(name, found)
    arrays = {name: arrays[name] for name in ("bias", "mask") if name in arrays}
    masked = "mask" in arrays
    for scaled in ({}, {"scale": scale}) if scale is not None else ({},):
        for causal in ({}, {"is_causal": number(True)}):
            yield arrays, {**scaled, **causal}
    if masked:  # by the function itself
        yield {n: a for n, a in arrays.items() if n != "mask"}, {"is_causal": number(True)}


def _with_heads(graph: Graph, atom: Atom) -> _Indexed | None:
    """The array with the axes batch, heads, queries and keys that a value reshapes."""
    if (whole := _with_four_axes(graph, atom)) is not None:
        return whole, None
    for _ in range(4):
        eqn = graph.producer(atom, *kinds.LAYOUT)
        if eqn is None:
            return None
        atom = eqn.invars[0]
        dims = eqn.params.get("broadcast_dimensions")
        if dims and is_var(atom) and len(eqn.params["shape"]) == 5 and set(dims) <= {0, 3, 4}:
            kept = {0: 0, 3: 2, 4: 3}
            return atom, axes_index([kept[i] for i in dims], 4)
    return None


def _between(graph: Graph, weights: Atom, scores: Eqn) -> list[Eqn]:
    """The equations by which weights are computed from scores."""
    before: dict[int, Eqn] = {}
    pending, steps = [weights], 0
    while pending and steps < 48:
        steps += 1
        eqn = graph.producer(pending.pop())
        if eqn is not None and eqn is not scores and id(eqn) not in before:
            before[id(eqn)] = eqn
            pending += eqn.invars
    return computed_from(scores.outvars, sorted(before.values(), key=lambda e: graph.index[e]))


def _unmasked(graph: Graph, atom: Atom) -> Atom:
    """A mask without the other masks that are combined with it."""
    eqn = graph.producer(atom, "and")
    return atom if eqn is None else next(filter(is_var, reversed(eqn.invars)), atom)


# What is between the scores and the weights of attention.
_OF_WEIGHTS = kinds.LAYOUT | set("add div exp sub select_n mul convert_element_type jit".split())


def product_behind(graph: Graph, atom: Atom, names: Set[str]) -> Eqn | None:
    """The `dot_general` that a value derives from, through some primitives."""
    pending, steps = [atom], 0
    while pending and steps < 32:
        steps += 1
        eqn = graph.producer(pending.pop())
        if eqn is not None and eqn.primitive.name == "dot_general":
            return eqn
        if eqn is not None and eqn.primitive.name in names:
            pending += eqn.invars
    return None


def _with_four_axes(graph: Graph, atom: Atom) -> Var | None:
    """The array with four axes that a value reshapes."""
    for _ in range(4):
        if is_var(atom) and len(atom.aval.shape) == 4:
            return atom
        eqn = graph.producer(atom, *kinds.LAYOUT)
        if eqn is None:
            return None
        atom = eqn.invars[0]
    return None
