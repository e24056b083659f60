"""What is known of a recovered program: the certificate that a report holds."""

from __future__ import annotations

import dataclasses
from typing import Literal


@dataclasses.dataclass(frozen=True)
class Certificate:
    """How far the recovery is proved.

    **Attributes:**

    - `kind`: `"exact"`: the recovered program lowers to the very program that was read, equation by
        equation; where rules of TensorFlow ops wrote that program, to what it lowers to.
        `"numerical"`: it lowers to another one, and both were run on random inputs.
        `"unverified"`: neither was possible, or it was switched off.
    - `reason`: why the certificate is not exact; `""` where it is.
    - `largest_error`: largest absolute difference of a result, for `"numerical"`.
    - `assumes`: what this takes for granted of the program, where its format leaves open what it
        does otherwise; `""` where that is nothing.
    """

    kind: Literal["exact", "numerical", "unverified"]
    reason: str = ""
    largest_error: float | None = None
    assumes: str = ""

    def __str__(self) -> str:
        error = self.largest_error
        details = [
            "" if error is None else f"largest error {error:.3g}",
            self.reason,
            self.assumes and f"provided that {self.assumes}",
        ]
        text = "; ".join(filter(None, details))
        return f"{self.kind} ({text})" if text else self.kind
