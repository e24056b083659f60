"""`invert inspect`: what a model contains, and how it would be converted."""

from __future__ import annotations

import argparse
import ast
import collections
import dataclasses
import json
import math
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from invert._config import Config
from invert._entry import ArgSpec, EntryPoint, OpUse
from invert._errors import (
    InvertError,
    MalformedModelError,
    Problem,
    UnsupportedOpError,
    plain,
    unreadable,
)
from invert.cli.model import Model
from invert.cli.options import UsageError
from invert.cli.terminal import Progress, coloured
from invert.modules import save
from invert.modules.methods import Methods
from invert.modules.signatures import state_and_key

# Headings of the routes, in the order of the listing.
_ROUTES = {
    "rule": "with a rule of their own",
    "host": "run by TensorFlow on the host, at conversion",
    "opaque": "custom calls that stay opaque unless a pattern recognizes them",
    "none": "that cannot be converted",
}
_WIDTH = 90  # of the lines that list ops
_MOST_PLACES = 20  # random and host ops listed in text; JSON has all


@dataclasses.dataclass(frozen=True)
class InspectedFunction:
    """Facts about a function before conversion.

    **Arguments:**

    - `call`: the call of the resulting module.
    - `ops`: number of ops by route and name; `random`, `host`: their locations.
    - `problems`: reasons why it cannot be converted.
    - `outcome`: the result of a conversion, in lines.
    """

    name: str
    source: str = ""
    arguments: tuple[dict[str, str], ...] = ()
    results: tuple[str, ...] = ()
    call: str = ""
    ops: Mapping[str, Mapping[str, int]] = dataclasses.field(default_factory=dict)
    random: tuple[dict[str, str], ...] = ()
    host: tuple[dict[str, str], ...] = ()
    variables: tuple[dict[str, object], ...] = ()
    problems: tuple[dict[str, str], ...] = ()
    outcome: tuple[str, ...] = ()

    @property
    def converts(self) -> bool:
        return not self.problems


def run(options: argparse.Namespace) -> int:
    """Print a model's contents; return 4 if a function cannot be converted."""
    with Progress(options.progress) as progress:
        progress(f"reading {options.model}")
        model = Model.of(options.model, options)
        if model.kind == "saved":
            if options.graph:
                raise UsageError(
                    f"--graph: {model.path} was written by invert; give the model that it was "
                    "converted from"
                )
            return _saved(model, as_json=options.json)
        functions, others = [], ()
        try:
            readers, others = model.functions(Config(verify=False))
        except UnsupportedOpError as error:  # ops that cannot be raised
            functions = [InspectedFunction(model.path.name, problems=_problems(error))]
        else:
            for name, reader in readers.items():
                progress(f"inspecting {name}")
                functions.append(_function(name, reader))
        if options.graph:
            _draw(model, options.graph, Config(progress=progress))
    found = {
        "path": str(model.path),
        "kind": model.kind_name,
        "bytes": _size(model.path),
        "functions": [dataclasses.asdict(f) | {"converts": f.converts} for f in functions],
        "others": list(others),
    }
    if options.graph:
        found["graph"] = options.graph
    print(json.dumps(found, indent=2) if options.json else _text(found, functions))
    if options.graph and not options.json:
        print(f"\nwrote {options.graph}")
    return 0 if all(f.converts for f in functions) else 4


def _draw(model: Model, path: str, config: Config) -> None:
    module = model.load(config)
    if isinstance(module, Methods) and len(module.reports) > 1:
        names = ", ".join(map(plain, module.reports))
        raise UsageError(f"--graph: choose one function by --signature: {names}")
    module.graph().save(path)


def _function(name: str, reader: Callable[[], EntryPoint]) -> InspectedFunction:
    try:
        entry = reader()
        ops = list(entry.ops())
    except UnsupportedOpError as error:
        return InspectedFunction(name, problems=_problems(error))
    except InvertError as error:
        problem = Problem(name, error.reason, remedy=error.remedy)
        return InspectedFunction(name, problems=(_problem(problem),))
    counts: dict[str, collections.Counter[str]] = {}
    for use in ops:
        counts.setdefault(use.route, collections.Counter())[use.op] += 1
    problems = tuple(map(_problem, entry.problems))
    return InspectedFunction(
        name=name,
        source=entry.source,
        arguments=tuple(_arguments(entry)),
        results=tuple(map(type_text, entry.results or ())),
        call=_call(entry),
        ops={r: dict(sorted(counts[r].items())) for r in _ROUTES if r in counts},
        random=_places(u for u in ops if u.draws),
        host=_places(u for u in ops if u.route == "host"),
        variables=tuple(_variables(entry)),
        problems=problems,
        outcome=tuple(_outcome(entry, counts)),
    )


def _arguments(entry: EntryPoint) -> Iterable[dict[str, str]]:
    for name, spec in entry.named_specs():
        yield {"name": name, "type": type_text(spec)}


def type_text(spec: ArgSpec) -> str:
    """`float32[?, 3]`: unnamed open sizes are question marks."""
    sizes = ("?" if n is None else str(n) for n in spec.shape)
    return f"{spec.dtype}[{', '.join(sizes)}]"


def _call(entry: EntryPoint) -> str:
    state, key = state_and_key(entry, False)
    arguments = [*entry.arg_names, *([state] if state else [])]
    arguments += [f"{n}={n}" for n in (*entry.kwargs, *([key] if key else []))]
    return f"{'out, state' if state else 'out'} = module({', '.join(arguments)})"


def _variables(entry: EntryPoint) -> Iterable[dict[str, object]]:
    for i, param in enumerate(entry.params):
        yield {
            "name": param.name,
            "type": type_text(ArgSpec(param.name, param.value.shape, param.value.dtype)),
            "bytes": param.value.nbytes,
            "trainable": param.trainable,
            "stated": param.stated,
            "assigned": i in entry.assigned,
        }


def _outcome(entry: EntryPoint, counts: Mapping[str, collections.Counter[str]]) -> Iterable[str]:
    if entry.problems:
        count = len(entry.problems)
        yield f"cannot be converted: {count} problem{'s' if count > 1 else ''}, listed above"
        return
    yield f"converts; it is called as `{_call(entry)}`"
    if entry.assigned:
        yield f"{len(entry.assigned)} variables that it assigns become an equinox.nn.State"
    if entry.draws:
        yield "it draws random numbers and takes a key"
    if any(not isinstance(n, int) for spec in entry.specs for n in spec.shape):
        yield "sizes are open: it is recovered once for all of them, if one program covers them"
    if found := counts.get("host"):
        yield f"run at conversion, by TensorFlow: {_listed(found)}"
    if found := counts.get("opaque"):
        yield f"run only where registered, unless a pattern recognizes them: {_listed(found)}"
    yield from entry.notes()


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{n} x {op}" for op, n in sorted(counts.items()))


def _problems(error: UnsupportedOpError) -> tuple[dict[str, str], ...]:
    return tuple(map(_problem, error.problems))


def _problem(problem: Problem) -> dict[str, str]:
    return {k: plain(v) for k, v in dataclasses.asdict(problem).items()}


def _places(uses: Iterable[OpUse]) -> tuple[dict[str, str], ...]:
    return tuple({"op": use.op, "location": plain(use.location)} for use in uses)


def _size(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(p.stat().st_size for p in files if p.is_file())


def bytes_text(count: float) -> str:
    """`1.5 MB`."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            break
        count /= 1000
    return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"


def _text(found: Mapping[str, Any], functions: Sequence[InspectedFunction]) -> str:
    lines = [f"{found['path']}: {found['kind']}, {bytes_text(found['bytes'])}"]
    for function in functions:
        lines += ["", *_function_lines(function)]
    if found["others"]:
        lines += ["", "others, for --signature:", *(f"  {n}" for n in found["others"])]
    return "\n".join(map(_dressed, lines))


def _dressed(line: str) -> str:
    """A line for a terminal: names of functions are bold, problems red."""
    text = plain(line)
    if text.startswith("  cannot be converted"):
        return coloured(text, "red")
    if text.endswith(":") and text.startswith("  ") and text[2:3].strip():
        return coloured(text, "dim")
    return text if text.startswith(" ") else coloured(text, "bold")


def _function_lines(function: InspectedFunction) -> Iterable[str]:
    source = function.source
    yield f"{function.name}{f' ({source})' if source else ''}"
    if function.arguments or function.call:
        yield from _section("arguments", [f"{a['name']}: {a['type']}" for a in function.arguments])
    yield from _section("results", function.results)
    if function.variables:
        yield from _state(function.variables)
    for route, counts in function.ops.items():
        total = sum(counts.values())
        yield from _section(f"ops {_ROUTES[route]} ({total})", _wrapped(counts))
    for title, places in (("random ops", function.random), ("host ops", function.host)):
        shown = [f"{p['op']} at {p['location']}" for p in places[:_MOST_PLACES]]
        rest = len(places) - len(shown)
        yield from _section(title, [*shown, *([f"and {rest} more"] if rest else [])])
    for problem in function.problems:
        yield f"  cannot be converted: {problem['op']}: {problem['reason']}"
        for what in ("location", "remedy"):
            if problem[what]:
                yield f"    {what}: {problem[what]}"
    yield from _section("on conversion", function.outcome)


def _section(title: str, lines: Sequence[str]) -> Iterable[str]:
    if lines:
        yield f"  {title}:"
        yield from (f"    {line}" for line in lines)


def _state(variables: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    count = sum(math.prod(_shape(v["type"])) for v in variables)
    size = bytes_text(sum(v["bytes"] for v in variables))
    lines = []
    for v in variables:
        marks = [] if v["trainable"] else ["not trained"]
        marks += [] if v["stated"] else ["trained or not: not stated"]
        marks += ["assigned"] if v["assigned"] else []
        said = f" ({', '.join(marks)})" if marks else ""
        lines.append(f"{v['name']}: {v['type']}{said}")
    yield from _section(f"variables ({len(lines)}; {count:,} numbers, {size})", lines)


def _shape(text: str) -> list[int]:
    return [int(n) for n in text[text.index("[") + 1 : -1].split(",") if n.strip()]


def _wrapped(counts: Mapping[str, int]) -> list[str]:
    lines = [""]
    for op, n in counts.items():
        word = f"{n} x {op}"
        if lines[-1] and len(lines[-1]) + len(word) > _WIDTH:
            lines.append("")
        lines[-1] += f", {word}" if lines[-1] else word
    return lines


def _saved(model: Model, *, as_json: bool) -> int:
    """A directory written by `invert.save`; its code is read but not run."""
    text = (model.path / "model.py").read_text(encoding="utf-8", errors="replace")
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise MalformedModelError(
            f"{model.path / 'model.py'} is not valid Python: {error}"
        ) from error
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    calls = [m for m in (classes[-1].body if classes else []) if isinstance(m, ast.FunctionDef)]
    signatures = [
        f"{m.name}({ast.unparse(m.args)})" + (f" -> {ast.unparse(m.returns)}" if m.returns else "")
        for m in calls
        if not m.name.startswith("_") or m.name == "__call__"
    ]
    found = {
        "path": str(model.path),
        "kind": model.kind_name,
        "bytes": _size(model.path),
        "origin": ast.get_docstring(tree) or "",
        "classes": [node.name for node in classes],
        "signatures": signatures,
        "weights": _weights(model.path),
    }
    if as_json:
        print(json.dumps(found, indent=2))
        return 0
    lines = [f"{found['path']}: {found['kind']}, {bytes_text(found['bytes'])}"]
    lines += [f"  {line}" for line in found["origin"].splitlines()]
    lines += _section("signatures", signatures)
    lines += _section("classes", [", ".join(found["classes"])])
    lines += _section("weights", [f"{w['name']}: {w['type']}" for w in found["weights"]])
    print("\n".join(map(_dressed, lines)))
    return 0


def _weights(directory: Path) -> list[dict[str, str]]:
    """Names and types of the arrays, from the headers of their files."""
    from safetensors import SafetensorError, safe_open

    found = []
    for path in save.weight_files(directory):
        try:
            with safe_open(path, framework="numpy") as file:
                kinds = file.metadata() or {}
                for name in file.keys():  # noqa: SIM118  safe_open is not a mapping
                    part = file.get_slice(name)
                    shape = list(part.get_shape())
                    if name in kinds:
                        shape.pop()
                    kind = kinds.get(name, part.get_dtype())
                    found.append({"name": name, "type": f"{kind}{shape}"})
        except (SafetensorError, OSError, struct.error) as error:
            raise unreadable(path, error) from error
    return found
