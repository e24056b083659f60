"""Writes docs/tutorial.md and examples/tutorial.ipynb: what examples/tutorial.py says and prints.

`python -m tools.tutorial` runs the script and writes both. A test runs it too, and compares them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "examples" / "tutorial.py"
PAGE = ROOT / "docs" / "tutorial.md"
NOTEBOOK = ROOT / "examples" / "tutorial.ipynb"


@dataclasses.dataclass(frozen=True)
class Cell:
    """A part of the script: text in Markdown, or code with what it prints."""

    kind: str
    text: str
    output: str = ""


def cells(script: str) -> list[Cell]:
    """The cells of a script, which begin with `# %%`."""
    found = []
    for part in script.split("# %%")[1:]:
        head, _, body = part.partition("\n")
        if head.strip() == "[markdown]":
            lines = [line.removeprefix("#").removeprefix(" ") for line in body.strip().splitlines()]
            found.append(Cell("markdown", "\n".join(lines)))
        else:
            found.append(Cell("code", body.strip()))
    return found


def run(parts: Sequence[Cell]) -> list[Cell]:
    """The cells with what they print, run one after the other."""
    names: dict[str, Any] = {"__name__": "tutorial"}
    done = []
    for cell in parts:
        if cell.kind == "code":
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(cell.text, str(SCRIPT), "exec"), names)  # noqa: S102  our own script
            cell = dataclasses.replace(cell, output=printed.getvalue().strip())
        done.append(cell)
    return done


def page(parts: Sequence[Cell]) -> str:
    """The cells as a page."""
    texts = []
    for cell in parts:
        if cell.kind == "markdown":
            texts.append(cell.text)
            continue
        texts.append(f"```python\n{cell.text}\n```")
        if cell.output:
            kind = "python" if cell.output.startswith("# ruff") else "text"
            texts.append(f"```{kind}\n{cell.output}\n```")
    return "\n\n".join(texts) + "\n"


def notebook(parts: Sequence[Cell]) -> str:
    """The cells as a notebook, with the outputs."""
    made = []
    for number, cell in enumerate(parts):
        made.append(
            {
                "id": f"cell-{number}",
                "cell_type": cell.kind,
                "metadata": {},
                "source": cell.text.splitlines(keepends=True),
            }
        )
        if cell.kind == "code":
            output = {
                "name": "stdout",
                "output_type": "stream",
                "text": cell.output.splitlines(keepends=True),
            }
            made[-1] |= {"execution_count": None, "outputs": [output] if cell.output else []}
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    whole = {"cells": made, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def main() -> int:
    parts = run(cells(SCRIPT.read_text(encoding="utf-8")))
    PAGE.write_text(page(parts), encoding="utf-8")
    NOTEBOOK.write_text(notebook(parts), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
