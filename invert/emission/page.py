"""The `README.md` saved with a module: what, where from, how to use."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

from invert._entry import EntryPoint
from invert.emission.layers.stack import Nested, leaves_of
from invert.emission.python.naming import comment, wrapped_comment


def page_of(
    entries: Mapping[str, tuple[EntryPoint, str]],
    title: str,
    source: str,
    cls: str,
    names: Mapping[str, Nested[str]],
    messages: Sequence[str],
) -> str:
    """The text of `README.md`.

    **Arguments:**

    - `entries`: for each method, its entry point and the certificate of its recovery.
    - `title`: the name of the model.
    - `source`: the text of the module; `cls`: its outermost class.
    - `names`: the names of the arrays in the container.
    """
    entry = next(iter(entries.values()))[0]
    origin = entry.source if entry.source.startswith("from ") else f"from {entry.source}"
    use = ["import model", "", f"{cls.lower()} = model.load()"]
    if "eqx.nn.StateIndex" in source:
        use[:1] = ["import equinox as eqx", "", "import model"]
        use.append(f"state = eqx.nn.State({cls.lower()})")
    lines = [
        f"# {cls}",
        "",
        f"`{comment(title)}`, recovered by `invert` {comment(origin)}.",
        "",
        "```python",
        *use,
        "```",
        "",
        "`model.py` needs jax, equinox, jaxtyping and safetensors.",
        "",
        "## Signature",
        "",
        "```python",
        *(_signature(source, cls, method) for method in entries),
        "```",
        "",
        "## How sure it is",
        "",
    ]
    for method, (_, certificate) in entries.items():
        of = "" if len(entries) == 1 else f" of `{method}`"
        lines += wrapped_comment(f"Certificate of the recovery{of}: {certificate or 'none'}.")
    if entry.outside:
        lines += wrapped_comment(f"Outside of the certificate: {entry.outside}.")
    lines += ["", "The text of `model.py` was traced and compared with the recovered program: "]
    lines[-1] += "they are equal."
    lines.append("")
    for message in messages:
        first, *rest = wrapped_comment(message)
        lines += [f"- {first}", *(f"  {line}" for line in rest)]
    if messages:
        lines.append("")
    lines += _weights([entry for entry, _ in entries.values()], names)
    return "\n".join(lines) + "\n"


def _weights(entries: Sequence[EntryPoint], names: Mapping[str, Nested[str]]) -> list[str]:
    """The table of arrays: fields, names in the container, whether they train."""
    trained = {
        p.name: ("yes" if p.trainable else "no") if p.stated else "not stated"
        for entry in entries
        for p in entry.params
    }
    lines = ["## Weights", "", "| field | variable | trained |", "|---|---|---|"]
    for field, variables in names.items():
        several = leaves_of(variables)
        flags = {trained.get(n, "a constant") for n in several}
        flag = flags.pop() if len(flags) == 1 else "some"
        first, last = (f"`{comment(n).replace('|', ' ')}`" for n in (several[0], several[-1]))
        text = first if len(several) == 1 else f"{first} to {last}, {len(several)} in all"
        lines.append(f"| `{field}` | {text} | {flag} |")
    return lines


def _signature(source: str, cls: str, method: str) -> str:
    """`def __call__(...)` of the outermost class."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef) and node.name == cls:
            for part in node.body:
                if isinstance(part, ast.FunctionDef) and part.name == method:
                    returns = f" -> {ast.unparse(part.returns)}" if part.returns else ""
                    return f"def {method}({ast.unparse(part.args)}){returns}"
    raise AssertionError(f"the text has no {cls}.{method}")
