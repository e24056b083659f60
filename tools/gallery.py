"""Writes docs/gallery.md: each script of examples/gallery, and the source recovered from its model.

`python -m tools.gallery` writes the page. A model whose packages are missing keeps the text that
the page has for it. A test compares the page with what the scripts make.
"""

from __future__ import annotations

import ast
import dataclasses
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SCRIPTS = ROOT / "examples" / "gallery"
PAGE = ROOT / "docs" / "gallery.md"

# The scripts in the order of the page, with definitions that are left out of their texts.
MODELS: dict[str, tuple[str, ...]] = {
    "keras_transformer": (),
    "resnet": (),
    "flax_jax2tf": (),
    "lstm": (),
    "vae": ("philox4x32", "philox4x32_2", "StatelessRandomNormal"),
    "orbax": (),
    "torch_stablehlo": (),
    "tf1_graph": (),
    "newton": (),
}

_INTRODUCTION = """\
# Gallery

Each model is made by the script on the left, which ends with a call of `invert`. On the right is
what `module.source` says, without its imports and without the reader of the weights. Nothing is
edited: `make pages` runs the scripts in `examples/gallery` and writes this page, and a test
compares the two.
"""


@dataclasses.dataclass(frozen=True)
class Piece:
    """A model of the gallery.

    **Arguments:**

    - `before`: the script that makes it; `after`: the recovered source.
    """

    name: str
    title: str
    text: str
    before: str
    after: str
    certificate: str


def piece(name: str) -> Piece:
    """Runs a script of the gallery.

    **Raises:** `ImportError` where a package of it is not installed.
    """
    path = SCRIPTS / f"{name}.py"
    script = path.read_text(encoding="utf-8")
    first = ast.parse(script).body[0]
    title, _, text = (ast.get_docstring(ast.parse(script)) or "").partition("\n\n")
    before = "\n".join(script.splitlines()[first.end_lineno :]).strip()
    module = runpy.run_path(str(path))["module"]
    after = shown(module.emit(loader=False).source, MODELS[name])
    return Piece(name, title, text, before, after, str(module.report.certificate))


def shown(source: str, left_out: tuple[str, ...]) -> str:
    """The definitions of a source; in the place of those left out stands what they were."""
    lines = source.splitlines()
    parts, cut = [], 0
    for node in ast.parse(source).body:
        if not isinstance(node, ast.ClassDef | ast.FunctionDef):
            continue
        begin = min([node.lineno, *(d.lineno for d in node.decorator_list)]) - 1
        count = (node.end_lineno or begin) - begin
        if node.name in left_out:
            cut += count
            continue
        if cut:
            parts.append(f"# {cut} lines are left out here: TensorFlow's random numbers.")
        cut = 0
        parts.append("\n".join(lines[begin : begin + count]))
    return "\n\n\n".join(parts)


def section(piece: Piece) -> str:
    """The part of the page for a model."""
    return f"""\
## {piece.title}

{piece.text}

Certificate: {piece.certificate}.

<div class="grid gallery" markdown>

```python title="examples/gallery/{piece.name}.py"
{piece.before}
```

```python title="module.source"
{piece.after}
```

</div>
"""


def sections(page: str) -> dict[str, str]:
    """The parts of a page by the names of their scripts."""
    parts = [f"## {part}" for part in page.split("\n## ")[1:]]
    return {
        name: part.rstrip("\n") + "\n"
        for part in parts
        for name in MODELS
        if f'title="examples/gallery/{name}.py"' in part
    }


def _written() -> Iterator[str]:
    yield _INTRODUCTION
    stored = sections(PAGE.read_text(encoding="utf-8")) if PAGE.exists() else {}
    for name in MODELS:
        try:
            yield section(piece(name))
        except ImportError as error:
            if name not in stored:
                raise
            print(f"{name}: as stored, since {error}", file=sys.stderr)
            yield stored[name]


def main() -> int:
    PAGE.write_text("\n".join(_written()), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
