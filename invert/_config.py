"""The one configuration object. It is passed explicitly; there is no global state."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Config:
    """Options of a conversion.

    **Arguments:**

    - `platform`: the platform whose branch is taken from a module lowered for several
        (`"cpu"`, `"cuda"`, `"rocm"` or `"tpu"`). `None`: the first platform of the module that
        this process has, else the module's first.
    - `patterns`: whether equations are rewritten into the primitives they came from.
    - `disabled_patterns`: names of patterns that are left out.
    - `verify`: whether the recovered program is lowered again and compared with the input, which
        gives the certificate of the report.
    """

    platform: str | None = None
    patterns: bool = True
    disabled_patterns: tuple[str, ...] = ()
    verify: bool = True
