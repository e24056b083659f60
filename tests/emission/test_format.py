"""Long lines are broken as ruff breaks them."""

from __future__ import annotations

import pytest

from invert.emission.python.format import formatted

NAMES = ", ".join(f"value_{i}" for i in range(9))


@pytest.mark.parametrize(
    ("line", "want"),
    [
        (
            "rows = jax.vmap(lambda x, i: x.at[i].get(mode='clip', indices_are_sorted=True))(y, k)",
            """\
rows = jax.vmap(
    lambda x, i: x.at[i].get(mode="clip", indices_are_sorted=True)
)(y, k)
""",
        ),
        (f"{NAMES} = state", "(\n    " + NAMES.replace(", ", ",\n    ") + ",\n) = state\n"),
        ("a, (b, c) = f(" + NAMES[:60] + ")", f"a, (b, c) = f(\n    {NAMES[:60]}\n)\n"),
    ],
)
def test_lambdas_and_targets(line: str, want: str) -> None:
    assert formatted(line + "\n", 70) == want.replace("'", '"')
