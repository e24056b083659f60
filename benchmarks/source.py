"""The text of a model over its conversion, in processor time and in calls of functions.

    python benchmarks/source.py [model ...] [--rounds 3]

For each Keras model of `models.py`, at an open batch: seconds of the first conversion and the first
text, then the ratio of the smallest of later ones. Other processes change seconds, not the calls of
Python functions that the profiler counts in a conversion and a text after these.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import pstats
import time
from collections.abc import Callable
from typing import Any

import models

import invert


def timed(run: Callable[[], Any]) -> tuple[float, Any]:
    gc.collect()
    start = time.process_time()
    result = run()
    return time.process_time() - start, result


def calls(run: Callable[[], Any]) -> int:
    profile = cProfile.Profile()
    profile.runcall(run)
    stats: Any = pstats.Stats(profile)
    return stats.total_calls


def measure(name: str, rounds: int) -> None:
    model = models.MODELS[name]()

    def text() -> Any:
        return module.emit(loader=False)

    converted, written = [], []
    for _ in range(rounds + 1):
        seconds, module = timed(lambda: invert.convert(model))
        converted.append(seconds)
        written.append(timed(text)[0])
    conversion = calls(lambda: invert.convert(model))
    module = invert.convert(model)
    text_calls = calls(text)
    later = min(written[1:]), min(converted[1:])
    print(
        f"{name:18}{converted[0]:9.2f}{written[0]:8.2f}{later[1]:9.2f}{later[0]:8.2f}"
        f"{later[0] / later[1]:7.2f}{conversion / 1e6:12.2f}{text_calls / 1e6:8.2f}"
        f"{text_calls / conversion:7.2f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("models", nargs="*", default=list(models.MODELS))
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    print(f"{'model':18}{'first':>9}{'text':>8}{'later':>9}{'text':>8}{'ratio':>7}"
          f"{'10^6 calls':>12}{'text':>8}{'ratio':>7}")  # fmt: skip
    for name in given.models:
        measure(name, given.rounds)


if __name__ == "__main__":
    main()
