"""The errors `invert` raises. Each message names the op, the place and the remedy."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence


class InvertError(Exception):
    """Base class of every error that `invert` raises on purpose."""


class MalformedModelError(InvertError, ValueError):
    """The bytes, text or directory given are not a model that can be read."""


class SignatureError(InvertError, TypeError):
    """Arguments do not fit the signature: tree, number, shape or dtype."""


class VerificationError(InvertError):
    """The recovered program differs from the program it came from."""


class EmissionError(InvertError):
    """The recovered program cannot be written as source."""


class MissingDependencyError(InvertError, ImportError):
    """A container needs a package that is not installed."""


@dataclasses.dataclass(frozen=True)
class Problem:
    """One reason why a program cannot be converted.

    **Arguments:**

    - `op`: name of the op, such as `stablehlo.infeed` or `tf.DecodeJpeg`.
    - `reason`: what about it cannot be converted.
    - `location`: node name or source location, as the container states it.
    - `remedy`: what the reader can do about it.
    """

    op: str
    reason: str
    location: str = ""
    remedy: str = ""

    def __str__(self) -> str:
        text = f"{self.op}: {self.reason}"
        if self.location:
            text += f" (at {self.location})"
        if self.remedy:
            text += f". {self.remedy}"
        return text


class UnsupportedOpError(InvertError, NotImplementedError):
    """Some ops of the program cannot be converted; lists all of them at once.

    **Attributes:**

    - `problems`: tuple of `Problem`, in program order.
    """

    problems: tuple[Problem, ...]

    def __init__(self, problems: Sequence[Problem]):
        self.problems = tuple(problems)
        noun = "problem" if len(self.problems) == 1 else "problems"
        lines = "\n".join(f"  - {p}" for p in self.problems)
        super().__init__(f"{len(self.problems)} {noun} while converting:\n{lines}")


@contextlib.contextmanager
def nesting_limited() -> Iterator[None]:
    """Makes an error of what is nested deeper than Python's stack goes."""
    try:
        yield
    except RecursionError as error:
        reason = "nests functions, branches or loops deeper than Python's stack goes"
        remedy = "Raise the limit by sys.setrecursionlimit, or put some of them into their callers."
        raise UnsupportedOpError([Problem("the program", reason, remedy=remedy)]) from error
