"""What a type checker makes of the public names."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# The program of a user, and what the checker says of a line: a type, or that it is an error.
LINES = {
    "module = invert.from_exported(b'', config=invert.Config())": None,
    "reveal_type(module)": "Module",
    "reveal_type(invert.convert(f))": "Module",
    "reveal_type(invert.roundtrip(f, 1.0))": "Module",
    "reveal_type(invert.convert_graphdef(b'', [], []))": "Module",
    "reveal_type(invert.optimize(module))": "Module",
    "reveal_type(invert.testing.assert_roundtrip(f, 1.0))": "Module",
    "reveal_type(invert.rewrite(f))": "(x: float) -> float",
    "reveal_type(module.source)": "str",
    "reveal_type(module.report)": "Report",
    "reveal_type(module.report.certificate)": "Certificate",
    "reveal_type(module.graph())": "Graph",
    "invert.convrt(f)": "error",
    "invert.Config(platfrom='gpu')": "error",
    "invert.optimize(module, 'tpu')": "error",
}
HEAD = "import invert\nimport invert.testing\ndef f(x: float) -> float: return x\n"


def test_a_strict_checker_knows_the_public_names(tmp_path: Path) -> None:
    pytest.importorskip("pyright")
    (tmp_path / "program.py").write_text(HEAD + "\n".join(LINES))
    settings = {"typeCheckingMode": "strict", "extraPaths": [str(ROOT)], "include": ["program.py"]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "pyright", "--outputjson", "-p", str(tmp_path)]
    command += ["--pythonpath", sys.executable]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    found: dict[str, str] = {}
    for each in json.loads(done.stdout)["generalDiagnostics"]:
        line = [*HEAD.splitlines(), *LINES][each["range"]["start"]["line"]]
        revealed = each["severity"] == "information"
        found[line] = each["message"].split(" is ", 1)[1].strip('"') if revealed else "error"
    assert found == {line: said for line, said in LINES.items() if said is not None}


def test_the_package_says_that_it_is_typed() -> None:
    assert (ROOT / "invert" / "py.typed").is_file()
