"""Writes docs/gallery.md: each script of examples/gallery, and the source recovered from its model.

`python -m tools.gallery` writes the page, and the picture and the excerpts of the front page. A
model whose packages are missing keeps the text that the page has for it. A test compares all of
them with what the scripts make.
"""

from __future__ import annotations

import ast
import dataclasses
import re
import runpy
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
SCRIPTS = ROOT / "examples" / "gallery"
PAGE = ROOT / "docs" / "gallery.md"
FRONT = ROOT / "docs" / "index.md"
PICTURE = ROOT / "docs" / "assets" / "front.svg"

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
    "training_step": (),
    "newton": (),
}

_INTRODUCTION = """\
# Gallery

Each model is made by the script on the left, which ends with a call of `invert`. On the right is
what `module.source` says, without its imports and the function that reads the weights. Nothing is
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
    graph: str


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
    certificate = str(module.report.certificate)
    return Piece(name, title, text, before, after, certificate, module.graph(depth=1).svg)


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
    yield _HEAD + _INTRODUCTION
    stored = sections(PAGE.read_text(encoding="utf-8")) if PAGE.exists() else {}
    for name in MODELS:
        try:
            yield section(piece(name))
        except ImportError as error:
            if name not in stored:
                raise
            print(f"{name}: as stored, since {error}", file=sys.stderr)
            yield stored[name]


# What the front page shows: definitions of the transformer before and after.
_SHOWN = (("Block",), ("Attention", "Block", "Transformer"))
_HEAD = """\
---
hide:
  - navigation
---

"""


def excerpt(text: str, names: Sequence[str]) -> str:
    """The definitions with these names."""
    lines = text.splitlines()
    nodes = [n for n in ast.parse(text).body if getattr(n, "name", "") in names]
    parts = ["\n".join(lines[n.lineno - 1 : n.end_lineno]) for n in nodes]
    return "\n\n\n".join(parts)


def front(page: str, piece: Piece) -> str:
    """The front page with the blocks of a piece in the place of those between its titles."""
    for title, text, names in (
        ("Keras", piece.before, _SHOWN[0]),
        ("module.source", piece.after, _SHOWN[1]),
    ):
        begin = page.index(f'```python title="{title}"\n')
        begin = page.index("\n", begin) + 1
        page = page[:begin] + excerpt(text, names) + "\n" + page[page.index("```", begin) :]
    return page


_CARD = """\
<g class="card"><rect width="250" height="182" rx="6"/>
<text class="name" x="14" y="24">saved_model/</text>
<text x="14" y="46">saved_model.pb</text>
<text x="14" y="62">variables/</text>
<text class="more" x="14" y="92">What JAX sees, by call_tf:</text>
<text x="14" y="116">{ lambda ; a:i32[2,5]. let</text>
<text x="41" y="132">b:f32[2,3] = call_tf[...] a</text>
<text x="28" y="148">in (b,) }</text>
</g>
"""


def picture(piece: Piece) -> str:
    """The picture of the front page: one operation on the left, its layers on the right."""
    inner = piece.graph.strip()
    width, height = (float(n) for n in re.findall(r'(?:width|height)="([\d.]+)"', inner)[:2])
    middle = height / 2
    inner = inner.replace("<svg ", '<svg x="400" y="0" ', 1)
    whole = 400 + width
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="invert" width="{whole:g}" '
        f'height="{height:g}" viewBox="0 0 {whole:g} {height:g}">\n'
        f'<g transform="translate(0,{middle - 91:g})">\n{_CARD}</g>\n'
        f'<text class="name" x="325" y="{middle - 12:g}" text-anchor="middle">invert.load</text>\n'
        f'<path d="M262,{middle:g} L388,{middle:g}" marker-end="url(#invert-arrow)"/>\n'
        f"{inner}\n</svg>\n"
    )


def main() -> int:
    PAGE.write_text("\n".join(_written()), encoding="utf-8")
    first = piece("keras_transformer")
    FRONT.write_text(front(FRONT.read_text(encoding="utf-8"), first), encoding="utf-8")
    PICTURE.write_text(picture(first), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
