"""Source text of functions: for all sizes, or otherwise for those of a call."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence, Set
from types import ModuleType

from invert import emission
from invert._errors import EmissionError, SignatureError, nested_too_deep
from invert._private.jax import open_jaxpr
from invert._private.meshes import under_own_settings
from invert.emission import Emission
from invert.modules.empty_sizes import with_empty_results
from invert.modules.function import Function
from invert.modules.specializations import Specialization

# Python's parser counts the depth of syntax trees across all threads (seen in 3.11).
_ONE_THREAD = threading.RLock()


@under_own_settings()
def emission_of(
    functions: Mapping[str, Function],
    title: str,
    styles: Set[str] = frozenset(),
    held: Set[str] = frozenset(),
    notes: Sequence[str] = (),
) -> Emission:
    """The text of recovered functions on the same parameters.

    **Arguments:**

    - `functions`: the functions by method name.
    - `held`: names of the parameters that are in the state for all.
    - `title`, `styles`, `notes`: as for `emit_methods`.

    **Raises:** `EmissionError`; `SignatureError` if sizes are open that no example has fixed.
    """
    with _ONE_THREAD, nested_too_deep(title):
        wholes = {n: stage for n, f in functions.items() if (stage := _stage_for_text(f))}
        divided = [f.divided for n, f in functions.items() if n not in wholes]
        if divided:
            reason = divided[0]
        else:
            parts = {n: _recovered(f, wholes[n], held) for n, f in functions.items()}
            try:
                return emission.emit.emit_methods(parts, title, styles, notes)
            except EmissionError as error:
                if all(f.is_static for f in functions.values()):
                    raise
                reason = error.line
        parts = {name: _at_one_size(f, reason, held) for name, f in functions.items()}
        return emission.emit.emit_methods(
            parts, title, styles, (f"for fixed sizes only: {reason}", *notes)
        )


def with_loader(namespace: ModuleType) -> str:
    """The text of a written module with the functions that read weights, which it gets too."""
    with _ONE_THREAD:
        return emission.emit.add_loader(namespace)


@under_own_settings()
def layers_of(function: Function) -> emission.emit.Layered:
    """The layers of a recovered function, as in its text.

    **Raises:** `SignatureError` if sizes are open that no example has fixed.
    """
    with _ONE_THREAD, nested_too_deep(function.entry.name):
        if (stage := _stage_for_text(function)) is None:
            return emission.emit.cut_into_layers(
                _at_one_size(function, function.divided, frozenset())
            )
        return emission.emit.cut_into_layers(_recovered(function, stage, frozenset()))


def _stage_for_text(function: Function) -> Specialization | None:
    return function.sized if function.is_static else function.whole_for_text()


def _at_one_size(function: Function, reason: str, held: Set[str]) -> emission.recovered.Recovered:
    """A function's program at the sizes of an example or a call.

    **Raises:** `SignatureError` if there was none.
    """
    if (stage := function.sized) is None:
        raise SignatureError(
            f"{function.entry.name}: no source covers all sizes ({reason})",
            remedy=(
                "Call the module once, or pass example arguments when converting, to have it "
                "written for these sizes."
            ),
        )
    return _recovered(function, stage, held, "" if function.is_static else reason)


def _recovered(
    function: Function, stage: Specialization, held: Set[str], fixed: str = ""
) -> emission.recovered.Recovered:
    held_count = len(stage.constants) + len(function.entry.params)
    return emission.recovered.Recovered(
        function.entry,
        stage.jaxpr,
        stage.constants,
        stage.x64,
        str(stage.report.certificate),
        held,
        function.config.assertions == "checkify",
        fixed,
        () if fixed else stage.constraints,
        function.config.begin,
        may_be_empty=(
            frozenset()
            if fixed
            else with_empty_results(function.entry, open_jaxpr(stage.jaxpr), held_count)
        ),
        recognized=stage.recognized,
    )
