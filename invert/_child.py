"""Child processes, in which a crash or a hang is only an error."""

from __future__ import annotations

import atexit
import contextlib
import functools
import io
import os
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import IO, TypeVar, cast

from invert._errors import InvertError

_LENGTH = struct.Struct("<Q")
T = TypeVar("T")


class ChildError(InvertError):
    """The child process could not answer; the message says why.

    **Arguments:**

    - `code`: the exit code of a child that ended, negative if a signal ended it.
    """

    def __init__(self, message: str, code: int | None = None):
        super().__init__(message)
        self.code = code


class ChildStartError(ChildError):
    """The child process did not start."""


class Child:
    """A child process that answers requests, started on first use, replaced when dead.

    It writes one empty message once it is ready, then one for each that it reads, as `read_message`
    and `write_message` do.

    **Arguments:**

    - `arguments`: command line arguments of the interpreter.
    - `environment`: additional environment variables.
    - `start_seconds`: time limit for starting.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str] | None = None,
        *,
        start_seconds: float,
    ) -> None:
        self._arguments = arguments
        self._environment = environment or {}
        self._start_seconds = start_seconds
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        atexit.register(self.stop)

    def ask(self, *request: bytes, seconds: float) -> bytes:
        """The answer to a request, which may be given in parts.

        **Raises:** `ChildError` if no answer comes in time, or the child dies.
        """
        send = functools.partial(write_message, parts=request, size=sum(map(len, request)))
        return self.exchange(send, read_message, seconds=seconds)

    def exchange(
        self,
        send: Callable[[IO[bytes]], None],
        receive: Callable[[IO[bytes]], T | None],
        *,
        seconds: float,
    ) -> T:
        """The result of `receive` after `send`; `receive` returns `None` if the answer ends early.

        **Raises:** as `ask`.
        """
        with self._lock:
            if self._process is None or self._owner != os.getpid():
                self._start()
            return self._exchange(seconds, send, receive)

    def _exchange(
        self,
        seconds: float,
        send: Callable[[IO[bytes]], None] | None,
        receive: Callable[[IO[bytes]], T | None],
    ) -> T:
        process = self._process
        assert process is not None and process.stdin and process.stdout
        late = threading.Event()

        def give_up() -> None:
            late.set()
            process.kill()

        # A timer that kills the child works on every platform; waiting on pipes does not.
        timer = threading.Timer(seconds, give_up)
        timer.start()
        try:
            if send is not None:
                send(process.stdin)
            reply = receive(process.stdout)
        except OSError:
            reply = None  # the pipe broke: the child died while reading
        finally:
            timer.cancel()
        if reply is None:
            code = self.stop(kill=True)
            if late.is_set():
                raise ChildError(f"it took more than {seconds:.0f} seconds")
            raise ChildError(f"it ended its process (exit code {code})", code)
        return reply

    def _start(self) -> None:
        environment = {**os.environ, **self._environment}
        environment["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
        try:
            self._process = subprocess.Popen(
                [sys.executable or "", "-P", *self._arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
            )
        except OSError as e:
            raise ChildStartError(f"its process ({sys.executable}) could not start: {e}") from e
        self._owner = os.getpid()
        try:
            self._exchange(self._start_seconds, None, read_message)
        except ChildError as e:
            raise ChildStartError(f"while its process ({sys.executable}) started, {e}") from e

    def stop(self, *, kill: bool = False) -> int | None:
        """End the child; a forked copy of this object leaves its parent's child alone.

        **Returns:** its exit code, negative if a signal ended it.
        """
        process, self._process = self._process, None
        if process is None or self._owner != os.getpid():
            return None
        if kill:
            process.kill()
        with contextlib.suppress(BrokenPipeError):
            assert process.stdin
            process.stdin.close()
        process.wait()
        assert process.stdout
        process.stdout.close()
        return process.returncode


def write_message(stream: IO[bytes], parts: Iterable[bytes], size: int) -> None:
    """Write one message of `size` bytes."""
    stream.write(_LENGTH.pack(size))
    stream.writelines(parts)
    stream.flush()


def read_message(stream: IO[bytes]) -> bytes | None:
    """Read one message; `None` if the stream ends early."""
    length = read_length(stream)
    content = None if length is None else stream.read(length)
    return content if content is not None and len(content) == length else None


def read_length(stream: IO[bytes]) -> int | None:
    """Read the length of a message; its content follows."""
    head = stream.read(_LENGTH.size)
    return _LENGTH.unpack(head)[0] if len(head) == _LENGTH.size else None


def read_into(stream: IO[bytes], room: memoryview) -> bool:
    """Fill memory from the stream; `False` if it ends early."""
    return cast(io.BufferedReader, stream).readinto(room) == len(room)
