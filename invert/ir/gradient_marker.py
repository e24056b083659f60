"""The equation that marks where a container brings a derivative of its own.

`tf.custom_gradient` passes its results and its arguments through one op that names a gradient
function. Raising puts a marker in its place: an identity on the results that knows the arguments
and how the gradient is computed. It stands in the raw program only. A later stage compares the
gradient with what automatic differentiation gives and removes the marker or makes it a rule.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Literal

from jax.interpreters import ad, batching, mlir

from invert._private.jax import Primitive
from invert.ir.types import Atom, Eqn, Value


@dataclasses.dataclass(frozen=True, eq=False)
class Gradient:
    """The gradient function of a container.

    **Arguments:**

    - `location`: where it comes from.
    - `run`: `run(captures, cotangents, nested)` returns the cotangents of the arguments, `None` for
        zero. `captures` are the values it uses, as the marker has them, and `cotangents` one for
        each result that is a floating-point or complex number. Where `nested`, gradient functions
        that this one holds are marked in turn.
    - `problem`: why it cannot be read; `""` where it can.
    - `convention`: `"jax"` or `"tensorflow"`, which differ for complex numbers: TensorFlow's
        gradients are the conjugates.
    - `read_nested`: reads the gradient functions inside this one, where it may hold any. TensorFlow
        may export them for it, which JAX refuses while it traces.
    """

    location: str
    run: Callable[[Sequence[Value], Sequence[Value], bool], Sequence[Value | None]]
    problem: str = ""
    convention: Literal["jax", "tensorflow"] = "tensorflow"
    read_nested: Callable[[], object] | None = None


custom_gradient_p = Primitive("custom_gradient")
custom_gradient_p.multiple_results = True


def mark(
    gradient: Gradient, results: Sequence[Value], inputs: Sequence[Value], captures: Sequence[Value]
) -> list[Value]:
    """The results, marked as those of a function of `inputs` with this gradient."""
    return custom_gradient_p.bind(
        *results,
        *inputs,
        *captures,
        gradient=gradient,
        counts=(len(results), len(inputs), len(captures)),
    )


def parts(eqn: Eqn) -> tuple[list[Atom], list[Atom], list[Atom]]:
    """Results, inputs and captures of a marker."""
    results, inputs, _ = eqn.params["counts"]
    atoms = list(eqn.invars)
    return atoms[:results], atoms[results : results + inputs], atoms[results + inputs :]


def _identity(*values: Value, counts: Sequence[int], **_: Any) -> list[Value]:
    return list(values[: counts[0]])


custom_gradient_p.def_impl(_identity)
custom_gradient_p.def_abstract_eval(_identity)
mlir.register_lowering(custom_gradient_p, mlir.lower_fun(_identity, multiple_results=True))


# A marker that is differentiated or batched before it was settled is the identity.
def _jvp(primals: Value, tangents: Value, *, counts: Sequence[int], **_: Any) -> Value:
    return _identity(*primals, counts=counts), _identity(*tangents, counts=counts)


def _batch(args: Value, dims: Value, *, counts: Sequence[int], **_: Any) -> Value:
    return _identity(*args, counts=counts), _identity(*dims, counts=counts)


ad.primitive_jvps[custom_gradient_p] = _jvp
batching.primitive_batchers[custom_gradient_p] = _batch
