"""`invert source`: the Python source of a model on standard output."""

from __future__ import annotations

import argparse

from invert.cli.model import Model
from invert.cli.options import UsageError, layers_of
from invert.cli.terminal import Progress
from invert.modules.methods import Methods
from invert.modules.module import Module


def run(options: argparse.Namespace) -> int:
    """Print the source; notes about it go to standard error."""
    layers = layers_of(options)
    with Progress(options.progress) as progress:
        model, module = Model.loaded(options, progress)
        if not isinstance(module, (Module, Methods)):
            raise UsageError(
                f"{model.path} was written by invert: its source is model.py in that directory"
            )
        progress("writing the source")
        emission = module.emit(
            layers=layers, typecheck=options.typecheck, loader=not options.no_loader
        )
    print(emission.source, end="")
    return 0
