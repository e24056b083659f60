"""Writes docs/measurements.md from the results in benchmarks/. A test compares the two."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tools import speed

ROOT = Path(__file__).parents[1]
DATA = ROOT / "benchmarks" / "results.toml"
PAGE = ROOT / "docs" / "measurements.md"
_KEYS = ("what", "figure", "command")
# The section that begins with the picture and the table of `speed`.
_MODELS = "Speed of Keras models"
_INTRODUCTION = """\
CPU time over TensorFlow's, the smallest of several rounds in turn, and in brackets
over TensorFlow with XLA; below 1 is faster. After the arrow with `optimize="cpu"`, where that
rewrites something. `python benchmarks/models.py` measures again and stores the ratios, which
`make pages` draws.

![Bars of the ratios over TensorFlow, as converted and optimized](assets/speed.svg)

"""


def page(results: Mapping[str, Any]) -> str:
    """The page: a section for each group, with what was measured, the figure and the command.

    **Raises:** `ValueError` for a measurement that is not complete.
    """
    groups: dict[str, list[str]] = {}
    for entry in results["measurement"]:
        if set(entry) != {*_KEYS, "group"}:
            raise ValueError(f"a measurement has {', '.join(sorted(entry))}: {entry.get('what')}")
        lines = groups.setdefault(entry["group"], [])
        lines.append(f"**{entry['what']}**\n:   {entry['figure']}\n\n    {entry['command']}\n")
    text = (
        "# Measurements\n\nMeasured on "
        f"{results['environment']}. The last line of each is the command that measures it again. "
        "The page is made from `benchmarks/results.toml` by `make pages`.\n"
    )
    for name, lines in groups.items():
        text += f"\n## {name}\n\n"
        if name == _MODELS:
            text += _INTRODUCTION + speed.table(speed.ratios()) + "\n"
        text += "\n".join(lines)
    return text


def main() -> int:
    speed.CHART.write_text(speed.chart(speed.ratios()), encoding="utf-8")
    PAGE.write_text(page(tomllib.loads(DATA.read_text(encoding="utf-8"))), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
