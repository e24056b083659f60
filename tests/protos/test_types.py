"""The types of messages are those of the schema."""

from __future__ import annotations

from invert.protos import types
from invert.protos.messages import fields, message
from tools.message_types import FILE, text


def test_the_file_is_what_the_script_writes() -> None:
    # The file is formatted: spaces and empty lines may differ.
    assert FILE.read_text("utf-8").split() == text().split()


def test_each_message_has_a_type_with_its_fields() -> None:
    for name in fields():
        cls = types
        for part in name.split("."):
            cls = getattr(cls, part)
        assert {f.name for f in message(name).DESCRIPTOR.fields} == {
            n for n in cls.__annotations__ if n != "DESCRIPTOR"
        }
