"""Names of fields, without what the names of enclosing modules already say."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from invert.emission.layers.cut import Layer, calls, layers_in, plain_name
from invert.emission.layers.tree import Path, called, parameters_of
from invert.emission.python.naming import snake, stem
from invert.ir.types import Var


def shorten(root: Layer, model: str, paths: Mapping[Var, Path]) -> None:
    """`stem` for the `convnext_tiny_stem` of a model `convnext_tiny`, and so on inside.

    Layers `norm_2` and `conv_2` of `block_2` become `norm` and `conv`. Two fields of one layer keep
    different names.
    """
    own = snake(model, fallback="")  # not every model has a name
    _shorten(root, {own, stem(own)}, "", paths)


def _shorten(layer: Layer, around: set[str], name: str, paths: Mapping[Var, Path]) -> None:
    inner = [c.layer for c in calls(layer.steps) if c.layer.same is None]
    old = _names(inner, paths)
    for own in sorted({*around, name} - {""}, key=len, reverse=True):
        _rename(inner, lambda field, own=own: field.removeprefix(f"{own}_"), paths)
    number = re.search(r"_\d+$", name)
    if number is not None and all(n.endswith(number[0]) for n in old.values()):
        _rename(inner, lambda field: field.removesuffix(number[0]), paths)
    for each in inner:
        _shorten(each, around, old[each], paths)


def _names(layers: Iterable[Layer], paths: Mapping[Var, Path]) -> dict[Layer, str]:
    return {x: x.field or plain_name(called(x, paths)) for x in layers}


def _rename(layers: list[Layer], short: Callable[[str], str], paths: Mapping[Var, Path]) -> None:
    old = _names(layers, paths)
    new = {x: short(name) for x, name in old.items()}
    clear = all(re.match(r"[A-Za-z]", name) for name in new.values())
    if clear and len({*new.values()}) == len({*old.values()}):
        for x, name in new.items():
            if name != old[x]:
                x.field = name


def align(layer: Layer) -> None:
    """Give layers without parameters one name in all blocks of a list.

    Keras counts such layers through the whole program.
    """
    first: dict[str, Layer] = {}
    for inner in layers_in(layer):
        align(inner)
        if inner.listed and not inner.mixed:
            _name_as(first.setdefault(inner.listed, inner), inner)


def _name_as(one: Layer, other: Layer) -> None:
    ours, theirs = layers_in(one), layers_in(other)
    if one is other or len(ours) != len(theirs):
        return
    for a, b in zip(ours, theirs, strict=True):
        if not parameters_of(a) and not parameters_of(b):
            a.field = b.field = a.field or plain_name(a.name)
        _name_as(a, b)
