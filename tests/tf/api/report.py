"""Prints what became of the calls.

`python -m tests.tf.api.report [namespace[.function]] ... [--aspect] ...`
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Sequence

import jax

from tests.tf.api.suites import ASPECTS, SUITES, Suite, check, missing, unknown

_TOGETHER = 8


def report(suite: Suite, wanted: str, aspects: Sequence[str]) -> Counter[str]:
    names = [n for n in suite.table if not wanted or n == wanted]
    counts: Counter[str] = Counter({"functions": len(names)})
    counts["left out"] = sum(isinstance(suite.table[n], str) for n in names)
    calls = [c for c in suite.calls() if c[0] in names]
    results: dict[str, dict[str, bool]] = {}
    for start in range(0, len(calls), _TOGETHER):
        chosen = calls[start : start + _TOGETHER]
        for (name, _, _), outcome in zip(chosen, check(suite, chosen, aspects), strict=True):
            of_name = results.setdefault(name, {})
            for aspect, problem in outcome.problems.items():
                kind = aspect.split()[0]
                of_name[kind] = of_name.get(kind, True) and problem is None
                if problem is not None:
                    print(f"FAIL {outcome.label} {aspect}: {problem}", flush=True)
        jax.clear_caches()
    for of_name in results.values():
        counts.update(f"{kind} compared" for kind in of_name)
        counts.update(kind for kind, well in of_name.items() if well)
    return counts


def main(arguments: Sequence[str]) -> None:
    print("missing:", " ".join(missing()))
    print("unknown:", " ".join(unknown()))
    only = [a.removeprefix("--") for a in arguments if a.startswith("--")]
    for label in [a for a in arguments if not a.startswith("--")] or SUITES:
        suite = SUITES.get(label) or SUITES[label.rpartition(".")[0]]
        name = "" if label in SUITES else label.rpartition(".")[2]
        start = time.perf_counter()
        counts = report(suite, name, only or ASPECTS)
        print(f"== {label}: {dict(counts)} in {time.perf_counter() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
