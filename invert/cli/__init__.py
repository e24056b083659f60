"""The command line: `invert inspect`, `convert`, `source` and `diff`, over the API."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from typing import Any

from invert.cli.terminal import coloured, without_logs

_EXIT_CODES = """exit codes:
  0  done; `diff`: the programs are the same
  1  `diff`: the programs differ
  2  wrong usage; `diff`: any error
  3  the model cannot be read, or the result cannot be written
  4  a part of the model cannot be converted
  5  a requested function or argument does not exist
  6  --verify found a difference
  7  a package is missing
  8  the program cannot be written as source
  70 a defect of invert
"""


def _parser() -> argparse.ArgumentParser:
    from invert import __version__

    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--debug", action="store_true", help="on an error, print the traceback as well"
    )
    common.add_argument(
        "--progress",
        action=argparse.BooleanOptionalAction,
        help="report progress on stderr (default: if it is a terminal)",
    )
    parser = argparse.ArgumentParser(
        prog="invert",
        description="Turn TensorFlow models, jax2tf exports and StableHLO back into JAX.",
        epilog=_EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"invert {__version__}")
    parser.add_argument(
        "--print-completion",
        metavar="SHELL",
        action=_Completion,
        help="print a completion script for bash, zsh or tcsh; needs the package shtab",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for add in (_add_inspect, _add_convert, _add_source, _add_diff):
        add(commands, common)
    return parser


_Commands = Any  # the result of `add_subparsers`, whose class is private
_MODEL = (
    "a SavedModel directory, a .keras file, a GraphDef (.pb or .pbtxt), StableHLO (text or "
    "bytecode), a jax.export artifact, or a directory that invert has written"
)


def _add_inspect(commands: _Commands, common: argparse.ArgumentParser) -> None:
    parser = commands.add_parser(
        "inspect", parents=[common], help="show what a model contains and how it would be converted"
    )
    parser.add_argument("model", metavar="MODEL", type=_path, help=_MODEL)
    _add_model(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--graph",
        metavar="FILE.svg",
        type=_svg,
        help="convert the model and write a picture of its layers",
    )


def _add_convert(commands: _Commands, common: argparse.ArgumentParser) -> None:
    parser = commands.add_parser(
        "convert", parents=[common], help="write a model as Python source with its weights"
    )
    parser.add_argument("model", metavar="MODEL", type=_path, help=_MODEL)
    parser.add_argument(
        "-o", "--output", metavar="DIR", type=_path, required=True, help="the directory to write"
    )
    _add_model(parser)
    parser.add_argument(
        "--verify",
        action="store_true",
        help="run the result, the saved copy and the original on random arguments and compare",
    )
    parser.add_argument(
        "--max-shard-size",
        metavar="SIZE",
        default="5GB",
        help="largest size of one file of weights, as in 500MB (default: %(default)s)",
    )
    _add_options(parser)
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def _add_source(commands: _Commands, common: argparse.ArgumentParser) -> None:
    parser = commands.add_parser(
        "source", parents=[common], help="print the Python source of a model"
    )
    parser.add_argument("model", metavar="MODEL", type=_path, help=_MODEL)
    _add_model(parser)
    _add_options(parser)
    parser.add_argument(
        "--no-loader",
        action="store_true",
        help="leave out the functions that read weights",
    )


def _add_diff(commands: _Commands, common: argparse.ArgumentParser) -> None:
    parser = commands.add_parser(
        "diff",
        parents=[common],
        help="compare two programs side by side; exits with 1 if they differ",
    )
    parser.add_argument("a", metavar="A", type=_path, help=_MODEL)
    parser.add_argument("b", metavar="B", type=_path, help="likewise")
    _add_model(parser)
    parser.add_argument("--weights", action="store_true", help="compare the values of weights too")
    parser.add_argument("--full", action="store_true", help="print equal lines too")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--width", type=_width, metavar="N", help="width of the output in columns")


class _Completion(argparse.Action):
    """Print a script by which a shell completes commands, options and files."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        try:
            shtab = importlib.import_module("shtab")
        except ImportError:
            parser.error("--print-completion needs the package shtab: pip install shtab")
        if values not in shtab.SUPPORTED_SHELLS:
            parser.error(f"--print-completion {values}: give {', '.join(shtab.SUPPORTED_SHELLS)}")
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                for command in action.choices.values():
                    for part in command._actions:
                        if part.metavar in ("MODEL", "A", "B", "FILE.svg"):
                            setattr(part, "complete", shtab.FILE)  # noqa: B010
                        if part.metavar == "DIR":
                            setattr(part, "complete", shtab.DIRECTORY)  # noqa: B010
        print(shtab.complete(parser, shell=str(values)))
        parser.exit()


def _add_model(parser: argparse.ArgumentParser) -> None:
    """The options that select a model."""
    parser.add_argument(
        "--signature", metavar="NAME", help="the function or signature to read (default: all)"
    )
    parser.add_argument(
        "--inputs", metavar="NAMES", help="the input tensors of a GraphDef, as in x:0,y:0"
    )
    parser.add_argument("--outputs", metavar="NAMES", help="the output tensors of a GraphDef")


def _add_options(parser: argparse.ArgumentParser) -> None:
    """The options that say how a model is converted and written."""
    parser.add_argument(
        "--layers",
        metavar="STYLE",
        default="",
        help="how layers are written: scan (equal layers as one stack), auto (a stack where there "
        "are so many that it compiles faster), equinox (layers of equinox.nn), or two of them, "
        "separated by a comma",
    )
    parser.add_argument(
        "--typecheck",
        action="store_true",
        help="let methods check the shapes and dtypes that they declare",
    )
    parser.add_argument(
        "--sizes",
        metavar="DIMS",
        action="append",
        default=[],
        help="names or numbers for the sizes of an argument, as in 'x: batch length 3'; the name "
        "may be left out if there is one argument; may be repeated",
    )
    parser.add_argument(
        "--host-ops",
        choices=("error", "callback"),
        help="how to treat ops that only the host can run (default: error)",
    )
    parser.add_argument(
        "--platform",
        choices=("cpu", "cuda", "rocm", "tpu"),
        help="the platform to take from a module lowered for several",
    )
    parser.add_argument(
        "--config",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="another option of invert.Config, as in prevent_gradient=warn; may be repeated",
    )


def _missing(options: argparse.Namespace) -> str | None:
    """The first model path that does not exist; checked before anything is imported."""
    paths = [getattr(options, name, None) for name in ("model", "a", "b")]
    return next((p for p in paths if p is not None and not os.path.exists(p)), None)


def _path(text: str) -> str:
    if not text:  # as from a variable of the shell that is not set
        raise argparse.ArgumentTypeError("the path is empty")
    return text


def _svg(text: str) -> str:
    if not text.endswith(".svg"):
        raise argparse.ArgumentTypeError(f"{text} does not end in .svg")
    if not os.path.isdir(os.path.dirname(text) or "."):
        raise argparse.ArgumentTypeError(f"the folder of {text} does not exist")
    return text


def _width(text: str) -> int:
    if not text.isdecimal() or int(text) < 40:
        raise argparse.ArgumentTypeError(f"{text}: needs a number of at least 40 columns")
    return int(text)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    **Arguments:**

    - `argv`: the arguments after the name of the program; those of the process by default.

    **Returns:** the exit code.

    **Raises:** `SystemExit` for wrong arguments, `--help` and `--version`.
    """
    _open_streams()
    options = _parser().parse_args(argv)
    # TensorFlow reports the machine's features on stderr; users may override this.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    interrupts: list[int] = []
    try:
        if (path := _missing(options)) is not None:
            raise FileNotFoundError(f"{path} does not exist")
        with (
            _counting(interrupts),
            contextlib.nullcontext() if options.debug else without_logs(),
        ):
            code = _run(options)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader closed the pipe (e.g. `head`). Nothing may be written to it at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except Exception as error:  # noqa: BLE001  reported to the user
        if interrupts:  # an extension module that is being imported raises an error of its own
            return 130
        if options.debug:
            traceback.print_exc()
        code, text = _explained(error)
        print(f"{coloured('invert:', 'red', 'bold', to=sys.stderr)} {text}", file=sys.stderr)
        return 2 if options.command == "diff" else code


@contextlib.contextmanager
def _counting(interrupts: list[int]) -> Iterator[None]:
    """Note each Ctrl-C, whatever becomes of its `KeyboardInterrupt`."""

    def interrupt(number: int, _: object) -> None:
        interrupts.append(number)
        raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGINT)
    in_main_thread = threading.current_thread() is threading.main_thread()
    if before is not signal.default_int_handler or not in_main_thread:
        yield
        return
    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _open_streams() -> None:
    """Open standard streams that the caller has closed, as a file would take their numbers."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number
    sys.stdout = sys.stdout or os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", encoding="utf-8", closefd=False)


def _run(options: argparse.Namespace) -> int:
    from invert.cli import convert as convert_command
    from invert.cli import diff as diff_command
    from invert.cli import inspect as inspect_command
    from invert.cli import source as source_command

    commands = {
        "inspect": inspect_command.run,
        "convert": convert_command.run,
        "diff": diff_command.run,
        "source": source_command.run,
    }
    return commands[options.command](options)


def _explained(error: Exception) -> tuple[int, str]:
    """The exit code of an error, and its message."""
    from invert import _errors
    from invert._errors import plain

    if type(error) is FileNotFoundError:
        return 3, plain(str(error))
    from invert.cli.options import UsageError

    for kind, code in (
        (UsageError, 2),
        (_errors.MalformedModelError, 3),
        (_errors.UnsupportedOpError, 4),
        (_errors.SignatureError, 5),
        (_errors.VerificationError, 6),
        (_errors.MissingDependencyError, 7),
        (_errors.EmissionError, 8),
    ):
        if isinstance(error, kind):
            return code, plain(str(error))
    if isinstance(error, UnicodeEncodeError):
        return 2, (
            f"the output has the character {error.object[error.start]!a}, which its encoding "
            f"{error.encoding} lacks. Set PYTHONIOENCODING=utf-8."
        )
    if isinstance(error, OSError):
        return 3, plain(str(error))
    if isinstance(error, MemoryError):
        return 3, f"not enough memory: {error}"
    return 70, (
        f"a defect of invert, {type(error).__name__}: {plain(str(error))}\n"
        "Please report it with the model; --debug prints where it happened."
    )
