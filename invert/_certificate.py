"""The certificate of a recovered program."""

from __future__ import annotations

import dataclasses
from typing import Literal


@dataclasses.dataclass(frozen=True)
class Certificate:
    """How far a recovery is proved.

    **Attributes:**

    - `kind`: `"exact"`: the recovered program lowers to exactly the program that was read, equation
        by equation. If it came from TensorFlow ops, both have the same lowering. `"numerical"`: it
        lowers to a different program, and both were run on random inputs. `"unverified"`: neither
        was possible, or verification was switched off.
    - `reason`: why the certificate is not exact, or `""`.
    - `largest_error`: the largest absolute difference of a result, for `"numerical"`.
    - `sizes`: the sizes of the open dimensions for which it holds, or `""` if none is open.
    - `assumes`: an assumption about the program that its format does not specify, or `""`.
    - `before`: the certificate of the program before it was changed on request, by
        `Config(optimize=...)` or `Config(bfloat16_constants=...)`.
    """

    kind: Literal["exact", "numerical", "unverified"]
    reason: str = ""
    largest_error: float | None = None
    assumes: str = ""
    sizes: str = ""
    before: Certificate | None = None

    def __str__(self) -> str:
        error = self.largest_error
        details = [
            "" if error is None else f"largest error {error:.3g}",
            self.reason,
            self.assumes and f"provided that {self.assumes}",
        ]
        text = "; ".join(filter(None, details))
        kind = f"{self.kind} for every {self.sizes}" if self.sizes else self.kind
        return f"{kind} ({text})" if text else kind
