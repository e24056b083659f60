"""Expressions for products of arrays: `x @ w`, `jnp.tensordot`, `jnp.einsum`."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from invert.emission.expressions import literals
from invert.emission.python.syntax import call, infix, number
from invert.emission.sizes.program import Program
from invert.ir.types import Eqn


def product(eqn: Eqn, args: Sequence[ast.expr], program: Program) -> Iterator[ast.expr]:
    left, right = args
    yield infix(left, "@", right)
    ((contract_l, contract_r), (batch_l, _)) = eqn.params["dimension_numbers"]
    ranks = [len(a.aval.shape) for a in eqn.invars]
    keywords = dot_options(eqn)
    if not all(ranks):
        yield call("jnp.dot", left, right, **keywords)
    count = len(contract_l)
    last = list(range(ranks[0] - count, ranks[0])), list(range(count))
    if not batch_l and count and (list(contract_l), list(contract_r)) == last:
        # Like `x @ w`, for a `w` with more axes.
        yield call("jnp.tensordot", left, right, axes=number(count), **keywords)
    if sum(ranks) <= 20:
        text = relettered("{},{}->{}".format(*subscripts(eqn)))
        yield call("jnp.einsum", number(text), left, right, **keywords)


def is_matrix_product(eqn: Eqn) -> bool:
    """Return whether a `dot_general` is `x @ y` of stacked matrices, or of these and one matrix."""
    ((contract_l, contract_r), (batch_l, batch_r)) = eqn.params["dimension_numbers"]
    ranks = [len(a.aval.shape) for a in eqn.invars]
    stack = list(range(ranks[0] - 2))
    last = (list(contract_l), list(contract_r))
    if ranks[0] > ranks[1] == 2:
        return not batch_l and last == ([ranks[0] - 1], [0])
    return (
        ranks[0] == ranks[1] > 2
        and list(batch_l) == list(batch_r) == stack
        and last == ([ranks[0] - 1], [ranks[0] - 2])
    )


def subscripts(eqn: Eqn) -> tuple[str, str, str]:
    """The operands and the result of a `dot_general` in the letters of `jnp.einsum`."""
    ((contract_l, contract_r), (batch_l, batch_r)) = eqn.params["dimension_numbers"]
    ranks = [len(a.aval.shape) for a in eqn.invars]
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    names: list[dict[int, str]] = [{}, {}]
    for a, b in (*zip(batch_l, batch_r, strict=True), *zip(contract_l, contract_r, strict=True)):
        names[0][a] = names[1][b] = next(letters)
    for side, rank in enumerate(ranks):
        for axis in range(rank):
            if axis not in names[side]:
                names[side][axis] = next(letters)
    sides = ["".join(names[s][i] for i in range(rank)) for s, rank in enumerate(ranks)]
    out = "".join(names[0][i] for i in batch_l)
    for side, skipped in ((0, (*batch_l, *contract_l)), (1, (*batch_r, *contract_r))):
        out += "".join(names[side][i] for i in range(ranks[side]) if i not in skipped)
    return sides[0], sides[1], out


# Letters for the axes of a first operand by their number, and those for further axes: features are
# `d`, as in the names of dimensions.
_FIRST = {2: "bd", 3: "bld"}
_FURTHER = "hkefgmnpqrstuvwxyzacijolbd"


def relettered(text: str, *, data: int = 0) -> str:
    """The same subscripts, in the letters of batch, length and features.

    Those of arrays of more axes are in order of appearance.

    **Arguments:**

    - `data`: the operand with a batch, the first or the second.
    """
    inputs, _, out = text.partition("->")
    first = inputs.split(",")[data]
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    own: dict[str, str] = {}
    leads = [c for c in out if c in first][:1] == [*first[:1]] and (data or first[:1] == out[:1])
    sums = len(set(first)) == len(first) and leads and first[-1:] not in out
    if sums and len(first) in _FIRST:
        own = dict(zip(first, _FIRST[len(first)], strict=True))
        letters = (c for c in _FURTHER if c not in own.values())
    for c in dict.fromkeys(c for c in text if c.isalpha() and c not in own):
        own[c] = next(letters)
    # `jnp.einsum` sums over axes in the order of their letters, and so do all texts for it.
    summed = sorted(c for c in own if c not in out)
    own |= zip(summed, sorted(own[c] for c in summed), strict=True)
    return "".join(own.get(c, c) for c in text)


def lettered(text: str, names: Sequence[str | None]) -> str:
    """The subscripts of an attention with letters for its dimensions; others are unchanged.

    The dimensions are batch, heads, query, key and depth: `bqhd,bkhd->bhqk`.

    **Arguments:**

    - `names`: the names of the two operands.
    """
    inputs, _, out = text.partition("->")
    sides = inputs.split(",")
    if set(names) == {"query", "key"}:
        roles = {"query": "q", "key": "k"}
        contracted = "d"
    elif set(names) == {"weights", "value"}:
        roles = {"weights": "q", "value": "d"}
        contracted = "k"
    else:
        return text
    letters: dict[str, str] = {}
    for name, side, other in zip(names, sides, sides[::-1], strict=True):
        for c in side:
            if c in other and c in out:
                letters[c] = "b" if out.startswith(c) else "h"
            else:
                letters[c] = contracted if c in other else roles[name or ""]
    if len(set(letters.values())) != len(letters):
        return text
    return "".join(letters.get(c, c) for c in text)


def dot_options(eqn: Eqn) -> dict[str, ast.expr]:
    options = {}
    precision = eqn.params["precision"]
    if precision is not None:
        if isinstance(precision, tuple) and precision[0] == precision[1]:
            precision = precision[0]
        options["precision"] = literals.value(precision)
    preferred = eqn.params["preferred_element_type"]
    if preferred is not None and preferred != eqn.invars[0].aval.dtype:
        options["preferred_element_type"] = literals.dtype(preferred)
    return options
