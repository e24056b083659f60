"""Draws and tabulates the speed of Keras models over TensorFlow's, of benchmarks/models.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).parents[1]
DATA = ROOT / "benchmarks" / "models.json"
CHART = ROOT / "docs" / "assets" / "speed.svg"

# For each model its ratios, as the smallest of all rounds, by the kinds of its runs and "a / b".
Ratios = Mapping[str, Mapping[str, Mapping[str, float]]]
# The kinds of runs shown, and what they are called.
RUNS = {
    "batch 1, forward": "forward, batch 1",
    "batch 32, forward": "forward, batch 32",
    "batch 8, step": "step of training, batch 8 or 4",
}
# What is drawn for each run, and its color, which is readable on a light and on a dark page.
BARS = {"converted": "#9aa5b1", "optimized": "#2f7de1"}
# The largest ratio that is drawn to scale.
LARGEST = 3.0

_NAME, _PANEL, _GAP, _ROW, _BAR, _TOP = 130, 220, 30, 41, 10, 56


def ratios() -> Ratios:
    """The stored ratios."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for key, row in json.loads(DATA.read_text(encoding="utf-8")).items():
        name, _, run = key.partition(", ")
        # Large models are trained in smaller batches.
        kind = run.replace("batch 4, step", "batch 8, step")
        found.setdefault(name, {})[kind] = {k: v[0] for k, v in row["ratios"].items()}
    return found


def table(data: Ratios) -> str:
    """A Markdown table of the ratios, over TensorFlow and over TensorFlow with XLA."""

    def one(row: Mapping[str, float], ours: str) -> str:
        values = [row.get(f"{ours} / {peer}") for peer in ("TensorFlow", "xla")]
        texts = ["-" if v is None else f"{v:.2f}" for v in values]
        return "{} ({})".format(*texts) if any(values) else ""

    def shown(row: Mapping[str, float]) -> str:
        converted, *faster = (one(row, ours) for ours in BARS)
        return " → ".join([converted, *filter(None, faster)]).strip() or "-"

    lines = ["| | " + " | ".join(RUNS.values()) + " |", "|---" * (len(RUNS) + 1) + "|"]
    lines += [
        f"| {name} | " + " | ".join(shown(data[name].get(run, {})) for run in RUNS) + " |"
        for name in data
    ]
    return "\n".join(lines) + "\n"


def chart(data: Ratios) -> str:
    """An SVG picture of the ratios over TensorFlow: a panel for each kind of run."""
    width = _NAME + len(RUNS) * (_PANEL + _GAP)
    height = _TOP + _ROW * len(data) + 12
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="12" fill="#7a8694">'
    ]
    for i, (ours, color) in enumerate(BARS.items()):
        x = _NAME + 110 * i
        parts.append(f'<rect x="{x}" y="6" width="10" height="10" fill="{color}"/>')
        parts.append(f'<text x="{x + 16}" y="15">{ours}</text>')
    for k, name in enumerate(data):
        y = _TOP + _ROW * k
        parts.append(f'<text x="{_NAME - 10}" y="{y + 21}" text-anchor="end">{escape(name)}</text>')
    for i, (run, title) in enumerate(RUNS.items()):
        left = _NAME + i * (_PANEL + _GAP)
        one = left + _PANEL / LARGEST
        parts.append(f'<text x="{left}" y="{_TOP - 16}" font-weight="bold">{title}</text>')
        for k, rows in enumerate(data.values()):
            parts += _bars(rows.get(run, {}), left, _TOP + _ROW * k)
        line = f'd="M{one:.1f} {_TOP - 8}V{height - 8}" stroke="#d9534f" stroke-dasharray="4 3"'
        parts.append(f"<path {line}/>")
    return "\n".join([*parts, "</svg>\n"])


def _bars(row: Mapping[str, float], left: float, top: float) -> list[str]:
    """The bars of a model in a panel, with their numbers."""
    parts: list[str] = []
    for j, (ours, color) in enumerate(BARS.items()):
        ratio = row.get(f"{ours} / TensorFlow")
        if ratio is None:
            continue
        y, length = top + j * (_BAR + 1), min(ratio, LARGEST) / LARGEST * _PANEL
        parts.append(
            f'<rect x="{left}" y="{y}" width="{length:.1f}" height="{_BAR}" fill="{color}"/>'
        )
        x, anchor, fill = left + length + 4, "start", color
        if length > 0.8 * _PANEL:  # the number would leave the panel
            x, anchor, fill = left + length - 4, "end", "#fff"
        parts.append(
            f'<text x="{x:.1f}" y="{y + 9}" font-size="10" text-anchor="{anchor}" fill="{fill}">'
            f"{ratio:.2f}</text>"
        )
    return parts
