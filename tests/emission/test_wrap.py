"""Breaking long lines without a formatter."""

from __future__ import annotations

import ast

import pytest

from invert.emission._wrap import wrapped

LONG = [
    "x = f(" + ", ".join(f"argument_{i}=value_{i}" for i in range(20)) + ")",
    "x = f(g(" + ", ".join(f"argument_{i}" for i in range(30)) + "), h(1), [2, 3]) * k(4)",
    "x = (" + " + ".join(f"argument_{i}" for i in range(30)) + ")[0]",
    'x = f(\'a, (b\', "c)\\"", ' + ", ".join(f"'{i},'" for i in range(40)) + ")",
    "def f(" + ", ".join(f"argument_{i}: T['a b', {i}]" for i in range(20)) + ") -> None: pass",
    "x = ((" + ", ".join(str(i) for i in range(60)) + "), {1: (2,), 3: [" + "4, " * 40 + "]})",
    "x = 1",
]


@pytest.mark.parametrize("line", LONG)
def test_the_program_stays(line: str) -> None:
    found = wrapped(line, 80)
    assert ast.dump(ast.parse(found)) == ast.dump(ast.parse(line))
    if " + " not in line:
        assert max(map(len, found.splitlines())) <= 80


def test_indented_lines() -> None:
    line = "if a:\n    " + LONG[0]
    found = wrapped(line, 60)
    assert ast.dump(ast.parse(found)) == ast.dump(ast.parse(line))
    assert found.splitlines()[1] == "    x = f("
    assert found.splitlines()[-1] == "    )"


def test_what_has_no_brackets_stays() -> None:
    line = "x = " + " + ".join(f"argument_{i}" for i in range(30))
    assert wrapped(line, 80) == line + "\n"
