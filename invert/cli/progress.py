"""Progress reports: one line on a terminal, or separate lines on request."""

from __future__ import annotations

import shutil
import sys
import time
from types import TracebackType
from typing import Self

from invert._errors import plain


class Progress:
    """Reports progress on stderr. On a terminal a single line is updated, then erased.

    **Arguments:**

    - `wanted`: `True`: always; `False`: never; `None`: if stderr is a terminal.
    """

    def __init__(self, wanted: bool | None = None):
        self._stream = sys.stderr
        self._terminal = self._stream.isatty()
        self._on = self._terminal if wanted is None else wanted
        self._start = time.monotonic()

    def __call__(self, text: str) -> None:
        if not self._on:
            return
        line = f"[{time.monotonic() - self._start:6.1f} s] {plain(text)}"
        if self._terminal:
            width = shutil.get_terminal_size().columns - 1
            line = f"\r\x1b[K{line[:width]}"
        else:
            line += "\n"
        self._stream.write(line)
        self._stream.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._on and self._terminal:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
