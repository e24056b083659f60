"""Writes the fingerprints of library functions for the JAX release it runs with.

    make fingerprints

Those of other releases in the file stay. Run it with the oldest and the newest release supported
where a function, or what its pattern comes after, changed; a test says when.
"""

from __future__ import annotations

import json
from pathlib import Path

import jax

from invert import patterns
from invert.patterns import library
from invert.patterns.fingerprints import FILE, name_of, shipped, worked_out
from invert.rewriting.driver import Rewriter
from invert.rewriting.templates import raise_call


def of_this_release() -> dict[str, list[list[str]]]:
    number = next(i for i, s in enumerate(patterns.STAGES) if s.patterns is library.PATTERNS)
    template = Rewriter(patterns.STAGES, raise_call).template
    found = {}
    for function in library.FUNCTIONS:
        prints = worked_out(function, lambda call: template(call, number))
        found[name_of(function)] = [list(p) for p in prints]
    return found


def main() -> None:
    path = Path(patterns.__file__).parent / FILE
    data = {**shipped(), jax.__version__: of_this_release()}
    path.write_text(json.dumps(data, indent=1, sort_keys=True) + "\n")
    print(f"{path}: JAX {', '.join(sorted(data))}")


if __name__ == "__main__":
    main()
