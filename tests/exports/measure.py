"""Measures values and derivatives of a model, also of a package in another process.

The original, the recovered module and the saved package are measured by the same functions. As a
script, this file reads directories from standard input, one per line, and measures the package in
each. Its process can import neither TensorFlow nor the package's maker.
"""

from __future__ import annotations

import functools
import importlib.util
import pickle
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

FORBIDDEN = ("tensorflow", "invert", "keras", "flax", "haiku", "orbax", "tests")


class Job(NamedTuple):
    """Where a model is measured.

    - `params`: the parameters of the original, in its order; `tie_params`: with biases of zero.
    - `points`: positional arguments at all sizes; `point` is one of them, for derivatives.
    - `ties`: arguments of the sizes of `point`, full of zeros and equal numbers.
    - `weights`: the loss is the sum of the results times these.
    - `directions`: for parameters and floating-point inputs, as `jax.jvp` takes tangents.
    """

    params: list[np.ndarray]
    tie_params: list[np.ndarray]
    points: list[Any]
    point: Any
    ties: list[Any]
    weights: list[list[np.ndarray]]
    directions: list[tuple[list[np.ndarray], list[np.ndarray]]]


class Raised(NamedTuple):
    """The error that was raised instead of a result."""

    kind: str
    text: str


Call = Callable[[Sequence[Any], Any], Any]


def leaves(tree: Any) -> list[Any]:
    return jax.tree_util.tree_leaves(tree)


def split(inputs: Any) -> tuple[list[Any], Callable[[Sequence[Any]], Any]]:
    """The floating-point arrays among the arguments, and a function that replaces them."""
    found, rest = eqx.partition(inputs, lambda x: np.issubdtype(np.asarray(x).dtype, np.floating))
    arrays, tree = jax.tree_util.tree_flatten(found)
    return arrays, lambda new: eqx.combine(jax.tree_util.tree_unflatten(tree, new), rest)


def aspects(call: Call, job: Job) -> dict[str, Callable[[], Any]]:
    """The aspects to measure, by name. `call(params, inputs)` returns the results."""
    inputs, joined = split(job.point)

    def loss(which: int = 0) -> Callable[..., Any]:
        def weighted(params: Any, arrays: Any, joined: Any = joined) -> Any:
            results = leaves(call(params, joined(arrays)))
            return sum(jnp.vdot(w, r) for w, r in zip(job.weights[which], results, strict=True))

        return weighted

    @functools.cache
    def gradients() -> Any:
        return jax.jit(jax.grad(loss(), (0, 1)))(job.params, inputs)

    def jvp() -> Any:
        def flat(params: Any, arrays: Any) -> Any:
            return leaves(call(params, joined(arrays)))

        run = jax.jit(lambda p, x, d: jax.jvp(flat, (p, x), d)[1])
        return run(job.params, inputs, job.directions[0])

    def hessian() -> Any:
        def along(steps: Any) -> Any:
            moved = (job.params, inputs)
            for step, direction in zip(steps, job.directions, strict=True):
                moved = jax.tree_util.tree_map(lambda x, d, s=step: x + s * d, moved, direction)
            return loss()(*moved)

        return [jax.jit(jax.hessian(along))(jnp.zeros(len(job.directions)))]

    def ties() -> Any:
        found = []
        for i, point in enumerate(job.ties):
            arrays, back = split(point)
            both = jax.jit(jax.grad(lambda p, x, i=i, back=back: loss(i + 1)(p, x, back), (0, 1)))
            found += leaves(both(job.tie_params, arrays))
        return found

    return {
        "values": lambda: [leaves(call(job.params, point)) for point in job.points],
        "gradients of parameters": lambda: gradients()[0],
        "gradients of inputs": lambda: gradients()[1],
        "jvp": jvp,
        "hessian": hessian,
        "ties": ties,
    }


def measure(call: Call, job: Job) -> dict[str, Any]:
    """All aspects of a model: NumPy arrays, or the errors raised."""
    return {name: attempt(run) for name, run in aspects(call, job).items()}


def attempt(run: Callable[[], Any]) -> Any:
    try:
        return jax.tree_util.tree_map(np.asarray, run())
    except Exception as error:  # noqa: BLE001  the test says what may be raised
        return raised(error)


def raised(error: Exception) -> Raised:
    return Raised(type(error).__name__, "".join(traceback.format_exception(error)[-6:]))


def as_call(model: Any, params: Sequence[np.ndarray]) -> tuple[Call, list[int]]:
    """A module as a function of the original's parameters, which are found by value.

    **Returns:** it, and for each parameter its place among the leaves of the module.
    """
    held, tree = jax.tree_util.tree_flatten(model)
    places = []
    for param in params:
        same = (i for i, v in enumerate(held) if eqx.is_array(v) and np.array_equal(v, param))
        places.append(next(same, -1))

    def call(values: Sequence[Any], inputs: Any) -> Any:
        new = list(held)
        for place, value in zip(places, values, strict=True):
            if place >= 0:
                new[place] = value
        return jax.tree_util.tree_unflatten(tree, new)(*inputs)

    return call, places


def measure_package(directory: Path) -> dict[str, Any]:
    """The package in `directory`, as its user runs it."""
    job = Job(**pickle.loads((directory / "job.pkl").read_bytes()))
    name = f"package_{directory.name}"
    spec = importlib.util.spec_from_file_location(name, directory / "package" / "model.py")
    package = importlib.util.module_from_spec(spec)
    sys.modules[name] = package
    spec.loader.exec_module(package)
    model = package.load(str(directory / "package" / "weights.safetensors"))
    call, places = as_call(model, job.params)
    result = measure(call, job)
    trains = getattr(package, "trainable", None)
    spec = jax.tree_util.tree_map(eqx.is_inexact_array, model) if trains is None else trains(model)
    result["parameters"] = places
    result["trainable"] = [bool(leaves(spec)[i]) for i in places if i >= 0]
    return result


class _Forbid:
    """An import finder that hides what a package may not need."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name.partition(".")[0] in FORBIDDEN:
            raise ModuleNotFoundError(f"{name} is not for packages", name=name)


def main() -> None:
    sys.meta_path.insert(0, _Forbid())
    for line in sys.stdin:
        directory = Path(line.strip())
        result = {k: plain(v) for k, v in attempt_package(directory).items()}
        (directory / "result.pkl").write_bytes(pickle.dumps(result))
        jax.clear_caches()
        print("done", flush=True)


def attempt_package(directory: Path) -> dict[str, Any]:
    try:
        return measure_package(directory)
    except Exception as error:  # noqa: BLE001  the test says what may be raised
        return {"runs": raised(error)}


def plain(value: Any) -> Any:
    """A result that another process can unpickle, in which this file is another module."""
    return tuple(value) if isinstance(value, Raised) else value


if __name__ == "__main__":
    main()
