"""Test cases of TensorFlow ops, made from their definitions and a table of inputs.

The definition of an op (`OpDef`) states its inputs, attributes and allowed dtypes. A recipe adds
the shapes, ranges and static arguments of a valid call. Ops that need no attribute, with inputs of
one type only, need no recipe.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops
from tensorflow.python.framework import op_def_library

from tests.tf.ops.driver import (
    Case,
    NoKernel,
    Outcome,
    by_dtype,
    entry,
    flat_function,
    nothing,
    reference,
    run,
)

FLOATS = ("float32", "float64", "float16", "bfloat16")
INTS = ("int32", "int64", "int8", "int16", "uint8", "uint16", "uint32", "uint64")
COMPLEX = ("complex64", "complex128")
# In the order in which the first one that an op allows is its dtype in the quick tests.
DTYPES = (*FLOATS, *COMPLEX, *INTS, "bool")


@dataclasses.dataclass(frozen=True)
class X:
    """An argument of the function: its shape and the range of its values.

    **Arguments:**

    - `dtype`: where it is not that of the case.
    - `make`: makes the values from a generator of random numbers instead.
    """

    shape: tuple[int, ...]
    low: float | None = None
    high: float | None = None
    dtype: str | None = None
    make: Callable[[np.random.Generator], Any] | None = None


def x(*shape: int, low: float | None = None, high: float | None = None, **rest: Any) -> X:
    return X(shape, low, high, **rest)


def ids(*shape: int, high: int, low: int = 0, dtype: str = "int32") -> X:
    """Integers below `high`."""
    return X(shape, low, high, dtype)


def spd(n: int, batch: tuple[int, ...] = ()) -> X:
    """Positive definite matrices."""

    def make(g: np.random.Generator) -> Any:
        a = g.normal(size=(*batch, n, n))
        return a @ np.swapaxes(a, -1, -2) + n * np.eye(n)

    return X((*batch, n, n), make=make)


@dataclasses.dataclass(frozen=True)
class Moments:
    """What is known about random numbers."""

    mean: float
    deviation: float
    low: float
    high: float


@dataclasses.dataclass(frozen=True)
class Recipe:
    """One way to call an op.

    **Arguments:**

    - `given`: inputs and attributes of the raw op by name.
    - `post`: applied to the results, where those are not unique (signs of eigenvectors).
    - `dtypes`: dtypes to try, where they are fewer than the definition allows.
    - `program`: a function that calls the op, instead of the raw op. It takes the data
        inputs; `given` then holds them under numbers.
    - `grad`: whether gradients are compared.
    - `tolerance`: a factor for the tolerance.
    - `dynamic`: results have sizes that depend on data: the inputs are given as constants.
    - `moments`: all that is compared of the results beside their types, where TensorFlow leaves the
        numbers open.
    """

    given: dict[str, Any]
    post: Callable[..., Any] | None = None
    dtypes: tuple[str, ...] | None = None
    program: Callable[..., Any] | None = None
    grad: bool = True
    tolerance: float = 1.0
    dynamic: bool = False
    moments: Moments | None = None


_OPTIONS = ("post", "dtypes", "grad", "tolerance", "dynamic")


def r(**given: Any) -> Recipe:
    options = {k: given.pop(f"_{k}") for k in _OPTIONS if f"_{k}" in given}
    return Recipe(given, **options)


def p(
    program: Callable[..., Any], *inputs: X, dtypes: tuple[str, ...] = FLOATS, **rest: Any
) -> Recipe:
    """A program that takes `inputs`; it may take the dtype as `dtype=`."""
    return Recipe(dict(enumerate(inputs)), program=program, dtypes=dtypes, **rest)  # pyright: ignore


class Variables:
    """A program on variables, which are created for each dtype and set before each run."""

    def __init__(self, program: Callable[..., Any], *values: np.ndarray):
        self.program = program
        self.values = values

    def bound(self, dtype: str) -> tuple[Callable[..., Any], Callable[[], None]]:
        """The program on variables of `dtype`, and a function that resets them."""
        np_dtype = tf.dtypes.as_dtype(dtype).as_numpy_dtype
        first = [v.astype(np_dtype) for v in self.values]
        variables = [tf.Variable(v) for v in first]

        def reset() -> None:
            for variable, value in zip(variables, first, strict=True):
                variable.assign(value)

        def run(*args: Any) -> Any:
            for variable in variables:
                variable.read_value()  # which makes it a variable of the graph
            return self.program(variables, *args)

        return run, reset


@dataclasses.dataclass(frozen=True, eq=False)
class Drawn(Case):
    """The case of a recipe, by number, in a dtype."""

    op: str = ""
    number: int = 0
    dtype: str = ""
    recipe: Recipe = dataclasses.field(default_factory=lambda: Recipe({}))

    @property
    def alone(self) -> bool:
        """Whether it cannot share a program with others, or run eagerly."""
        return (
            isinstance(self.recipe.program, Variables)
            or self.recipe.moments is not None
            or self.op == "RandomShuffle"  # whose order is that of the key
            or self.op.startswith(("Stack", "TensorArray", "Xla", "Stateful"))
        )

    @classmethod
    def of(
        cls, op: str, number: int, dtype: str, recipe: Recipe, function: Any, inputs: Any
    ) -> Drawn:
        """The case of a function, or of a program on variables."""
        bound = function.bound(dtype) if isinstance(function, Variables) else (function, nothing)
        one = cls(
            f"{op}-{number}-{dtype}", bound[0], tuple(inputs), by_dtype(recipe.tolerance),
            by_dtype(5 * recipe.tolerance), grad=recipe.grad, reset=bound[1],
            op=op, number=number, dtype=dtype, recipe=recipe,
        )  # fmt: skip
        # Those with oneDNN give empty results where they run eagerly.
        in_graphs = one.alone or op.startswith("Quantized")
        return dataclasses.replace(one, modes=("graph", "xla")) if in_graphs else one


# Names of inputs that the Python function calls otherwise than the definition.
_ALIASES = {"reduction_indices": "axis", "split_dim": "axis", "dim": "axis", "input": "condition",
            "t": "x", "e": "y"}  # fmt: skip


def raw_op(op: str) -> Callable[..., Any]:
    """The Python function of an op; those of `Xla…` ops have their own module."""
    if hasattr(tf.raw_ops, op):
        return getattr(tf.raw_ops, op)
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", op).lower()
    if hasattr(gen_xla_ops, snake):
        return getattr(gen_xla_ops, snake)

    def call(**given: Any) -> Any:  # which works only in graphs
        apply = op_def_library.apply_op
        return tf.function(lambda: apply(op, **given), autograph=False)()

    return call


def op_def(op: str) -> Any:
    return tf.Graph().op_def_for_type(op)


def _default(op: str) -> list[Recipe]:
    definition = op_def(op)
    needed = [
        a.name for a in definition.attr if not a.HasField("default_value") and a.type != "type"
    ]
    plain = all(
        not a.number_attr and not a.type_list_attr and a.type != tf.resource.as_datatype_enum
        for a in definition.input_arg
    )
    if needed or not plain or not definition.input_arg:
        return []
    return [r(**{a.name: x(2, 3) for a in definition.input_arg})]


def recipes_of(op: str, table: Mapping[str, list[Recipe]]) -> list[Recipe]:
    """The recipes of `op` in `table`, or the default one; none if it needs one and has none."""
    return table[op] if op in table else _default(op)


def _main_attr(op: str, recipe: Recipe) -> Any:
    """The type attribute that the dtype of a case sets."""
    definition = op_def(op)
    by_name = {a.name: a for a in definition.attr}
    for arg in definition.input_arg:
        given = recipe.given.get(arg.name)
        first = given[0] if isinstance(given, list) and given else given
        if isinstance(first, X) and first.dtype is None and arg.type_attr:
            return by_name[arg.type_attr]
    return None


def dtypes_of(op: str, recipe: Recipe) -> tuple[str, ...]:
    """The dtypes in which the recipe can be tried, in the order of `DTYPES`."""
    if recipe.dtypes is not None:
        return recipe.dtypes
    attr = _main_attr(op, recipe)
    if attr is None:
        return ("float32",)
    allowed = {tf.dtypes.as_dtype(t).name for t in attr.allowed_values.list.type}
    return tuple(d for d in DTYPES if not allowed or d in allowed)


def values(spec: X, dtype: str, g: np.random.Generator) -> np.ndarray:
    """Values of an input; floats are multiples of 1/64, which narrow types can represent."""
    np_dtype = tf.dtypes.as_dtype(spec.dtype or dtype).as_numpy_dtype
    kind = np.dtype(np_dtype).kind
    if spec.make is not None:
        made = spec.make(g)
        return np.asarray(made).astype(np_dtype)
    if np_dtype is np.bool_:
        return g.random(spec.shape) > 0.4
    if kind in "iu":
        low = (0 if kind == "u" else -5) if spec.low is None else int(np.ceil(spec.low))
        high = 7 if spec.high is None else max(int(np.ceil(spec.high)), low + 1)
        return g.integers(max(low, 0) if kind == "u" else low, high, spec.shape).astype(np_dtype)
    low = -2.0 if spec.low is None else spec.low
    high = 2.0 if spec.high is None else spec.high

    def draw() -> Any:
        return np.round(g.uniform(low, high, spec.shape) * 64) / 64

    drawn = draw() + 1j * draw() if kind == "c" else draw()
    return np.asarray(drawn).astype(np_dtype)


_WIDE = {"float32": "float64", "complex64": "complex128"}


def _attr_dtype(definition: Any, name: str, main: Any, dtype: str) -> str:
    """The dtype of an unset type attribute: the main one, its default, or the first."""
    if main is not None and main.name == name:
        return dtype
    attr = next(a for a in definition.attr if a.name == name)
    allowed = [tf.dtypes.as_dtype(t).name for t in attr.allowed_values.list.type]
    default = (
        tf.dtypes.as_dtype(attr.default_value.type).name if attr.HasField("default_value") else ""
    )
    chosen = default or next(
        d for d in ("int32", "float32", *allowed) if not allowed or d in allowed
    )
    wide = dtype in _WIDE.values() and name in ("Tout", "Treal", "Tcomplex")
    chosen = _WIDE.get(chosen, chosen) if wide else chosen
    if dtype in allowed and name in ("T_threshold", "TInput", "Tb", "RhsT"):
        return dtype
    return chosen


def case(op: str, number: int, recipe: Recipe, dtype: str) -> Drawn:
    """The case of a recipe in a dtype."""
    g = np.random.default_rng(zlib.crc32(f"{op} {number}".encode()))
    if recipe.program is not None:
        inputs = tuple(values(spec, dtype, g) for spec in recipe.given.values())
        return Drawn.of(op, number, dtype, recipe, recipe.program, inputs)
    definition = op_def(op)
    main = _main_attr(op, recipe)
    made: dict[str, Any] = {}
    inputs_list: list[np.ndarray] = []
    for arg in definition.input_arg:
        given = recipe.given[arg.name]
        many = bool(arg.number_attr or arg.type_list_attr)
        parts = []
        for item in given if many else [given]:
            own = tf.dtypes.as_dtype(arg.type).name if arg.type else None
            if arg.type_attr:
                own = _attr_dtype(definition, arg.type_attr, main, dtype)
            if isinstance(item, X):
                array = values(item, own or dtype, g)
                parts.append(len(inputs_list))
                inputs_list.append(array)
            else:
                parts.append(np.asarray(item, tf.dtypes.as_dtype(own or dtype).as_numpy_dtype))
        made[arg.name] = parts if many else parts[0]
    attrs = {k: v for k, v in recipe.given.items() if k not in made}
    for attr in definition.attr:
        output = any(attr.name == a.type_attr for a in definition.output_arg)
        fed = any(attr.name == a.type_attr for a in definition.input_arg)
        if attr.type == "type" and attr.name not in attrs and output and not fed:
            attrs[attr.name] = _attr_dtype(definition, attr.name, main, dtype)
    raw = raw_op(op)
    parameters = inspect.signature(raw).parameters
    alias = {k: v for k, v in _ALIASES.items() if k not in parameters}

    def function(*tensors: Any) -> Any:
        def tensor(part: Any) -> Any:
            return tensors[part] if isinstance(part, int) else tf.constant(part)

        kwargs = {
            alias.get(k, k): [tensor(q) for q in v] if isinstance(v, list) else tensor(v)
            for k, v in made.items()
        }
        result = raw(**kwargs, **attrs)
        if recipe.post is not None:
            return recipe.post(*(result if isinstance(result, (list, tuple)) else [result]))
        return result

    return Drawn.of(op, number, dtype, recipe, function, inputs_list)


def cases_of(op: str, table: Mapping[str, list[Recipe]]) -> list[Drawn]:
    """Every case of an op, in every dtype."""
    recipes = recipes_of(op, table)
    found = [[(i, rc, d) for d in dtypes_of(op, rc)] for i, rc in enumerate(recipes)]
    return [case(op, i, rc, d) for i, rc, d in itertools.chain(*found)]


def first_case(op: str, table: Mapping[str, list[Recipe]]) -> Drawn | None:
    """The first recipe in the first of its dtypes."""
    recipes: Sequence[Recipe] = recipes_of(op, table)
    return case(op, 0, recipes[0], dtypes_of(op, recipes[0])[0]) if recipes else None


def compare(cases: Sequence[Drawn], *, slopes: bool = False) -> list[Outcome]:
    """Compare cases as one program, except for those that must run alone.

    **Arguments:**

    - `slopes`: whether gradients are compared too.
    """
    cases = [c if slopes else dataclasses.replace(c, grad=False) for c in cases]
    outcomes = run([c for c in cases if not c.alone])
    for one in cases:
        if one.recipe.moments is not None:
            outcomes.append(Outcome(one))
            try:
                outcomes[-1].wrong += _wrong_moments(one, one.recipe.moments)
            except NoKernel as error:
                outcomes[-1].absent = error
        elif one.alone:
            outcomes += run([one])
    return outcomes


def _wrong_moments(one: Drawn, known: Moments) -> list[str]:
    """Compare types with TensorFlow's, and the moments of both with the known ones."""
    want = reference(one).results
    one.reset()
    with jax.enable_x64(True):
        function, draws = entry(flat_function(one.function).get_concrete_function(*one.specs))
        keys = [[jax.random.key(seed)] if draws else [] for seed in (0, 1)]
        jitted = jax.jit(function)
        drawn, others = ([np.asarray(y) for y in jitted(*one.inputs, *key)] for key in keys)
    wrong = [] if len(drawn) == len(want) else [f"{one.name}: {len(drawn)} results"]
    for x, y, other in zip(drawn, want, others, strict=False):
        if x.dtype != y.dtype or x.shape != y.shape:
            wrong.append(f"{one.name}: {x.dtype}{x.shape} instead of {y.dtype}{y.shape}")
        if np.array_equal(x, other) == draws:
            wrong.append(f"{one.name}: whether the key matters is not {draws}")
        for numbers in (x.astype(np.float64), y.astype(np.float64)):
            near = 0.05 * known.deviation
            if not (
                known.low <= numbers.min() <= numbers.max() <= known.high
                and abs(numbers.mean() - known.mean) <= near
                and abs(numbers.std() - known.deviation) <= near
            ):
                wrong.append(f"{one.name}: mean {numbers.mean()}, deviation {numbers.std()}")
    return wrong
