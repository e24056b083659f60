"""Helpers for the tables of TensorFlow Probability's distributions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

INF, NAN = float("inf"), float("nan")
# Values by support. The first row is ordinary, the second holds what lies at edges or outside.
REAL = ([-2.3, -0.4, 0.3, 1.1, 4.2], [0.0, -1e4, 1e4, INF, -INF, NAN])
POSITIVE = ([0.05, 0.4, 1.3, 2.7, 9.1], [0.0, 1e-6, 1e6, INF, NAN, -1.0])
UNIT = ([0.02, 0.31, 0.5, 0.77, 0.97], [0.0, 1.0, 1e-6, 1 - 1e-6, NAN])
COUNT = ([0.0, 1.0, 2.0, 4.0, 7.0], [9.0, 10.0, -1.0, 0.5, NAN])
BIT = ([0.0, 1.0, 1.0, 0.0], [0.5, -1.0, 2.0, NAN])
INDEX = ([0, 1, 2, 2, 0], [])
# Parameters that many take.
LOC = [0.2, 1.5, -2.0]
SCALE = [1.0, 0.5, 2.5]


@dataclasses.dataclass(frozen=True)
class Case:
    """One distribution.

    `build(tfd, **params)` makes it from tensors. `values` are ordinary, `edges` are at and beyond
    the ends of the support; both have the shape that `log_prob` takes.
    """

    build: Callable[..., Any]
    params: Mapping[str, Any]
    values: Any
    edges: Any = ()

    def arrays(self) -> dict[str, np.ndarray]:
        return {k: _array(v) for k, v in self.params.items()}

    def points(self) -> dict[str, np.ndarray]:
        named = {"values": self.values, "edges": self.edges}
        return {k: _array(v) for k, v in named.items() if np.size(v)}


def _array(value: Any) -> np.ndarray:
    array = np.asarray(value)
    return array.astype(np.float32) if array.dtype == np.float64 else array


def scalar(name: str, support: tuple[Any, Any], **params: Any) -> tuple[str, Case]:
    """A distribution over numbers, with every value at each of the parameters."""
    values, edges = (np.asarray(v)[:, None] for v in support)
    return name, Case(lambda tfd, **p: getattr(tfd, name)(**p), params, values, edges)


def vector(name: str, values: Any, edges: Any = (), **params: Any) -> tuple[str, Case]:
    """A distribution that its class makes from the parameters alone."""
    return name, Case(lambda tfd, **p: getattr(tfd, name)(**p), params, values, edges)


def made(
    name: str, build: Callable[..., Any], values: Any, edges: Any = (), **params: Any
) -> tuple[str, Case]:
    """A distribution made by `build`."""
    return name, Case(build, params, values, edges)
