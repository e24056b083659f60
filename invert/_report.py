"""The report of a conversion: counts, and the time of each stage."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from invert._certificate import Certificate
from invert._errors import plain


@dataclasses.dataclass(frozen=True)
class Report:
    """The conversion of one entry point.

    **Attributes:**

    - `entry`: name of the entry point; `source`: its origin.
    - `primitives`: number of equations per primitive; inner jaxprs count once.
    - `opaque`: number of custom calls that stayed opaque, by target.
    - `rewrites`: number of times each pattern was applied.
    - `seconds`: wall time of each stage, in seconds.
    - `certificate`: how far the recovery is proved.
    - `gradients`: the outcome for each gradient function of the container.
    - `notes`: other remarks, such as ops that were left out.
    - `holds_gradient`: whether the container says what the derivatives are. StableHLO does not;
        they are then those of the recovered program.
    - `outside`: the steps before the raw jaxpr, which the certificate does not cover.
    - `sizes`: the argument types of this report, if sizes are open: the program is recovered
        again for others.
    """

    entry: str
    source: str
    primitives: Mapping[str, int]
    opaque: Mapping[str, int]
    rewrites: Mapping[str, int]
    seconds: Mapping[str, float]
    certificate: Certificate
    gradients: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    sizes: tuple[str, ...] = ()
    outside: str = ""
    holds_gradient: bool = True

    @property
    def equations(self) -> int:
        """Number of equations; inner jaxprs count once."""
        return sum(self.primitives.values())

    def __str__(self) -> str:
        lines = [
            f"{self.entry}: from {self.source or 'a StableHLO module'}",
            f"  certificate: {self.certificate}"
            + (f" at {', '.join(self.sizes)}" if self.sizes else ""),
            *([f"  outside the certificate: {self.outside}"] if self.outside else []),
            f"  {self.equations} equations of {len(self.primitives)} primitives",
        ]
        if self.rewrites:
            text = ", ".join(f"{n} x {name}" for name, n in sorted(self.rewrites.items()))
            lines.append(f"  rewritten: {text}")
        if self.opaque:
            text = ", ".join(f"{n} x @{name}" for name, n in sorted(self.opaque.items()))
            lines.append(f"  opaque custom calls: {text}")
        lines += [f"  gradient of {text}" for text in self.gradients]
        if not self.holds_gradient:
            lines.append("  derivatives are not compared: the container holds none")
        lines += [f"  note: {text}" for text in self.notes]
        total = sum(self.seconds.values())
        stages = ", ".join(f"{name} {s:.3f} s" for name, s in self.seconds.items())
        lines.append(f"  converted in {total:.3f} s ({stages})")
        return plain("\n".join(lines))
