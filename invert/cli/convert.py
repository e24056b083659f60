"""`invert convert`: writes a model's source, weights and a report."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from invert._errors import plain
from invert._report import Report
from invert.cli import check
from invert.cli.inspect import bytes_text
from invert.cli.model import Model
from invert.cli.options import UsageError, layers_of
from invert.cli.terminal import Progress
from invert.modules import save
from invert.modules.methods import Methods
from invert.modules.module import Module


def run(options: argparse.Namespace) -> int:
    """Convert and save; 6 if `--verify` finds a difference."""
    target = Path(options.output)
    if (target / "saved_model.pb").exists():
        raise UsageError(f"{target} holds a SavedModel; give another directory")
    if target.exists() and not target.is_dir():
        raise UsageError(f"{target} is a file; give a directory")
    try:
        save.byte_count(options.max_shard_size)
    except ValueError as error:
        raise UsageError(f"--max-shard-size: {error}") from error
    layers = layers_of(options)
    comparisons = check.Comparisons()
    with Progress(options.progress) as progress:
        model, module = Model.loaded(options, progress)
        progress("writing the source")
        if layers and not isinstance(module, (Module, Methods)):
            raise UsageError(
                f"--layers: {model.path} was written by invert, so its layers are fixed; give the "
                "model that it was converted from"
            )
        save.save(
            module,
            target,
            max_shard_size=options.max_shard_size,
            layers=layers,
            typecheck=options.typecheck,
        )
        lines = [plain(str(report)) for report in _reports(module).values()]
        lines += [f"  note: {plain(text)}" for text in _messages(module, layers)]
        if isinstance(module, Methods):
            for name, error in module.failed.items():
                lines.append(f"{plain(name)}: not converted: {plain(str(error))}")
        if options.verify:
            progress("comparing with the original")
            comparisons = check.check(model, module, target, _reports(module))
            lines += comparisons.lines
    written = [
        path
        for path in sorted(target.iterdir())
        if path.name in ("model.py", "README.md") or path.name.startswith("weights")
    ]
    if options.json:
        print(json.dumps(_data(model, module, layers, comparisons, written), indent=2))
    else:
        lines += [f"wrote {path} ({bytes_text(path.stat().st_size)})" for path in written]
        print("\n".join(lines))
    if comparisons.failures:
        raise check.Difference("\n".join(comparisons.failures))
    return 0


def _data(
    model: Model,
    module: object,
    layers: tuple[str, ...],
    found: check.Comparisons,
    written: Sequence[Path],
) -> dict[str, object]:
    """The outcome of the command, as data for JSON."""
    failed = module.failed if isinstance(module, Methods) else {}
    return {
        "path": str(model.path),
        "kind": model.kind_name,
        "functions": {
            name: dataclasses.asdict(report) | {"equations": report.equations}
            for name, report in _reports(module).items()
        },
        "not_converted": {name: str(error) for name, error in failed.items()},
        "notes": list(_messages(module, layers)),
        "verified": dataclasses.asdict(found),
        "wrote": [{"path": str(path), "bytes": path.stat().st_size} for path in written],
    }


def _reports(module: object) -> Mapping[str, Report]:
    if isinstance(module, Methods):
        return module.reports
    return {module.report.entry: module.report} if isinstance(module, Module) else {}


def _messages(module: object, layers: tuple[str, ...]) -> tuple[str, ...]:
    own = isinstance(module, (Module, Methods))
    return module.emit(layers=layers).messages if own else ()
