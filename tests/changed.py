"""The test files for everything that changed since main, the nearest first.

`make quick` runs them until its time is up. A test file is near a module if it has the module's
name, then if it imports the module, then if its folder mirrors the module's folder.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from tests.tf.ops.exceptions import EXCEPTIONS

ROOT = Path(__file__).resolve().parent.parent
# Holds for every change.
_ALWAYS = "tests/test_architecture.py"


def _git(*args: str) -> list[str]:
    done = subprocess.run(("git", *args), cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.splitlines() if done.returncode == 0 else []


def _base() -> str:
    return next(iter(_git("merge-base", "HEAD", "main")), "HEAD")


def changed_files() -> list[str]:
    """Paths that differ from main, or are not committed, relative to the repository."""
    new = _git("ls-files", "-o", "--exclude-standard")
    return sorted({*_git("diff", "--name-only", _base()), *new})


def nearest(changed: Iterable[str], tests: Iterable[str], text: dict[str, str]) -> list[str]:
    """The test files for changed files, the nearest first.

    **Arguments:**

    - `changed`, `tests`: paths relative to the repository.
    - `text`: the source of each test file.
    """
    distance: dict[str, int] = {}
    for path in changed:
        for test in tests:
            near = _distance(path, test, text[test])
            if near is not None:
                distance[test] = min(near, distance.get(test, near))
    return sorted(distance, key=lambda test: (distance[test], test))


def _distance(path: str, test: str, text: str) -> int | None:
    """How near a test file is to a changed file; `None`: not at all."""
    if path == test:
        return 0
    folder, _, name = path.removesuffix(".py").rpartition("/")
    if path.startswith("tests/"):  # what tests share
        module = path.removesuffix(".py").replace("/", ".")
        return 1 if re.search(rf"\b{re.escape(module)}\b", text) else None
    if not path.startswith("invert/") or not path.endswith(".py"):
        return None
    stem = name.strip("_")
    if Path(test).stem == f"test_{stem}":
        return 1
    module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    package, _, last = module.rpartition(".")
    imports = rf"(import|from) {re.escape(module)}\b|from {re.escape(package)} import .*\b{last}\b"
    if re.search(imports, text):
        return 2
    # The deepest folder of tests with the names of the module's.
    mirrored = f"tests/{folder.removeprefix('invert').removeprefix('/')}".rstrip("/")
    while not (ROOT / mirrored).is_dir():
        mirrored = mirrored.rpartition("/")[0]
    near = mirrored != "tests" and test.startswith(f"{mirrored}/")
    return 3 if near else None


def ops_of(source: str) -> list[str]:
    """The tests of the TensorFlow ops named in a text: a file of rules, or lines of one."""
    folder = ROOT / "tests/tf/ops"
    recipes = "".join(p.read_text("utf-8") for p in sorted(folder.glob("recipes_*.py")))
    tested = {*(folder / "xla_ops.txt").read_text("utf-8").split(), *_OPS.findall(recipes)}
    named = dict.fromkeys(re.findall(r'"([A-Z]\w+)"', source))
    ops = [op for op in named if op in tested and op not in EXCEPTIONS]
    return [f"tests/tf/ops/test_ops.py::test_all_dtypes[{op}]" for op in ops]


# The ops that tables of recipes have rows for.
_OPS = re.compile(r'^    "([A-Z]\w+)": ', re.MULTILINE)


def main() -> None:
    changed = changed_files()
    rules = "invert/primitives/tf"
    # Ops whose rows or decorators changed, then the others of the same files.
    lines = [li for li in _git("diff", "-U0", _base(), "--", rules, "tests/tf/ops") if li[0] == "+"]
    files = [ROOT / path for path in changed if path.startswith(f"{rules}/")]
    sources = [path.read_text(encoding="utf-8") for path in files if path.is_file()]
    print(*ops_of("\n".join([*lines, *sources])), sep="\n")
    tests = [p.relative_to(ROOT).as_posix() for p in ROOT.glob("tests/**/test_*.py")]
    text = {test: (ROOT / test).read_text(encoding="utf-8") for test in tests}
    found = nearest(changed, tests, text)
    print(*(t for t in found if t != _ALWAYS), _ALWAYS, sep="\n", file=sys.stdout)


if __name__ == "__main__":
    main()
