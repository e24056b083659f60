"""Errors, whose messages name the op, the place and the remedy."""

from __future__ import annotations

import contextlib
import dataclasses
import dis
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

_T = TypeVar("_T")


def plain(text: str) -> str:
    """Text that contains names from a file, made safe to print.

    Control characters, which move the cursor of a terminal, and those that change the writing
    direction are escaped.
    """
    return "".join(
        c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text
    )


class InvertError(Exception):
    """Base class of every error that `invert` raises on purpose.

    **Arguments:**

    - `remedy`: what the reader can do about it, by default the usual remedy for the class.

    **Attributes:**

    - `reason`: the message without the remedy.
    """

    remedy = ""

    def __init__(self, *args: object, remedy: str | None = None):
        super().__init__(*args)
        if remedy is not None:
            self.remedy = remedy

    def __str__(self) -> str:
        if not self.remedy:
            return plain(self.reason)
        end = "\n" if "\n" in self.reason else ". "
        return plain(f"{self.reason.rstrip('.')}{end}{self.remedy}")

    @property
    def reason(self) -> str:
        return super().__str__()

    @property
    def line(self) -> str:
        """The message in one line."""
        return " ".join(str(self).split())


class MalformedModelError(InvertError, ValueError):
    """The bytes, text or directory given are not a model that can be read."""

    remedy = "The model is damaged or incomplete: copy or export it again."


# The remedy for an op that cannot be converted for an unknown reason.
REPORT = "Change its inputs or attributes, or report it with the model."
# The remedy for a file that the operating system refuses to open.
UNREADABLE = "Check that it exists and that you may read it."


def unreadable(path: object, reason: object) -> MalformedModelError:
    """The error for a file that the operating system refuses to open."""
    return MalformedModelError(f"{path} cannot be read: {reason}", remedy=UNREADABLE)


class SignatureError(InvertError, TypeError):
    """Arguments do not fit the signature: tree, number, shape or dtype."""


class PatternError(InvertError, ValueError):
    """Two functions do not make a pattern, no pattern has that name, or one matches without end."""


class VerificationError(InvertError):
    """The recovered program differs from the program it came from."""


class EmissionError(InvertError):
    """The recovered program cannot be written as source."""

    remedy = "The module runs without its source; please report what cannot be written."


class DefectWarning(UserWarning):
    """An optional step was left out because of a defect of this package.

    The result is correct without it."""


class DefectError(Exception):
    """A bug of this package, where only a library was expected to raise.

    No list of expected exceptions includes it.
    """


class MeshError(InvertError, ValueError):
    """A mesh of devices, or a spec over one, does not fit."""


class SaveError(InvertError, OSError):
    """A recovered module cannot be written to disk; existing files are unchanged."""


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
    remedy = "Use other ops there and export the model again, or report the missing feature."

    def __init__(self, problems: Sequence[Problem]):
        self.problems = tuple(problems)
        noun = "problem" if len(self.problems) == 1 else "problems"
        lines = "\n".join(f"  - {p}" for p in self.problems)
        remedy = "" if all(p.remedy for p in self.problems) else None
        super().__init__(f"{len(self.problems)} {noun} while converting:\n{lines}", remedy=remedy)

    @property
    def line(self) -> str:
        return " ".join("; ".join(map(plain, map(str, self.problems))).split())


@contextlib.contextmanager
def nested_too_deep(name: str) -> Iterator[None]:
    """Turn a `RecursionError` inside, from deeply nested calls or regions, into a clear error."""
    try:
        yield
    except RecursionError as error:
        problem = Problem(
            name,
            "its calls or regions are nested too deeply for Python's recursion limit "
            f"({sys.getrecursionlimit()})",
            remedy="Nest fewer calls, or raise the limit with sys.setrecursionlimit, by about 20 "
            "per level.",
        )
        raise UnsupportedOpError([problem]) from error


def optional_step(
    step: str, defects: list[str], function: Callable[..., _T], *args: object
) -> _T | None:
    """Run an optional step, such as a pattern; `None` if it has a defect.

    A step itself catches, by type, the exceptions that may occur for correct programs. Any other
    exception is a defect: of this package, of JAX or of a user's own pattern, which no list of
    types could name. The program converts without the step. The defect becomes a line in `defects`
    and a `DefectWarning`, which the tests of this package turn into an error.

    **Arguments:**

    - `step`: the name of the step, such as `the pattern silu`.
    - `defects`: receives one line for each defect, once.
    """
    from invert._private.jax import SIZE_ERRORS  # the command line imports this module without JAX

    try:
        return function(*args)
    except (InvertError, MemoryError, RecursionError, DefectWarning):
        raise
    except SIZE_ERRORS:
        return None  # it needs a number for an open size
    except Exception as error:  # noqa: BLE001  told to the reader, and an error in the tests
        report_defect(step, defects, error)
        return None


def first_line(error: Exception) -> str:
    """The first line of an error's message."""
    return next(iter(str(error).splitlines()), "")


def in_short(error: Exception) -> str:
    """The type of an error and the first line of its message."""
    return f"{type(error).__name__}: {first_line(error)}"


def report_defect(step: str, defects: list[str], error: Exception) -> None:
    """Report that an optional step was left out because of a defect, once."""
    text = f"{step} was left out, because of a defect: {in_short(error)}"
    if text not in defects:
        defects.append(text)
    warnings.warn(f"{text}. Please report it.", DefectWarning, stacklevel=3)


@contextlib.contextmanager
def only_refusals() -> Iterator[None]:
    """Turn errors of this package's own code into `DefectError`; those of libraries pass.

    JAX refuses arguments by `TypeError`, `ValueError` and the like, which a bug raises too. If such
    an exception is an expected answer, the code that raised it decides whose fault it is.
    """
    from invert._private.jax import full_tracebacks

    try:
        with full_tracebacks():
            yield
    except Exception as error:
        if (defect := defect_of(error)) is None:
            raise
        raise defect from error


def defect_of(error: Exception, during: str = "") -> DefectError | None:
    """An error of this package's own code as a defect; see `only_refusals`.

    **Arguments:**

    - `during`: what was being done, for the message.
    """
    from invert._private.jax import SIZE_ERRORS

    if isinstance(error, (InvertError, DefectError, RuntimeError, MemoryError, *SIZE_ERRORS)):
        return None  # raised on purpose; or by the compiler, whose calls have no frame of their own
    if (place := _own_place(error)) is None:
        return None
    return DefectError(f"{type(error).__name__} in {place}{during and f', {during}'}: {error}")


def _own_place(error: Exception) -> str | None:
    """The line of this package that failed by accident, not by a `raise`."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return None
    name = trace.tb_frame.f_globals.get("__name__", "")
    if name.partition(".")[0] != __name__.partition(".")[0]:
        return None
    on_purpose = trace.tb_frame.f_code.co_code[trace.tb_lasti] == dis.opmap["RAISE_VARARGS"]
    if on_purpose and not isinstance(error, AssertionError):
        return None
    return f"{name}, line {trace.tb_lineno}"
