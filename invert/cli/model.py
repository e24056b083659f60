"""The model given to a command: its container and its functions."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from invert import _api, _containers
from invert._config import Config
from invert._entry import EntryPoint
from invert._errors import SignatureError
from invert.cli.options import UsageError, config_of


@dataclasses.dataclass(frozen=True)
class Model:
    """A container on disk.

    **Arguments:**

    - `signature`: the function to take; `None` for all.
    - `inputs`, `outputs`: names of the tensors of a bare graph.
    """

    path: Path
    kind: _containers.Kind
    signature: str | None = None
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()

    @classmethod
    def of(cls, path: str, options: argparse.Namespace, *, shared: bool = False) -> Model:
        """The model at `path`, with the options that select a model.

        **Arguments:**

        - `shared`: whether the options are for another model too, so that names of tensors are
            ignored where they do not apply.

        **Raises:** `MalformedModelError` if it is not a model; `UsageError` if an option does not
        apply to this kind of model.
        """
        inputs, outputs = _names(options.inputs), _names(options.outputs)
        place = _containers.place_of(path)
        named = bool(inputs or outputs)
        kind = _containers.kind_of(place, named=named)
        if named and kind != "graph":
            if not shared:
                raise UsageError(
                    f"--inputs and --outputs are for bare graphs, and {path} is a "
                    f"{_containers.NAMES[kind]}"
                )
            inputs = outputs = ()
        if options.signature is not None and kind in ("graph", "saved"):
            taken = "has one function" if kind == "graph" else "is taken as a whole"
            raise UsageError(f"--signature: {path} is a {_containers.NAMES[kind]}, which {taken}")
        return cls(place, kind, options.signature, inputs, outputs)

    @classmethod
    def loaded(
        cls, options: argparse.Namespace, progress: Callable[[str], None]
    ) -> tuple[Model, Any]:
        """The model of a command and its module, as `of` and `load` do."""
        progress(f"reading {options.model}")
        model = cls.of(options.model, options)
        return model, model.load(config_of(options, progress, model.arguments))

    @property
    def kind_name(self) -> str:
        return _containers.NAMES[self.kind]

    def load(self, config: Config) -> Any:
        """The module: a `Module`, a `Methods`, or the contents of a saved directory."""
        if self.kind != "graph":
            return _api.load(self.path, signature=self.signature, config=config)
        inputs, outputs = self._tensors(guess=False)
        return _api.convert_graphdef(self.path, inputs, outputs, config=config)

    def arguments(self) -> list[str]:
        """The names of the arguments of all its functions.

        **Raises:** `InvertError` if the container cannot be read.
        """
        readers, _ = self.functions(Config(verify=False))
        entries = [read() for read in readers.values()]
        return list(dict.fromkeys(spec.name for entry in entries for spec in entry.specs))

    def functions(
        self, config: Config
    ) -> tuple[Mapping[str, Callable[[], EntryPoint]], Sequence[str]]:
        """Readers of the functions that a conversion would take, convertible or not.

        **Returns:** the readers by name, and the names of other functions.

        **Raises:** `InvertError` if the container cannot be read.
        """
        if self.kind == "saved_model":
            from invert.frontends import saved_model

            entries = saved_model.entry_points(
                self.path, signature=self.signature, config=config, strict=False
            )
            names = [self.signature] if self.signature else saved_model.chosen_names(entries)
            others = [name for name in entries if name not in names]
            return {name: lambda name=name: entries[name] for name in names}, others
        if self.kind == "graph":
            from invert.frontends import graph_file, graphdef

            inputs, outputs = self._tensors(guess=True)
            graph, stored = graph_file.read(self.path)
            entry = graphdef.entry_point(
                graph, inputs, outputs, stored=stored, config=config, strict=False
            )
            return {entry.name: lambda: entry}, ()
        points = _containers.entry_points(
            self.path, self.kind, config, signature=self.signature, strict=False
        )
        return {name: lambda name=name: points[name] for name in points}, ()

    def _tensors(self, *, guess: bool) -> tuple[Sequence[str], Sequence[str]]:
        """Inputs and outputs of a graph: those named, otherwise a guess.

        **Raises:** `SignatureError` if they are not named and `guess` is false.
        """
        if self.inputs and self.outputs:
            return self.inputs, self.outputs
        from invert.frontends import graph_file, graphdef

        inputs, outputs = graphdef.ends(graph_file.read(self.path)[0])
        if not guess or not outputs:
            raise SignatureError(
                f"{self.path} is a graph, which does not name its inputs and outputs",
                remedy=(
                    f"Name them: --inputs {','.join(inputs) or 'NAME:0'} "
                    f"--outputs {','.join(outputs) or 'NAME:0'}"
                ),
            )
        return self.inputs or inputs, self.outputs or outputs


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(name for part in (text or "").split(",") if (name := part.strip()))
