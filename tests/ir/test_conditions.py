"""Conditions on sizes, in JAX's syntax."""

from __future__ import annotations

import itertools
import random
from typing import Any

import jax.export
import pytest

from invert.ir.sizes import Constraint, decided, evaluate, solve, without_remainders
from invert.modules.dimensions import scope_of, symbolic_shapes

B: Any
C: Any
B, C = jax.export.symbolic_shape("b, c")


@pytest.mark.parametrize(
    ("left", "right", "text"),
    [
        (B, 2 * C, "b == 2*c"),
        (B, C - 2 * B, "3*b == c"),
        (2 * (C // 2), C, "2*floordiv(c, 2) == c"),
        (2 * B, C - B, ""),
    ],
)
def test_a_placeholder_does_not_keep_its_size_alive(left: Any, right: Any, text: str) -> None:
    assert Constraint("eq", left, right).text() == text


def test_sizes_with_a_condition_on_themselves_can_be_divided() -> None:
    """JAX would substitute `c - 2*b` for `b` forever."""
    conditions = [Constraint("eq", B, C - 2 * B), Constraint("eq", C % 2, 0)]
    assert "3*b == c" in str(scope_of(conditions))
    ((size,),) = symbolic_shapes([["3*c - 8*b - 1"]], conditions) or [(0,)]
    assert str(size // 1) == str(size)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_equal_sizes_have_one_bound_in_any_order(order: tuple[int, ...]) -> None:
    """In some orders, JAX's comparisons would recurse without end."""
    (d,) = jax.export.symbolic_shape("d")
    conditions = [Constraint("le", B, 16), Constraint("eq", B, C), Constraint("eq", C, d)]
    found = symbolic_shapes([["b", "c", "d"]], [conditions[i] for i in order])
    assert found is not None
    ((b, c, d),) = found
    assert b == c == d
    assert decided("le", d, 16)


def _random_size(rng: random.Random, depth: int) -> Any:
    if not depth:
        return B
    inner = _random_size(rng, depth - 1)
    steps = [
        lambda x: x + rng.randint(-9, 9),
        lambda x: rng.randint(1, 3) * x,
        lambda x: x // rng.randint(1, 5),
        lambda x: jax.core.max_dim(x, rng.randint(1, 9)),
        lambda x: jax.core.min_dim(x, rng.randint(1, 40)),
        lambda x: -x,
        lambda x: x % rng.randint(2, 5),
    ]
    return rng.choice(steps)(inner)


@pytest.mark.parametrize("seed", range(60))
def test_a_tidy_condition_holds_at_the_same_sizes(seed: int) -> None:
    rng = random.Random(seed)
    size = _random_size(rng, rng.randint(1, 6))
    if isinstance(size, int):
        pytest.skip("a number")
    condition = Constraint("ge", size, rng.randint(-4, 12))
    tidy = condition.tidy()
    for n in range(1, 200):
        assert condition.holds({"b": n}) == tidy.holds({"b": n}), (condition, tidy, n)


@pytest.mark.parametrize(
    ("left", "right", "words"),
    [
        (jax.core.max_dim(B // 2 - 2, 0) + 1, B // 2 - 1, "floordiv(b, 2) - 2 >= 0"),
        (2 * jax.core.max_dim(B, 3), 2 * B, None),
        (jax.core.max_dim(B, 3), B + 1, None),
        (jax.core.max_dim(B, C), B, "b >= c"),
    ],
)
def test_a_maximum_that_equals_its_operand_is_a_bound(left: Any, right: Any, words: str) -> None:
    condition = Constraint("eq", left, right)
    bound = condition.as_bound()
    assert bound.words() == (words or condition.words())
    for b, c in itertools.product(range(1, 8), repeat=2):
        assert condition.holds({"b": b, "c": c}) == bound.holds({"b": b, "c": c})


@pytest.mark.parametrize(
    ("size", "limit", "words"),
    [
        (((B - 2) // 2 - 1) // 2 + 1, 1, "b >= 4"),
        (3 * (B // 7) + 2, 3, "b >= 7"),
        ((B // 2) + (B // 3), 3, "b >= 4"),
        (-(B // 2) + 9, 3, None),
        (B // -2, -3, None),
        (B % 5, 3, None),
        ((B * C) // 2, 3, None),
        (jax.core.min_dim(B, 2), 3, None),
    ],
)
def test_a_least_size_in_words(size: Any, limit: int, words: str | None) -> None:
    """Only where the size grows with one dimension and reaches the limit."""
    condition = Constraint("ge", size, limit)
    assert condition.tidy().words() == (words or condition.words())


@pytest.mark.parametrize(
    ("left", "right", "always"),
    [
        (2 * (B // 2) + B % 2, B, True),
        ((B + 1) // 2 + B // 2, B, True),
        (((B - 3) // 2 + 1) // 2, (B - 1) // 4, True),
        (2 * (B // 2), B, False),
        (B // 300, 0, False),
        (B, 1, False),
        (B * B, B, False),
    ],
)
def test_an_equality_proved_for_all_sizes(left: Any, right: Any, always: bool) -> None:
    condition = Constraint("eq", left, right)
    assert condition.always_holds() == always
    assert all(condition.holds({"b": n}) for n in range(1, 400)) == always


@pytest.mark.parametrize(
    ("shape", "given", "values"),
    [
        ((2 * B - 1, B), (5, 3), {"b": 3}),
        ((2 * B - 1,), (5,), {"b": 3}),
        ((2 * B - 1,), (4,), None),
        ((B, 2 * B), (3, 5), None),
        ((B * B, B + 1), (9, 4), {"b": 3}),
        ((B + C, B - 1), (5, 2), {"b": 3, "c": 2}),
        ((B + C,), (5,), None),
        ((B - 1,), (0,), {"b": 1}),
        ((B - 1,), (-1,), None),
        ((B, 4), (0, 4), None),
        ((B, 4), (2, 5), None),
        ((B, 2 * B), (C, 2 * C), {"b": C}),
        ((2 * B,), (2 * C,), None),
    ],
)
def test_dimensions_of_given_sizes(shape: Any, given: Any, values: Any) -> None:
    assert solve([shape], [given]) == values


@pytest.mark.parametrize(
    ("relation", "text"),
    [
        ("eq", "b == 5"),
        ("ne", ""),
        ("lt", "b <= 4"),
        ("le", "b <= 5"),
        ("gt", "b >= 6"),
        ("ge", "b >= 5"),
    ],
)
def test_relations_in_the_syntax_of_jax(relation: str, text: str) -> None:
    condition = Constraint(relation, B, 5)
    assert condition.text() == text
    for n in range(3, 8) if text else ():
        left, sign, right = text.split()
        holds = {"==": n == int(right), "<=": n <= int(right), ">=": n >= int(right)}[sign]
        assert condition.holds({left: n}) == holds


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (-B % 2, "mod(b, 2) == 0"),
        ((B - 2) % 2, "mod(b, 2) == 0"),
        ((4 - 2 * B) % 4, "mod(2*b, 4) == 0"),
        ((B + 1) % 3, "mod(b + 1, 3) == 0"),
        ((2 - B) % 3, "mod(- b + 2, 3) == 0"),
    ],
)
def test_a_remainder_in_words(size: Any, words: str) -> None:
    """Signs and multiples are left out only if that does not change the condition."""
    assert Constraint("eq", size, 0).words() == words


@pytest.mark.parametrize(
    ("size", "text"),
    [
        ((4 - B % 4) % 4, "mod(- b, 4)"),
        (B + (4 - B % 4) % 4, "- 4*floordiv(- b, 4)"),
        ((B + (-B) % 6) // 3, "- 2*floordiv(- b, 6)"),
        ((B % 4 + C % 4) % 4, "mod(c + b, 4)"),
        (B % 2, "mod(b, 2)"),
        ((B * C) % 8 + B, "mod(b*c, 8) + b"),
    ],
)
def test_remainders_that_cancel_are_divisions(size: Any, text: str) -> None:
    plain = without_remainders(size)
    assert str(plain) == text
    for b, c in itertools.product(range(1, 14), repeat=2):
        assert evaluate(plain, {"b": b, "c": c}) == evaluate(size, {"b": b, "c": c})


def test_sizes_without_remainders_are_the_same_sizes() -> None:
    drawn = random.Random(0)

    def made(depth: int) -> Any:
        if not depth:
            return drawn.choice([B, C, B, C, 1, 2, -3])
        one, other, number = made(depth - 1), made(depth - 1), drawn.choice([2, 3, 4, -3])
        kind = drawn.randrange(5)
        return (one + other, one - other, one * number, one // number, one % number)[kind]

    changed = 0
    for _ in range(200):
        size = made(drawn.randrange(2, 4))
        plain = without_remainders(size)
        changed += str(plain) != str(size)
        for _ in range(5):
            at = {"b": drawn.randrange(1, 60), "c": drawn.randrange(1, 60)}
            assert evaluate(plain, at) == evaluate(size, at)
    assert changed
