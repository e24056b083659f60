"""Writes docs/measurements.md from the results in benchmarks/. A test compares the two.

An entry has `group`, `what`, `command`, and either a `figure`, which is a sentence or less, or
`columns` and `rows` of a table; a `note` is optional.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tools import speed

ROOT = Path(__file__).parents[1]
DATA = ROOT / "benchmarks" / "results.toml"
PAGE = ROOT / "docs" / "measurements.md"
# The section that begins with the picture and the table of `speed`.
_MODELS = "Speed of Keras models"
_INTRODUCTION = """\
CPU time over TensorFlow's, the smallest of several rounds in turn, and in brackets over TensorFlow
with XLA; below 1 is faster. After the arrow with `optimize="cpu"`, where that rewrites something.
Steps of gradient descent have a batch of 8, those of ResNet50 and ConvNeXtTiny of 4. The ratios of
a cell come from several runs, and TensorFlow's own time differs by up to a third from one to the
next. `python benchmarks/models.py` measures again and stores the ratios, which `make pages` draws.

![Bars of the ratios over TensorFlow: as converted, and optimized](assets/speed.svg)

"""
_COMMON = {"group", "what", "command"}
_RESULTS = ({"figure"}, {"columns", "rows"})


def page(results: Mapping[str, Any]) -> str:
    """The page: a section for each group, with what was measured, the figures and the command.

    **Raises:** `ValueError` for an entry that is incomplete, or a row of another length than its
    columns.
    """
    groups: dict[str, list[str]] = {}
    for entry in results["measurement"]:
        groups.setdefault(entry.get("group", ""), []).append(_entry(entry))
    text = (
        "# Measurements\n\nMeasured on "
        f"{results['environment']}. The last line of each entry is the command that repeats it. "
        "The page is made from `benchmarks/results.toml` by `make pages`.\n"
    )
    for name, entries in groups.items():
        text += f"\n## {name}\n\n"
        if name == _MODELS:
            text += _INTRODUCTION + speed.table(speed.ratios()) + "\n"
        text += "\n".join(entries)
    return text


def _entry(entry: Mapping[str, Any]) -> str:
    if set(entry) - {"note"} not in [_COMMON | keys for keys in _RESULTS]:
        raise ValueError(f"a measurement has {', '.join(sorted(entry))}: {entry.get('what')}")
    if "rows" in entry:
        parts = [f"**{entry['what']}**", _table(entry["what"], entry["columns"], entry["rows"])]
    else:
        parts = [f"**{entry['what']}**: {entry['figure']}"]
    if "note" in entry:
        parts.append(entry["note"])
    return "\n\n".join([*parts, f"Command: {entry['command']}"]) + "\n"


def _table(what: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if any(len(row) != len(columns) for row in rows):
        raise ValueError(f"a row has another length than the columns: {what}")
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def main() -> int:
    speed.CHART.write_text(speed.chart(speed.ratios()), encoding="utf-8")
    PAGE.write_text(page(tomllib.loads(DATA.read_text(encoding="utf-8"))), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
