"""Long lines of `ast.unparse`, broken at brackets: for where no formatter is installed."""

from __future__ import annotations

from collections.abc import Iterator

_OPEN, _CLOSE = "([{", ")]}"
_INDENT = 4


def wrapped(source: str, limit: int) -> str:
    """The text with lines of at most `limit` characters, as far as brackets allow."""
    return "".join(f"{part}\n" for line in source.splitlines() for part in _fitted(line, limit))


def _fitted(line: str, limit: int) -> list[str]:
    if len(line) <= limit:
        return [line]
    pair = _widest(line)
    if pair is None:
        return [line]
    start, end = pair
    indent = len(line) - len(line.lstrip())
    inner = " " * (indent + _INDENT)
    content = line[start + 1 : end]
    parts = [line[: start + 1]]
    if len(inner) + len(content) <= limit:
        parts.append(inner + content)
    else:
        items = _items(content)
        # One item in brackets is no tuple; a comma would make it one.
        comma = "," if len(items) > 1 else ""
        for item in items:
            parts += _fitted(f"{inner}{item}{comma}", limit)
    return [*parts, *_fitted(" " * indent + line[end:], limit)]


def _code(text: str) -> Iterator[tuple[int, str]]:
    """The characters outside of strings, with their places."""
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


def _widest(line: str) -> tuple[int, int] | None:
    """The outermost pair of brackets that holds most."""
    best: tuple[int, int] | None = None
    opened: list[int] = []
    for i, character in _code(line):
        if character in _OPEN:
            opened.append(i)
        elif character in _CLOSE and opened:
            start = opened.pop()
            if not opened and i - start > 1 and (best is None or i - start > best[1] - best[0]):
                best = start, i
    return best


def _items(content: str) -> list[str]:
    """What the commas outside of brackets separate."""
    depth, start = 0, 0
    found: list[str] = []
    for i, character in _code(content):
        depth += (character in _OPEN) - (character in _CLOSE)
        if character == "," and depth == 0:
            found.append(content[start:i].strip())
            start = i + 1
    last = content[start:].strip()
    return [*found, last] if last else found
