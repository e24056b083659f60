"""The equation that marks a derivative supplied by the container.

`tf.custom_gradient` passes its results and arguments through one op that names a gradient function.
Raising replaces it by a marker: an identity on the results that also holds the arguments and the
gradient function. Markers occur in the raw program only. A later stage compares the gradient with
automatic differentiation and removes the marker or turns it into a rule.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Sequence
from typing import Literal

import jax
from jax.custom_derivatives import SymbolicZero
from jax.interpreters import ad, batching, mlir

from invert._private.jax import Primitive
from invert.ir.types import Atom, Eqn, Value


@dataclasses.dataclass(frozen=True, eq=False)
class Gradient:
    """The gradient function of a container.

    **Arguments:**

    - `location`: where the container has it.
    - `run`: `run(captures, cotangents, nested)` returns the cotangents of the arguments, `None` for
        zero. `captures` are the captured values, in the order of the marker, and `cotangents` has
        one entry for each floating-point or complex result. If `nested`, gradient functions inside
        this one are marked in turn.
    - `problem`: the reason if it cannot be read, otherwise `""`.
    - `convention`: `"jax"` or `"tensorflow"`, which differ for complex numbers: TensorFlow's
        gradients are the conjugates.
    - `read_nested`: reads the gradient functions inside this one; `None` if it cannot hold any.
        TensorFlow may have to export them, which JAX refuses during tracing.
    - `compares_nested`: whether these are compared also where this one agrees with automatic
        differentiation.
    - `first_only`: whether the container may lack gradient functions that were inside this one.
    - `has_rule`: whether the function is known to have a rule of its author, so that automatic
        differentiation is no substitute for a gradient that cannot be read.
    - `drops_forward`: whether the function computes its results without its rule when it is
        differentiated, which matters to second derivatives, and is not kept.
    """

    location: str
    run: Callable[[Sequence[Value], Sequence[Value], bool], Sequence[Value | None]]
    problem: str = ""
    convention: Literal["jax", "tensorflow"] = "tensorflow"
    read_nested: Callable[[], object] | None = None
    compares_nested: bool = False
    first_only: bool = False
    has_rule: bool = False
    drops_forward: bool = False


def without_derivative(text: str, *, warn: bool = False) -> Callable[..., Value]:
    """An identity that raises `LookupError` when differentiated, as in TensorFlow, or warns.

    Later arguments are the inputs of the function that computed the value. By them, its program may
    have a zero derivative where the author's function has another, as for a rounding.
    """

    def prevent_gradient(x: Value, *_: Value) -> Value:
        return x

    def jvp(primals: tuple[Value, ...], tangents: tuple[Value, ...]) -> tuple[Value, Value]:
        x, t = primals[0], tangents[0]
        if all(isinstance(t, SymbolicZero) for t in tangents):
            return x, t
        if not warn:
            raise LookupError(text)
        warnings.warn(text, stacklevel=2)
        return x, t

    identity = jax.custom_jvp(prevent_gradient)
    identity.defjvp(jvp, symbolic_zeros=True)
    return identity


custom_gradient_p = Primitive("custom_gradient")
custom_gradient_p.multiple_results = True


def mark(
    gradient: Gradient, results: Sequence[Value], inputs: Sequence[Value], captures: Sequence[Value]
) -> list[Value]:
    """Mark results as those of a function of `inputs` with this gradient."""
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


def _identity(*values: Value, counts: Sequence[int], **_: object) -> list[Value]:
    return list(values[: counts[0]])


custom_gradient_p.def_impl(_identity)
custom_gradient_p.def_abstract_eval(_identity)
mlir.register_lowering(custom_gradient_p, mlir.lower_fun(_identity, multiple_results=True))


# A marker differentiated or batched before it is settled is the identity.
def _jvp(primals: Value, tangents: Value, *, counts: Sequence[int], **_: object) -> Value:
    return _identity(*primals, counts=counts), _identity(*tangents, counts=counts)


def _batch(args: Value, dims: Value, *, counts: Sequence[int], **_: object) -> Value:
    return _identity(*args, counts=counts), _identity(*dims, counts=counts)


ad.primitive_jvps[custom_gradient_p] = _jvp
batching.primitive_batchers[custom_gradient_p] = _batch
