"""`invert diff`: two programs side by side."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import itertools
import json
import re
import shutil
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypedDict

import numpy as np

from invert._config import Config
from invert._errors import plain
from invert._private.jax import is_jaxpr, open_jaxpr
from invert.cli.model import Model
from invert.cli.options import UsageError
from invert.cli.programs import ComparedProgram, programs_of
from invert.cli.terminal import Progress, coloured
from invert.ir.graph import is_var
from invert.ir.numbers import largest_gap
from invert.ir.traced_form import difference
from invert.ir.types import AnyJaxpr, Atom

# If more lines than this differ, frequent lines are not used to align the others.
_MANY = 2000
_CONTEXT = 3


class _Compared(TypedDict):
    name: str
    same: bool
    lines: list[str]


def run(options: argparse.Namespace) -> int:
    """Print the differences of two programs; 1 if there are any, otherwise 0."""
    with Progress(options.progress) as progress:
        config = Config(verify=False, progress=progress)
        models = [Model.of(path, options, shared=True) for path in (options.a, options.b)]
        if (options.inputs or options.outputs) and all(m.kind != "graph" for m in models):
            raise UsageError("--inputs and --outputs are for bare graphs, and neither model is one")
        sides = []
        for model in models:
            progress(f"reading {model.path}")
            sides.append(model.load(config))
        progress("comparing")
        a, b = (programs_of(side, other) for side, other in (sides, sides[::-1]))
    width = options.width or shutil.get_terminal_size((130, 24)).columns
    programs: list[_Compared] = []
    for title, x, y in _pairs(a, b):
        if x is None or y is None:
            lines, found = [f"only in {options.a if y is None else options.b}"], True
        else:
            lines, found = compare(x, y, width=width, full=options.full, weights=options.weights)
        programs.append({"name": plain(title), "same": not found, "lines": [*map(plain, lines)]})
    same = all(program["same"] for program in programs)
    if options.json:
        print(json.dumps({"same": same, "a": options.a, "b": options.b, "programs": programs}))
        return int(not same)
    if not same:
        print(f"--- {options.a}\n+++ {options.b}")
    for program in programs:
        if program["lines"]:
            shown = [_dressed(line, _half(width)) for line in program["lines"]]
            print("\n".join([coloured(f"{program['name']}:", "bold"), *shown]))
    return int(not same)


_COLOURS = {"|": "yellow", "<": "red", ">": "green"}


def _dressed(line: str, half: int) -> str:
    """A line in the colour of the mark between its columns."""
    colour = _COLOURS.get(line[half + 1 : half + 2])
    return coloured(line, colour) if colour else line


def _half(width: int) -> int:
    """The width of one of two columns."""
    return max((width - 3) // 2, 20)


def _pairs(
    a: Mapping[str, ComparedProgram], b: Mapping[str, ComparedProgram]
) -> Iterator[tuple[str, ComparedProgram | None, ComparedProgram | None]]:
    """Pair programs by name; two single programs are compared under any names."""
    if len(a) == len(b) == 1:
        (name, x), (other, y) = *a.items(), *b.items()
        yield name if name == other else f"{name}, {other}", x, y
        return
    for name in dict.fromkeys([*a, *b]):
        yield name, a.get(name), b.get(name)


def compare(
    a: ComparedProgram, b: ComparedProgram, *, width: int, full: bool = False, weights: bool = False
) -> tuple[list[str], bool]:
    """Two programs in two columns, and whether they differ.

    **Arguments:**

    - `width`: columns of the text.
    - `full`: whether lines far from a difference are printed too.
    - `weights`: whether the values of weights are compared too.
    """
    reason = difference(a.jaxpr, b.jaxpr)
    if reason is None and len(a.held) != len(b.held):
        reason = f"{len(a.held)} arrays, {len(b.held)} on the other side"
    rows = list(_rows(_lines(a), _lines(b))) if reason is not None or full else []
    lines = list(_columns(rows, width, full))
    if reason is not None:
        lines.append(f"the programs differ: {reason}")
    apart = [] if reason is not None or not weights else list(_apart(a, b))
    return [*lines, *apart], reason is not None or bool(apart)


def _apart(a: ComparedProgram, b: ComparedProgram) -> Iterator[str]:
    for (name, x), (other, y) in zip(a.held, b.held, strict=True):
        p, q = np.asarray(x), np.asarray(y)
        if p.tobytes() != q.tobytes():
            both = name if name == other else f"{name} and {other}"
            yield f"the values of {both} differ, by {largest_gap(p, q):.3g} at most"


@dataclasses.dataclass(frozen=True)
class Line:
    """One line of a program.

    **Arguments:**

    - `key`: the line without names; lines are aligned by it.
    - `reads`, `makes`: the values that it reads, variables or literals, and its results.
    """

    key: str
    text: str
    reads: tuple[Atom, ...] = ()
    makes: tuple[Atom, ...] = ()


def _lines(program: ComparedProgram) -> list[Line]:
    names: dict[Atom, str] = {}
    numbers = itertools.count()

    def name(v: Atom) -> str:
        if not is_var(v):
            return str(v.val)
        if v not in names:
            names[v] = _letters(next(numbers))
        return names[v]

    held = len(program.held)
    lines = []
    for i, v in enumerate(program.jaxpr.invars):
        kind, label = ("holds", program.held[i][0]) if i < held else ("takes", "")
        label = label or program.arguments[i - held]
        type_ = _type(v)
        lines.append(Line(f"{kind} {type_}", f"{kind} {name(v)}: {type_}  {label}", (), (v,)))
    lines += _body(program.jaxpr, name, "")
    return lines


def _body(jaxpr: AnyJaxpr, name: Callable[[Atom], str], indent: str) -> Iterator[Line]:
    for eqn in jaxpr.eqns:
        inner: list[tuple[str, AnyJaxpr]] = []
        texts = []
        for key, value in eqn.params.items():
            found = value if isinstance(value, (tuple, list)) else (value,)
            bodies = [v for v in found if is_jaxpr(v)]
            if bodies:
                numbered = len(bodies) > 1
                inner += [(f"{key} {i}" if numbered else key, v) for i, v in enumerate(bodies)]
            elif _says_something(value):
                texts.append(f"{key}={_value(value)}")
        what = f"{eqn.primitive.name}[{', '.join(texts)}]" if texts else eqn.primitive.name
        types = ", ".join(_type(v) for v in eqn.outvars)
        read = " ".join(name(v) for v in eqn.invars)
        made = ", ".join(f"{name(v)}: {_type(v)}" for v in eqn.outvars)
        yield Line(
            f"{indent}{types} = {what}", f"{indent}{made} = {what} {read}",
            tuple(eqn.invars), tuple(eqn.outvars),
        )  # fmt: skip
        for title, closed in inner:
            body = open_jaxpr(closed)
            taken = [*body.constvars, *body.invars]
            head = f"{indent}  {title} of"
            kinds = " ".join(map(_type, taken))
            yield Line(f"{head} {kinds}", f"{head} {' '.join(map(name, taken))}", (), tuple(taken))
            yield from _body(body, name, indent + "    ")
    results = " ".join(map(name, jaxpr.outvars))
    kinds = " ".join(map(_type, jaxpr.outvars))
    yield Line(f"{indent}return {kinds}", f"{indent}return {results}", tuple(jaxpr.outvars))


def _says_something(value: object) -> bool:
    """Return whether a parameter is printed: absent values and derivative rules are not."""
    if isinstance(value, tuple):
        return any(map(_says_something, value))
    silent = value is None or value is False or type(value).__name__ in _SILENT
    return not silent and not callable(value)


# Unspecified placements, and functions of derivative rules.
_SILENT = frozenset({"UnspecifiedValue", "WrappedFun"})


def _value(value: object) -> str:
    """A parameter as text, without the addresses of objects."""
    return re.sub(r" at 0x[0-9a-f]+", "", " ".join(str(value).split()))


def _type(v: Atom) -> str:
    aval = v.aval
    sizes = ",".join(map(str, getattr(aval, "shape", ())))
    return f"{getattr(aval, 'dtype', aval)}[{sizes}]"


def _letters(i: int) -> str:
    """`a` to `z`, then `aa` and so on."""
    text = ""
    while i >= 0:
        text = chr(ord("a") + i % 26) + text
        i = i // 26 - 1
    return text


Row = tuple[str, Line | None, Line | None]


def _rows(a: Sequence[Line], b: Sequence[Line]) -> Iterator[Row]:
    """Lines side by side, marked `|`, `<` or `>` where they differ."""
    same: dict[Atom, Atom] = {}
    one, two = ([line.key for line in lines] for lines in (a, b))
    junk = max(len(a), len(b)) > _MANY
    matcher = difflib.SequenceMatcher(None, one, two, autojunk=junk)
    for tag, i, j, k, m in matcher.get_opcodes():
        for x, y in itertools.zip_longest(a[i:j], b[k:m]):
            if x is None or y is None:
                yield "<" if y is None else ">", x, y
                continue
            mark = " "
            if tag != "equal" or not all(map(_corresponds(same), x.reads, y.reads)):
                mark = "|"
            if tag == "equal":
                same.update(zip(x.makes, y.makes, strict=True))
            yield mark, x, y


def _corresponds(same: Mapping[Atom, Atom]) -> Callable[[Atom, Atom], bool]:
    def test(v: Atom, w: Atom) -> bool:
        if is_var(v) and is_var(w):
            return same.get(v) is w
        return not is_var(v) and not is_var(w) and str(v.val) == str(w.val)

    return test


def _columns(rows: Sequence[Row], width: int, full: bool) -> Iterator[str]:
    half = _half(width)
    shown = _near(rows) if not full else set(range(len(rows)))
    last = -1
    for i in sorted(shown):
        if i != last + 1:
            yield _gap(i - last - 1)
        last = i
        mark, x, y = rows[i]
        left, right = (_wrap(line.text if line else "", half) for line in (x, y))
        for text, other in itertools.zip_longest(left, right, fillvalue=""):
            yield f"{text:<{half}} {mark} {other}".rstrip()
    if shown and last != len(rows) - 1:
        yield _gap(len(rows) - 1 - last)


def _gap(count: int) -> str:
    return f"... {count} line{'s' if count > 1 else ''} alike"


def _near(rows: Sequence[Row]) -> set[int]:
    numbers: set[int] = set()
    for i, (mark, _, _) in enumerate(rows):
        if mark != " ":
            numbers |= set(range(max(0, i - _CONTEXT), min(len(rows), i + _CONTEXT + 1)))
    return numbers


def _wrap(text: str, width: int) -> Iterable[str]:
    indent = " " * (len(text) - len(text.lstrip()) + 4)
    return textwrap.wrap(text, width, subsequent_indent=indent, break_on_hyphens=False) or [""]
