"""Displays recovered modules: a line per function, a table of layers, HTML."""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Mapping, Sequence

import equinox as eqx
import jax
import numpy as np

from invert._entry import ArgSpec
from invert._errors import plain
from invert.ir.sizes import DimSize, is_open
from invert.ir.types import Value
from invert.modules.function import Function
from invert.modules.signatures import call_text, parameter_names, tree_text, type_text

_HEAD = ("layer", "arrays", "parameters")


def call_line(name: str, function: Function) -> str:
    """`f(x: float32[?,4]) -> float32[?,3]`, with the types of all arguments and results."""
    entry, stage = function.entry, function.shown
    args, kwargs = entry.args, dict(entry.kwargs)
    if stage is not None and stage.is_open:
        named = [
            dataclasses.replace(spec, shape=tuple(map(_named, shape)))
            for spec, shape in zip(function.specs, stage.shapes, strict=True)
        ]
        args, kwargs = jax.tree_util.tree_unflatten(function.in_tree, named)
    safe = parameter_names(entry)
    types = dict(zip(entry.arg_names, args, strict=True)) | dict(kwargs)
    trees = {safe[name]: tree for name, tree in types.items()}
    results, sizes = entry.results, ()
    if stage is not None and (results is None or stage.is_open):
        outs = stage.jaxpr.outvars[: entry.out_tree.num_leaves]
        results = tuple(ArgSpec("", tuple(map(_named, v.aval.shape)), v.aval.dtype) for v in outs)
        sizes = () if stage.is_open else stage.report.sizes
    returns = "?"
    if results is not None:
        returns = tree_text(jax.tree_util.tree_unflatten(entry.out_tree, results))
    at = f" for {', '.join(sizes)}" if sizes else ""
    call = call_text(name, function.signature, trees)
    return plain(f"{call} -> {returns}{at}")


def _named(size: DimSize) -> int | str:
    return str(size) if is_open(size) else size


def certificate_line(function: Function) -> str:
    """The certificate, if a program was recovered."""
    stage = function.shown
    return "not recovered yet" if stage is None else f"certificate: {stage.report.certificate}"


def count_line(named: Mapping[str, Value], constants: Sequence[Value]) -> str:
    """`1,234 parameters in 4 arrays`, and the same of the constants."""
    parts = [_counted(list(named.values()), "parameters")] if named or not constants else []
    return ", ".join([*parts, *([_counted(constants, "constants")] if constants else [])])


def is_whole(leaves: Sequence[Value]) -> bool:
    """Return whether a module holds arrays rather than the tracers of a transformation."""
    return all(hasattr(_array(x), "shape") for x in leaves)


def table(named: Mapping[str, Value], constants: Mapping[str, Value]) -> list[tuple[str, str, str]]:
    """A row per layer: its name, typed arrays, and number of elements."""
    layers: dict[str, list[tuple[str, object]]] = {}
    for name, value in named.items():
        layer, _, last = name.rpartition("/")
        layers.setdefault(layer, []).append((last, value))
    if constants:
        layers["(constants)"] = list(constants.items())
    return [
        (
            plain(layer),
            plain(", ".join(f"{name} {type_text(_array(x))}" for name, x in arrays)),
            f"{sum(map(_size, (x for _, x in arrays))):,}",
        )
        for layer, arrays in layers.items()
    ]


def summary(
    lines: Sequence[str], rows: Sequence[tuple[str, str, str]], total: str, width: int = 60
) -> str:
    """The lines and a table of the layers, as text."""
    cells = [_HEAD, *((layer, _cut(arrays, width), count) for layer, arrays, count in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(3)]
    text = [
        f"{layer:<{widths[0]}}  {arrays:<{widths[1]}}  {count:>{widths[2]}}".rstrip()
        for layer, arrays, count in (cells if rows else [])
    ]
    return "\n".join([*lines, *text, total])


def as_html(lines: Sequence[str], rows: Sequence[tuple[str, str, str]], total: str) -> str:
    """`summary` as HTML, for a notebook."""
    head = "".join(f"<th>{h}</th>" for h in _HEAD)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    first = "<br>".join(f"<code>{html.escape(line)}</code>" for line in lines)
    made = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>" if rows else ""
    return f"<div>{first}{made}<p>{html.escape(total)}</p></div>"


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 4] + " ..."


def _array(x: Value) -> Value:
    """The array of a leaf; of an index into the state, its initial value."""
    return x.init if isinstance(x, eqx.nn.StateIndex) else x


def _size(x: Value) -> int:
    return int(np.prod(np.shape(_array(x))))


def _counted(arrays: Sequence[Value], what: str) -> str:
    several = "array" if len(arrays) == 1 else "arrays"
    return f"{sum(map(_size, arrays)):,} {what} in {len(arrays)} {several}"
