"""Turns the options of a command into those of a conversion."""

from __future__ import annotations

import argparse
import ast
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from invert import patterns
from invert._config import Config
from invert._errors import InvertError
from invert.emission import STYLES

# Options that only Python can give.
_OF_PYTHON = ("extra_patterns", "progress", "sizes")


class UsageError(InvertError):
    """The arguments of the command do not make sense."""


def layers_of(options: argparse.Namespace) -> tuple[str, ...]:
    """The ways in which layers are written.

    **Raises:** `UsageError` for an unknown one.
    """
    layers = tuple(filter(None, options.layers.split(",")))
    if unknown := set(layers) - STYLES:
        raise UsageError(f"--layers {unknown.pop()} is not one of: {', '.join(sorted(STYLES))}")
    return layers


def config_of(
    options: argparse.Namespace,
    progress: Callable[[str], None],
    arguments: Callable[[], Sequence[str]] = tuple,
) -> Config:
    """The options of a conversion.

    **Arguments:**

    - `arguments`: returns the names of the model's arguments.

    **Raises:** `UsageError` for an unknown option or an invalid value.
    """
    values: dict[str, Any] = {}
    if options.sizes:
        values["sizes"] = _sizes(options.sizes, arguments)
    for name in ("host_ops", "platform"):
        if (value := getattr(options, name)) is not None:
            values[name] = value
    for text in options.config:
        name, equals, value = text.partition("=")
        option = _known(name.strip().replace("-", "_"), bool(equals))
        parsed = _value(value.strip())
        several = isinstance(getattr(Config, option), tuple)
        values[option] = (parsed,) if several and isinstance(parsed, str) else parsed
    try:
        config = Config(**values, progress=progress)
        patterns.check_names(config)
        return config
    except ValueError as error:
        raise UsageError(str(error)) from error


def _sizes(texts: Sequence[str], arguments: Callable[[], Sequence[str]]) -> dict[str, str]:
    """Sizes by argument, as in `x: batch 3`, or of the only argument."""
    found: dict[str, str] = {}
    for text in texts:
        name, named, sizes = text.rpartition(":")
        if not named:
            names = arguments()
            if len(names) != 1:
                raise UsageError(
                    f"--sizes {text!r}: name the argument, as in '{(*names, 'x')[0]}: {text}'; "
                    f"there are {', '.join(names) or 'none'}"
                )
            (name,) = names
        if name.strip() in found:
            raise UsageError(f"--sizes: the argument {name.strip()} is given twice")
        found[name.strip()] = " ".join(sizes.split())
    return found


def _known(name: str, given: bool) -> str:
    """The name of an option that can be given as text."""
    names = [f.name for f in dataclasses.fields(Config) if f.name not in _OF_PYTHON]
    if not given:
        raise UsageError(f"--config {name}: give a value, as in {name}=...")
    if name not in names:
        raise UsageError(f"--config {name} is not one of: {', '.join(names)}")
    return name


_WORDS: Mapping[str, object] = {"true": True, "false": False, "none": None}


def _value(text: str) -> object:
    """A number, a bool, a word, or comma-separated words."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if "," in text:
        return tuple(part.strip() for part in text.split(",") if part.strip())
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
