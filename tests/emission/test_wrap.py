"""The layout of emitted text: line breaks, blank lines, quotes and spaces."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from invert.emission.python.format import fitted, formatted
from invert.emission.reader import Reader

LONG = [
    "x = f(" + ", ".join(f"argument_{i}=value_{i}" for i in range(20)) + ")",
    "x = f(g(" + ", ".join(f"argument_{i}" for i in range(30)) + "), h(1), [2, 3]) * k(4)",
    "x = (" + " + ".join(f"argument_{i}" for i in range(30)) + ")[0]",
    "x = " + " + ".join(f"argument_{i}" for i in range(30)),
    "return " + " - ".join(f"argument_{i} * f(value_{i}, 2)" for i in range(10)),
    "return x, " + ", ".join(f"argument_{i}" for i in range(20)),
    "x = argument_1 if " + " and ".join(f"argument_{i} == {i}" for i in range(10)) + " else y",
    'x = f("a, (b", \'c)"\', ' + ", ".join(f"'{i},'" for i in range(40)) + ")",
    "def f(" + ", ".join(f"argument_{i}: T['a b', {i}]" for i in range(20)) + ") -> None: pass",
    "def f(x) -> tuple[" + ", ".join(f"T['a b', {i}]" for i in range(20)) + "]: pass",
    "x = ((" + ", ".join(str(i) for i in range(60)) + "), {1: (2,), 3: [" + "4, " * 40 + "]})",
    "raise ValueError('" + "it\\'s so \\n " * 20 + "{}'.format(x.shape))",
    "from a import " + ", ".join(f"name_{i}" for i in range(20)),
    "x = 1",
]


@pytest.mark.parametrize("line", LONG)
def test_long_lines_are_broken_and_the_program_stays(line: str) -> None:
    for before in (
        "",
        "def run(x):\n    ",
        "class A:\n\n    def run(x):\n        if x:\n            ",
    ):
        source = before + line
        found = formatted(source, 80)
        assert ast.dump(ast.parse(found)) == ast.dump(ast.parse(source))
        assert max(map(len, found.splitlines())) <= 80


def test_a_line_without_brackets_and_operators_stays() -> None:
    line = "x = " + "a" * 100
    assert fitted(line, 80) == [line]


def test_strings_are_broken_between_words() -> None:
    line = "    raise ValueError('one two three {}, four five six'.format(x.shape))"
    assert fitted(line, 44) == [
        "    raise ValueError(",
        '        "one two three {}, four five "',
        '        "six".format(x.shape),',
        "    )",
    ]


def test_comprehensions_are_broken_at_their_loops() -> None:
    line = "    blocks = tuple(Block(dim=16, heads=2, key=k) for k in jax.random.split(keys[1], 2))"
    assert fitted(line, 60) == [
        "    blocks = tuple(",
        "        Block(dim=16, heads=2, key=k)",
        "        for k in jax.random.split(keys[1], 2)",
        "    )",
    ]
    assert fitted(
        "    sums = tuple(add(left, right) for left, right in zip(lefts, rights))", 50
    ) == [
        "    sums = tuple(",
        "        add(left, right)",
        "        for left, right in zip(lefts, rights)",
        "    )",
    ]


_LAID_OUT = """\
class A(B):
    \'\'\'What it is.\'\'\'

    x: T["a b"]

    @f(1)
    def __call__(self, x: T["a"] = 1, *, y=2):
        (a,) = x
        b = a**2 + self.b(a) ** 2 - x[1:2, a + 1 :, ::-1, a : b - 1] * 1e30
        c = "it" + "the 'x'" + 'a "b" ** 2' + b"**"

        def inner():
            return 1

        if b:
            def other():
                return 2
        else:
            pass
        return c


@f
def g():
    pass


g.h(1)
g.h(2)
""".replace("'''", '"' * 3)


def test_blank_lines_quotes_and_spaces() -> None:
    assert formatted(ast.unparse(ast.parse(_LAID_OUT)), 80) == _LAID_OUT


def test_quotes_spaces_and_short_floats() -> None:
    source = "a, = x\nb = 'it' + 'the \\'x\\''\nc = x[a + 1:, ::-1] ** 2 * 1e+30\n"
    laid_out = '(a,) = x\nb = "it" + "the \'x\'"\nc = x[a + 1 :, ::-1] ** 2 * 1e30\n'
    assert formatted(source, 80) == laid_out


def test_brackets_are_as_an_author_writes_them() -> None:
    source = (
        "def f(x):\n"
        "    a, (b, c) = x, (1, 2)\n"
        "    pair = (a, b)\n"
        "    é = tuple(all(y for y in z) for z in pair), sum((y for y in x), 1)\n"
        "    return a, (b, c)\n"
    )
    expected = source.replace("é = tuple(", "é = (tuple(").replace("x), 1)\n", "x), 1))\n")
    assert formatted(ast.unparse(ast.parse(source)), 80) == expected


@pytest.mark.parametrize("kind", ["plain", "x64", "stateful", "keyed", "specs"])
def test_ruff_accepts_the_reader_of_weights(kind: str, tmp_path: Path) -> None:
    options = {k: k == kind for k in ("x64", "stateful", "keyed", "specs")}
    stmts = Reader("Net", **options).definitions()
    text = formatted(ast.unparse(ast.fix_missing_locations(ast.Module(stmts, []))), 100)
    (tmp_path / "reader.py").write_text(text)
    # Names that the rest of the file defines are left out.
    command = ("ruff", "check", "--isolated", "--select=E,W,I,UP,B,SIM", "--line-length=100", ".")
    result = subprocess.run(
        (sys.executable, "-m", *command), cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout
