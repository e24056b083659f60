"""Formats emitted text: blank lines, quotes, line breaks.

It does not depend on installed formatters, so that a program always has the same text. The layout
is that of ruff and black, except in rare cases where these preserve the author's layout.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator

_OPEN, _CLOSE = "([{", ")]}"
_INDENT = 4
_DOCSTRING = '"""'
# Operators by increasing precedence, loops of comprehensions first; lines break before them.
_OPERATORS = (
    (" for ",),
    (" if ", " else "),
    (" or ",),
    (" and ",),
    (" in ", " not in ", " is ", " is not ", " == ", " != ", " < ", " <= ", " > ", " >= "),
    (" | ",),
    (" ^ ",),
    (" & ",),
    (" << ", " >> "),
    (" + ", " - "),
    (" * ", " / ", " // ", " % ", " @ "),
    (" ** ",),
)
# Powers of names and numbers have no spaces; slices of anything else have some.
_POWER = re.compile(r"(?<![\w.)\]])([\w.]+) \*\* (-?[\w.]+)(?![\w.(\[])")
_SIMPLE = re.compile(r"(-?[\d.]+|\w+)?")
_STRING = re.compile(r"""(["'])((?:(?!\1)[^\\]|\\.)*)\1(.*)$""")
_ONE_TARGET = re.compile(r"^( *)(\w+), = ")
_EXPONENT = re.compile(r"(?<=\d)e\+(?=\d)")
# A digit and at least six zeros.
_ROUND = re.compile(r"(?<![\w.])([1-9])(0{6,})\.0(?![\w.])")
_KEYWORD = re.compile(r"(\w+=|\*{1,2})(?!=)")
_HEAD = re.compile(r"(return|assert|raise|yield|if|elif|while|for|with|del) |(.*?[^=!<>]) = ")


def formatted(source: str, limit: int) -> str:
    """Format the text of `ast.unparse`.

    Lines have at most `limit` characters, if they can be broken at brackets and operators.
    """
    out: list[str] = []
    above = ""
    # The definitions around a line, by their indentation.
    opened: list[tuple[int, str]] = []
    in_docstring = after_docstring = decorated = False
    for line in _without_brackets(source).splitlines():
        if in_docstring:
            out.append(line)
            in_docstring = not line.endswith(_DOCSTRING)
            above = line
            continue
        code = line.lstrip()
        if not code:
            continue
        indent = len(line) - len(code)
        ended = False
        while opened and opened[-1][0] >= indent:
            opened.pop()
            ended = True
        begins = code.startswith(("@", "def ", "class "))
        blank = 0
        if above and not decorated and not above.endswith(":"):
            apart = begins or ended or after_docstring
            blank = 0 if not apart or _continues(code) else 2 if indent == 0 else 1
        out += [""] * blank
        after_docstring = False
        if code.startswith(_DOCSTRING):
            out.append(line)
            in_docstring = code == _DOCSTRING or not code.endswith(_DOCSTRING)
            after_docstring = bool(opened) and opened[-1][1] == "class"
        else:
            out += fitted(_spaced(_quoted(line)), limit)
        if code.startswith(("def ", "class ")):
            opened.append((indent, code.split()[0]))
        decorated = code.startswith("@")
        above = out[-1]
    return "".join(f"{line}\n" for line in out)


def _without_brackets(text: str) -> str:
    """Drop brackets that `ast.unparse` writes but people do not.

    `return x, state` rather than `return (x, state)`, `a, b = c, d`, and `all(x in y for x in z)`.
    """
    lines = text.split("\n")
    places: set[tuple[int, int]] = set()
    for node in ast.walk(ast.parse(text)):
        inner: ast.expr | None = None
        if isinstance(node, ast.Return) and _in_brackets(node.value):
            inner = node.value
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple):
            inner = node.value if _in_brackets(node.value) else None
        elif isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords:
            generator = isinstance(node.args[0], ast.GeneratorExp)
            # Otherwise its brackets are those of the call.
            doubled = generator and node.args[0].end_col_offset != node.end_col_offset
            inner = node.args[0] if doubled else None
        if inner is not None and inner.end_lineno == inner.lineno:
            assert inner.end_col_offset is not None
            ends = inner.col_offset, inner.end_col_offset - 1
            places.update((inner.lineno, column) for column in ends)
    for number, column in sorted(places, reverse=True):
        line = lines[number - 1].encode()
        lines[number - 1] = (line[:column] + line[column + 1 :]).decode()
    return "\n".join(lines)


def _in_brackets(node: ast.expr | None) -> bool:
    """Return whether it is a tuple of several items, in brackets in the text."""
    return (
        isinstance(node, ast.Tuple)
        and len(node.elts) > 1
        and node.col_offset < node.elts[0].col_offset
    )


def _continues(code: str) -> bool:
    return code.startswith(("else:", "elif ", "except", "finally:"))


def fitted(line: str, limit: int) -> list[str]:
    """One statement on lines of at most `limit` characters."""
    if len(line) <= limit:
        return [line]
    code = line.lstrip()
    indent = " " * (len(line) - len(code))
    if code.startswith("from ") and " import " in code:
        head, _, names = code.partition(" import ")
        return _split(indent, f"{head} import (", names, ")", limit)
    if code.startswith(("def ", "class ", "@")):
        pairs = _pairs(code)
        if not pairs:
            return [line]
        start, end = pairs[0]
        return _split(indent, code[: start + 1], code[start + 1 : end], code[end:], limit)
    match = _HEAD.match(code)
    head = match.group() if match and _depth_at_end(match.group()) == 0 else ""
    value, tail = code[len(head) :], ""
    if value.endswith(":"):
        value, tail = value[:-1], ":"
    lines = _laid(indent, head, value, tail, limit, free=False)
    targets = _items(head.removesuffix(" = "))
    if len(targets) > 1 and any(len(line) > limit for line in lines):
        inner = indent + " " * _INDENT
        lines = [indent + "(", *(f"{inner}{target}," for target in targets)]
        lines += _laid(indent, ") = ", value, tail, limit, free=False)
    return lines


def _laid(indent: str, head: str, value: str, tail: str, limit: int, *, free: bool) -> list[str]:
    """`head`, a value and `tail`, broken within the value; `free` in brackets."""
    line = indent + head + value + tail
    if len(line) <= limit:
        return [line]
    if not free and len(_items(value)) > 1:
        return _split(indent, f"{head}(", value, f"){tail}", limit)
    operands = _operands(value)
    pairs = _pairs(value)
    ends = bool(pairs) and (pairs[-1][1] == len(value) - 1 or pairs[0][0] == 0)
    if pairs and (len(operands) == 1 or (len(operands) == 2 and ends and not free)):
        # The last brackets, or those before them if these are almost empty.
        for start, end in reversed(pairs):
            first, last = head + value[: start + 1], value[end:] + tail
            if end - start > 1 and len(indent + first) <= limit and len(indent + last) <= limit:
                return _split(indent, first, value[start + 1 : end], last, limit)
    if len(operands) == 1:
        return _text(indent, head, value, tail, limit) if free else [line]
    if not free:
        inner = _laid(indent + " " * _INDENT, "", value, "", limit, free=True)
        return [f"{indent}{head}(", *inner, f"{indent}){tail}"]
    parts = [_laid(indent, head, operands[0], "", limit, free=True)]
    parts += [_laid(indent, "", part, "", limit, free=True) for part in operands[1:]]
    parts[-1][-1] += tail
    return [line for part in parts for line in part]


def _text(indent: str, head: str, value: str, tail: str, limit: int) -> list[str]:
    """A long string as several adjacent ones; anything else unchanged."""
    match = _STRING.match(value)
    if match is None:
        return [indent + head + value + tail]
    quote, content, rest = match.groups()
    room = limit - len(indent) - 2
    words = re.findall(r"[^ ]* *", content)
    parts = [""]
    for word in words:
        if parts[-1] and len(parts[-1] + word) > room:
            parts.append("")
        parts[-1] += word
    while len(parts[-1] + rest + tail) > room and " " in (last := parts[-1]).rstrip():
        cut = last.rstrip().rindex(" ") + 1
        parts[-1:] = [last[:cut], last[cut:]]
    lines = [indent + _literal(quote, part) for part in parts]
    lines[0] = indent + head + lines[0].lstrip()
    lines[-1] += rest + tail
    return lines


def _split(indent: str, head: str, content: str, tail: str, limit: int) -> list[str]:
    """`head`, which opens a bracket, its content and `tail` on separate lines."""
    inner = indent + " " * _INDENT
    items = _items(content)
    # Arguments and indices may share a line; the items of a tuple or a list do not.
    called = re.search(r"[\w)\]][(\[]$", head) is not None
    if len(inner + content) <= limit and (called or len(items) == 1):
        lines = [inner + content]
    else:
        # A comma would turn one item in brackets into a tuple.
        called = called and head[-1] == "(" and " for " not in content
        comma = "," if len(items) > 1 or called or content.endswith(",") else ""
        lines = []
        for item in items:
            match = _KEYWORD.match(item)
            key = match.group() if match else ""
            if not key and head[-1] == "{" and (colon := _colon(item)) is not None:
                key = item[: colon + 2]
            lines += _laid(inner, key, item[len(key) :], comma, limit, free=True)
    return [indent + head, *lines, *_laid(indent, tail[0], tail[1:], "", limit, free=True)]


def _colon(item: str) -> int | None:
    depth = 0
    for i, character in _code(item):
        depth += (character in _OPEN) - (character in _CLOSE)
        if character == ":" and depth == 0:
            return i
    return None


def _code(text: str) -> Iterator[tuple[int, str]]:
    """The characters outside strings, with their positions."""
    quote = ""
    skip = False
    for i, character in enumerate(text):
        if skip:
            skip = False
        elif quote:
            skip = character == "\\"
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        else:
            yield i, character


def _depth_at_end(text: str) -> int:
    return sum((c in _OPEN) - (c in _CLOSE) for _, c in _code(text))


def _quoted(line: str) -> str:
    """Strings in double quotes, unless that needs a backslash."""
    out = ""
    start = None
    skip = False
    for i, character in enumerate(line):
        if start is None:
            if character in "'\"":
                start = i
            else:
                out += character
        elif skip:
            skip = False
        elif character == "\\":
            skip = True
        elif character == line[start]:
            out += _literal(character, line[start + 1 : i])
            start = None
    return out if start is None else out + line[start:]


def _literal(quote: str, content: str) -> str:
    """A string literal, in double quotes unless it contains one."""
    if quote == "'" and '"' not in content:
        quote, content = '"', content.replace("\\'", "'")
    return f"{quote}{content}{quote}"


def _with_exponent(number: re.Match[str]) -> str:
    """`1e9` for `1000000000.0`."""
    return f"{number[1]}e{len(number[2])}"


def _spaced(line: str) -> str:
    """Powers, slices, targets and numbers as formatters write them."""
    line = _ONE_TARGET.sub(r"\1(\2,) = ", line)
    for pattern, spaced in ((_POWER, r"\1**\2"), (_EXPONENT, "e"), (_ROUND, _with_exponent)):
        if pattern.search(line):
            line = _replaced(line, pattern, spaced)
    if line.lstrip().startswith("def "):
        return _with_defaults(line)
    if ":" not in line or "[" not in line:
        return line
    places: set[int] = set()
    opened: list[tuple[int, list[int]]] = []
    for i, character in _code(line):
        if character in _OPEN:
            opened.append((i, [i]))
        elif character in _CLOSE or character == ",":
            if not opened:
                continue
            start, cuts = opened[-1]
            parts = [line[a + 1 : b].strip() for a, b in zip(cuts, [*cuts[1:], i], strict=True)]
            if (
                line[start] == "["
                and len(parts) > 1
                and not all(_SIMPLE.fullmatch(p) for p in parts)
            ):
                places.update(cuts[1:])
            if character == ",":
                opened[-1] = start, [i]
            else:
                opened.pop()
        elif character == ":" and opened:
            opened[-1][1].append(i)
    return "".join(
        c
        if i not in places
        else f"{'' if line[i - 1] in '[ :' else ' '}:{'' if line[i + 1] in ',]:' else ' '}"
        for i, c in enumerate(line)
    )


def _replaced(line: str, pattern: re.Pattern[str], by: str | Callable[[re.Match[str]], str]) -> str:
    """The line with a pattern replaced outside strings."""
    code = {i for i, _ in _code(line)}

    def new(found: re.Match[str]) -> str:
        if found.start() not in code:
            return found[0]
        return found.expand(by) if isinstance(by, str) else by(found)

    return pattern.sub(new, line)


def _with_defaults(line: str) -> str:
    """A definition with spaces around the defaults of annotated parameters."""
    depth, typed = 0, False
    places: set[int] = set()
    for i, character in _code(line):
        depth += (character in _OPEN) - (character in _CLOSE)
        if depth == 1 and character in ":,":
            typed = character == ":"
        elif depth == 1 and character == "=" and typed and line[i - 1] != " ":
            places.add(i)
    return "".join(" = " if i in places else c for i, c in enumerate(line))


def _pairs(text: str) -> list[tuple[int, int]]:
    """The outermost pairs of brackets."""
    pairs: list[tuple[int, int]] = []
    opened: list[int] = []
    for i, character in _code(text):
        if character in _OPEN:
            opened.append(i)
        elif character in _CLOSE and opened:
            start = opened.pop()
            if not opened:
                pairs.append((start, i))
    return pairs


def _items(content: str) -> list[str]:
    """The items between the commas outside brackets, and outside the targets of a loop.

    Nor is a comma between the parameters of a lambda one.
    """
    depth, start = 0, 0
    targets = parameters = False
    items: list[str] = []
    for i, character in _code(content):
        depth += (character in _OPEN) - (character in _CLOSE)
        if depth == 0 and character == " ":
            targets = content.startswith(" for ", i) or (
                targets and not content.startswith(" in ", i)
            )
        if depth == 0 and content.startswith("lambda ", i):
            parameters = True
        parameters = parameters and not (character == ":" and depth == 0)
        if character == "," and depth == 0 and not (targets or parameters):
            items.append(content[start:i].strip())
            start = i + 1
    last = content[start:].strip()
    return [*items, last] if last else items


def _operands(value: str) -> list[str]:
    """A value split before its operators of the lowest precedence."""
    depth = 0
    places: dict[int, list[int]] = {}
    for i, character in _code(value):
        depth += (character in _OPEN) - (character in _CLOSE)
        if depth == 0 and character == " ":
            for rank, operators in enumerate(_OPERATORS):
                if value.startswith(operators, i):
                    places.setdefault(rank, []).append(i)
    loops = value.startswith("for ") and value[-1] in _CLOSE
    if not places or value.startswith("lambda") or loops:
        return [value]
    cuts = places[min(places)]
    starts = [0, *(i + 1 for i in cuts)]
    return [value[a:b] for a, b in zip(starts, [*cuts, len(value)], strict=True)]
