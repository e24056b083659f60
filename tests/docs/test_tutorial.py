"""The tutorial runs, and its page and notebook show its code and output."""

from __future__ import annotations

import dataclasses
import json

from tools import tutorial


def test_page_and_notebook_are_in_step() -> None:
    parts = tutorial.run(tutorial.cells(tutorial.SCRIPT.read_text(encoding="utf-8")))
    # Digits of the losses may differ from machine to machine; the script checks them itself.
    stored = json.loads(tutorial.NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    assert [c["cell_type"] for c in stored] == [p.kind for p in parts]
    parts = [
        dataclasses.replace(p, output="".join(c["outputs"][0]["text"]))
        if p.output.startswith("loss")
        else p
        for p, c in zip(parts, stored, strict=True)
    ]
    assert any(p.output.startswith("loss") for p in parts)
    assert any(p.output == "True" for p in parts)
    assert tutorial.page(parts) == tutorial.PAGE.read_text(encoding="utf-8"), "run `make pages`"
    assert tutorial.notebook(parts) == tutorial.NOTEBOOK.read_text(encoding="utf-8")


def test_cells() -> None:
    script = "# %% [markdown]\n# # Title\n#\n# Text.\n\n# %%\nprint(1)\n"
    text, code = tutorial.run(tutorial.cells(script))
    assert (text.kind, text.text) == ("markdown", "# Title\n\nText.")
    assert (code.text, code.output) == ("print(1)", "1")
    assert tutorial.page([text, code]) == (
        "# Title\n\nText.\n\n```python\nprint(1)\n```\n\n```text\n1\n```\n"
    )
