"""A child process that answers, dies, hangs or does not start."""

from __future__ import annotations

import pytest

from invert._child import Child, ChildError, ChildStartError

_WORKER = """
import os, struct, sys, time
def write(content):
    sys.stdout.buffer.write(struct.pack("<Q", len(content)) + content)
    sys.stdout.buffer.flush()
write(b"")
while len(head := sys.stdin.buffer.read(8)) == 8:
    request = sys.stdin.buffer.read(*struct.unpack("<Q", head))
    if request == b"die":
        os._exit(7)
    if request == b"hang":
        time.sleep(60)
    write(request[::-1])
"""


def test_answers_and_starts_again():
    child = Child(["-c", _WORKER], start_seconds=60)
    assert child.ask(b"abc", seconds=60) == b"cba"
    with pytest.raises(ChildError, match=r"ended its process \(exit code 7\)"):
        child.ask(b"die", seconds=60)
    with pytest.raises(ChildError, match="took more than 1 seconds"):
        child.ask(b"hang", seconds=1)
    large = bytes(range(256)) * 4096
    assert child.ask(large, b"abc", seconds=60) == b"cba" + large[::-1]
    assert child.stop() == 0


def test_does_not_start():
    with pytest.raises(ChildStartError, match="exit code 3"):
        Child(["-c", "raise SystemExit(3)"], start_seconds=60).ask(b"", seconds=1)
