"""Runs TensorFlow and conversions side by side, many cases in one program.

A program per case would spend all its time in compilers. TensorFlow's results are computed first;
then the conversions of all cases are compiled and run as one program. Values, dtypes and shapes are
compared. JAX's gradient of the conversion and, on request, the conversion of TensorFlow's gradient
graph are compared with the gradient that TensorFlow computes.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import tensorflow as tf

import invert
from invert.frontends.tf_function import entry_point

# Every case makes functions of its own, and TensorFlow would say so each time.
tf.get_logger().setLevel("ERROR")

PLAIN = invert.Config(patterns=False, verify=False)
# Most of the time goes into compiling programs that run once.
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}

# Relative to the largest number of a result. Sums are ordered differently, and the functions of XLA
# and Eigen differ by some units in the last place.
TOLERANCE = {"float64": 1e-9, "complex128": 1e-9, "float32": 3e-5, "complex64": 3e-5,
             "float16": 8e-3, "bfloat16": 5e-2}  # fmt: skip
# Of sums in another order, for values around one.
OF_SUMS = {"float64": 1e-10, "float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}

# What TensorFlow raises where it cannot run an op; a `RuntimeError` where it needs a graph.
FAILURES = (tf.errors.OpError, NotImplementedError, RuntimeError, TypeError, ValueError)


class NoKernel(Exception):
    """TensorFlow cannot run a case.

    **Attributes:**

    - `refused`: whether it has a kernel, which does not take the inputs.
    """

    def __init__(self, errors: Sequence[BaseException]):
        super().__init__("; ".join(f"{type(e).__name__}: {str(e)[:400]}" for e in errors))
        absent = (tf.errors.NotFoundError, tf.errors.UnimplementedError)
        self.refused = not all(
            isinstance(e, absent) or "No OpKernel" in str(e) or "Could not find device" in str(e)
            for e in errors
        )


# -- how far results may be apart

# Relative and absolute tolerance of a result; takes what is wanted, and the dtypes of inputs.
Limits = Callable[[np.ndarray, Sequence[str]], tuple[float, float]]


def inexact(x: Any) -> bool:
    """Whether an array or dtype is floating-point or complex."""
    return jnp.issubdtype(np.dtype(getattr(x, "dtype", x)), jnp.inexact)


def largest(x: np.ndarray) -> float:
    """The largest finite magnitude, at least one."""
    finite = np.abs(x[np.isfinite(x)])
    return max(1.0, float(finite.max())) if finite.size else 1.0


def by_dtype(factor: float = 1.0, *, scaled: bool = True) -> Limits:
    """A tolerance by the narrowest dtype of inputs and result.

    **Arguments:**

    - `scaled`: whether it is relative to the largest number, or to each by itself.
    """

    def limits(want: np.ndarray, names: Sequence[str]) -> tuple[float, float]:
        if not inexact(want):
            return 0.0, 0.0
        rtol = max(TOLERANCE.get(n, 0.0) for n in (*names, str(want.dtype))) * factor
        return rtol, rtol * (largest(_widened(want)) if scaled else 1.0)

    return limits


def fixed(rtol: float | None = None, atol: float | None = None) -> Limits:
    """The given tolerances for every dtype; those of sums where one is missing."""

    def limits(want: np.ndarray, names: Sequence[str]) -> tuple[float, float]:
        usual = OF_SUMS.get(want.dtype.name, 0.0)
        scale = largest(_widened(want)) if inexact(want) else 0.0
        return usual if rtol is None else rtol, usual * scale if atol is None else atol

    return limits


def units(rtol: float | None, atol: float = 0.0) -> Limits:
    """Tolerances in units of the machine epsilon; `None`: bitwise, except for the sign of zeros."""

    def limits(want: np.ndarray, names: Sequence[str]) -> tuple[float, float]:
        unit = eps(want.dtype) if inexact(want) else 0.0
        return (rtol or 0.0) * unit, atol * unit

    return limits


def eps(dtype: Any) -> float:
    """The machine epsilon of a dtype; for complex ones, of the parts."""
    kind = np.dtype(dtype)
    if kind.kind == "c":
        kind = np.dtype(np.float32 if kind.itemsize == 8 else np.float64)
    return float(ml_dtypes.finfo(kind).eps)


def _widened(x: np.ndarray) -> np.ndarray:
    return x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)


def difference(
    got: Any, want: np.ndarray, close: Limits, inputs: Sequence[np.ndarray] = ()
) -> str | None:
    """How two arrays differ in dtype, shape or numbers; `None` if they agree."""
    got = np.asarray(got)
    if got.dtype != want.dtype or got.shape != want.shape:
        return f"{got.dtype}{got.shape} instead of {want.dtype}{want.shape}"
    if want.dtype.kind in "OSU":
        differs = got != want
    else:
        rtol, atol = close(want, [str(x.dtype) for x in inputs])
        with np.errstate(all="ignore"):
            g, w = _widened(got), _widened(want)
            near = np.isclose(g, w, rtol=rtol, atol=atol, equal_nan=True)
            differs = (got != want) & ~near & ~(np.isnan(g) & np.isnan(w))
    if not differs.any():
        return None
    places = [tuple(int(i) for i in place) for place in np.argwhere(differs)[:4]]
    of = [tuple(x[p] for x in inputs) for p in places if all(x.shape == want.shape for x in inputs)]
    told = f" for {of}" if of and inputs else ""
    ours, theirs = [got[p] for p in places], [want[p] for p in places]
    return f"{int(differs.sum())} of {want.size} differ; at {places}{told}: {ours}, not {theirs}"


def differences(
    what: str,
    got: Sequence[Any],
    want: Sequence[np.ndarray],
    close: Limits,
    inputs: Sequence[np.ndarray] = (),
) -> list[str]:
    """Which of several arrays differ, and how."""
    if len(got) != len(want):
        return [f"{len(got)} {what}s, not {len(want)}"]
    texts = [difference(g, w, close, inputs) for g, w in zip(got, want, strict=True)]
    return [f"{what} {i}: {text}" for i, text in enumerate(texts) if text is not None]


# -- cases, and what TensorFlow gives


def nothing() -> None:
    """A reset without any state."""


_CLOSE, _SLOPES_CLOSE = by_dtype(), by_dtype(5)


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """One call to compare.

    **Arguments:**

    - `name`: what messages call it.
    - `function`: takes tensors; its result is flattened, what is not a number left out.
    - `inputs`: what it takes.
    - `close`, `slope_close`: how far values and gradients may be apart.
    - `grad`: whether gradients are compared, in all inputs with a fraction, where TensorFlow has
        them.
    - `needs_grad`: it has to have them, and unconnected inputs have a gradient of zero.
    - `graph`: whether its gradient graph is converted as well.
    - `modes`: how TensorFlow runs it, the first that works: `"eager"`, `"graph"` or `"xla"`.
    - `reference`: computes what is wanted, in place of `function`.
    - `reset`: called before each run, where there is state.
    """

    name: str
    function: Callable[..., Any]
    inputs: tuple[np.ndarray, ...]
    close: Limits = _CLOSE
    slope_close: Limits = _SLOPES_CLOSE
    grad: bool = True
    needs_grad: bool = False
    graph: bool = False
    modes: tuple[str, ...] = ("eager", "graph", "xla")
    reference: Callable[..., Any] | None = None
    reset: Callable[[], None] = nothing

    @property
    def specs(self) -> list[tf.TensorSpec]:
        return [tf.TensorSpec(x.shape, x.dtype) for x in self.inputs]

    def flat_function(self, *xs: Any) -> list[Any]:
        return flat(self.function(*xs))


def flat(result: Any) -> list[Any]:
    """The tensors of a result, including the components of ragged and sparse ones."""
    leaves = tf.nest.flatten(result, expand_composites=True)
    numbers = (tf.Tensor, tf.Variable, np.ndarray, np.generic, int, float, complex, bool)
    return [tf.convert_to_tensor(t) for t in leaves if isinstance(t, numbers)]


@dataclasses.dataclass
class Reference:
    """TensorFlow's results.

    **Attributes:**

    - `gradients`: by the number of the input.
    - `cotangents`: those of the gradients, one for each result.
    """

    results: list[np.ndarray]
    cotangents: list[np.ndarray]
    gradients: dict[int, np.ndarray]


def reference(case: Case) -> Reference:
    """Run a case in TensorFlow, with its gradient.

    **Raises:** `NoKernel` where TensorFlow cannot.
    """
    function = case.reference or case.function
    errors: list[BaseException] = []
    for mode in case.modes:
        try:
            results = run_tensorflow(case, function, mode)
        except FAILURES as error:
            errors.append(error)
            continue
        cotangents = [cotangent(y) for y in results]
        found = gradients(case, function, mode, cotangents) if case.grad else {}
        return Reference(results, cotangents, found)
    raise NoKernel(errors)


def run_tensorflow(case: Case, function: Callable[..., Any], mode: str) -> list[np.ndarray]:
    """The results of a function of a case's inputs, run in one mode."""
    case.reset()

    def flattened(*xs: Any) -> list[Any]:
        return flat(function(*xs))

    run: Callable[..., list[Any]] = flattened
    if mode != "eager":
        run = tf.function(flattened, autograph=False, jit_compile=mode == "xla" or None)
    return [t.numpy() for t in run(*map(tf.constant, case.inputs))]


def by_xla(cases: Sequence[Case]) -> list[list[np.ndarray] | None]:
    """The results of each when TensorFlow compiles it with XLA, or `None` if it cannot."""
    inputs = [tf.constant(x) for case in cases for x in case.inputs]
    together = joined([c.flat_function for c in cases], [len(c.inputs) for c in cases])
    compiled = tf.function(together, autograph=False, jit_compile=True)
    try:
        return [[t.numpy() for t in part] for part in compiled(*inputs)]
    except FAILURES:
        if len(cases) == 1:
            return [None]
    return [by_xla([case])[0] for case in cases]


def cotangent(y: np.ndarray) -> np.ndarray:
    """Fixed nonzero weights of a result, chosen so that gradients do not cancel."""
    g = np.random.default_rng(1)

    def draw() -> np.ndarray:
        return np.asarray(np.round(g.uniform(0.5, 1.5, y.shape) * 8) / 8)

    return np.asarray(draw() + 1j * draw() if y.dtype.kind == "c" else draw()).astype(y.dtype)


def gradient_function(
    case: Case, function: Callable[..., Any], cotangents: Sequence[np.ndarray], has: list[bool]
) -> Callable[..., list[Any]]:
    """TensorFlow's gradient of a function of a case's inputs; `has` receives which exist."""
    where = [i for i, x in enumerate(case.inputs) if inexact(x)]

    def gradient(*xs: Any) -> list[Any]:
        xs = tuple(map(tf.convert_to_tensor, xs))
        with tf.GradientTape() as tape:
            tape.watch([xs[i] for i in where])
            ys = flat(function(*xs))
        pairs = [(y, c) for y, c in zip(ys, cotangents, strict=True) if inexact(c)]
        found = tape.gradient(
            [y for y, _ in pairs],
            [xs[i] for i in where],
            output_gradients=[tf.constant(c) for _, c in pairs],
            unconnected_gradients="zero" if case.needs_grad else "none",
        )
        has[:] = [g is not None for g in found]
        return [tf.convert_to_tensor(g) for g in found if g is not None]

    return gradient


def gradients(
    case: Case, function: Callable[..., Any], mode: str, cotangents: Sequence[np.ndarray]
) -> dict[int, np.ndarray]:
    """TensorFlow's gradients by input number; none if it has none."""
    where = [i for i, x in enumerate(case.inputs) if inexact(x)]
    if not where or not any(map(inexact, cotangents)):
        return {}
    has: list[bool] = []
    try:
        found = run_tensorflow(case, gradient_function(case, function, cotangents, has), mode)
    except (AttributeError, LookupError, *FAILURES):
        if case.needs_grad:
            raise
        return {}
    return dict(zip([i for i, h in zip(where, has, strict=True) if h], found, strict=True))


# -- conversions


def conversion(
    function: Callable[..., Any],
    specs: Sequence[Any],
    config: invert.Config = PLAIN,
    *,
    module: bool = False,
) -> Callable[..., list[Any]]:
    """The conversion of a function, as a function of arrays with flat results.

    Random ops use the key of seed zero. `module`: the module that users get; otherwise the entry
    point, which also runs stateful functions.
    """
    flattened = flat_function(function)
    concrete = flattened.get_concrete_function(*specs)
    if not module:
        fn, draws = entry(concrete, config)
        keys = [jax.random.key(0)] if draws else []
        return lambda *xs: fn(*xs, *keys)
    converted = invert.convert(concrete, config=config)
    named = {"key": jax.random.key(0)} if "key" in inspect.signature(converted).parameters else {}
    return lambda *xs: jax.tree_util.tree_leaves(converted(*xs, **named))


def flat_function(function: Callable[..., Any]) -> Any:
    """A `tf.function` that returns the flat results of another."""
    return tf.function(lambda *xs: flat(function(*xs)), autograph=False)


def entry(concrete: Any, config: invert.Config = PLAIN) -> tuple[Callable[..., list[Any]], bool]:
    """The entry point of a concrete function, on arrays and a key; whether it takes the key."""
    point = entry_point(concrete, config=config)
    count = point.out_tree.num_leaves
    params = [v.value for v in point.params]
    return lambda *xs: list(point.fn(params, *xs))[:count], point.draws


def pullback(
    fn: Callable[..., Any], xs: Sequence[Any], where: Sequence[int], cotangents: Sequence[Any]
) -> list[Any]:
    """Gradients in some arguments, as TensorFlow defines them for complex numbers.

    **Arguments:**

    - `cotangents`: for each result; ignored for results that are not floats.
    """
    if not where:
        return []

    def some(*varied: Any) -> list[Any]:
        full = list(xs)
        for i, v in zip(where, varied, strict=True):
            full[i] = v
        return [y for y, c in zip(fn(*full), cotangents, strict=True) if inexact(c)]

    _, pull = jax.vjp(some, *(xs[i] for i in where))
    # TensorFlow's gradient of a complex number is the conjugate of JAX's.
    given = [jnp.conj(jnp.asarray(c)) for c in cotangents if inexact(c)]
    return [jnp.conj(g) for g in pull(given)]


def joined(functions: Sequence[Callable[..., Any]], counts: Sequence[int]) -> Callable[..., Any]:
    """One function of the arguments of several, which returns a list for each."""

    def function(*xs: Any) -> list[list[Any]]:
        return [fn(*part) for fn, part in zip(functions, split(xs, counts), strict=True)]

    return function


def split(values: Sequence[Any], counts: Sequence[int]) -> list[list[Any]]:
    """Cut a sequence into lists of the given lengths."""
    rest = iter(values)
    return [[next(rest) for _ in range(count)] for count in counts]


# -- runs


@dataclasses.dataclass
class Outcome:
    """The outcome of a case.

    **Attributes:**

    - `absent`: why TensorFlow cannot run it; nothing is compared then.
    - `slopes`: whether gradients were compared.
    """

    case: Case
    wrong: list[str] = dataclasses.field(default_factory=list)
    absent: NoKernel | None = None
    slopes: bool = False


def run(
    cases: Sequence[Case], *, module: bool = False, options: Mapping[str, Any] | None = None
) -> list[Outcome]:
    """Compare cases, converted and compiled as one program.

    **Arguments:**

    - `module`: whether the modules are run, or the entry points.
    - `options`: those of XLA.
    """
    outcomes = [Outcome(case) for case in cases]
    ready: list[tuple[Outcome, Reference]] = []
    for outcome in outcomes:
        try:
            ready.append((outcome, reference(outcome.case)))
        except NoKernel as error:
            outcome.absent = error
    compare = functools.partial(_compare, module=module, options=options)
    try:
        compare(ready)
    except Exception as error:
        if len(ready) == 1:
            raise
        for outcome, wanted in ready:
            outcome.wrong.clear()
            try:
                compare([(outcome, wanted)])
            except Exception as own:  # noqa: BLE001  reported with the others
                outcome.wrong.append(f"{outcome.case.name}: {type(own).__name__}: {own}"[:700])
        if not any(outcome.wrong for outcome, _ in ready):
            raise error
    return outcomes


def _compare(
    ready: Sequence[tuple[Outcome, Reference]],
    module: bool,
    options: Mapping[str, Any] | None,
) -> None:
    cases = [outcome.case for outcome, _ in ready]
    if not cases:
        return
    counts = [len(case.inputs) for case in cases]
    arrays = [x for case in cases for x in case.inputs]
    starts = np.cumsum([0, *counts])
    where = [
        int(start) + i
        for start, (_, wanted) in zip(starts, ready, strict=False)
        for i in wanted.gradients
    ]
    # Cases without gradients have no cotangents.
    cotangents = [
        c if wanted.gradients else np.zeros(c.shape, np.int32)
        for _, wanted in ready
        for c in wanted.cotangents
    ]
    backward = [
        (case, gradient_function(case, case.function, wanted.cotangents, []))
        for case, (_, wanted) in zip(cases, ready, strict=True)
        if case.graph and wanted.gradients
    ]
    for case in cases:
        case.reset()
    with jax.enable_x64(True):  # as conversion does
        forward = converted_together([(c, c.function) for c in cases], module)
        slopes = converted_together(backward, module) if backward else None
        given = [x for case, _ in backward for x in case.inputs]

        def program(xs: Sequence[Any], given: Sequence[Any]) -> Any:
            pulled = pullback(forward, xs, where, cotangents)
            return forward(*xs), pulled, slopes(*given) if slopes else []

        got, pulled, of_graphs = jax.jit(program, compiler_options=options)(arrays, given)
    results, pulled, of_graphs = iter(got), iter(pulled), iter(of_graphs)
    assert len(got) == sum(len(wanted.results) for _, wanted in ready)
    for (outcome, wanted), case in zip(ready, cases, strict=True):
        want, slope = wanted.results, list(wanted.gradients.values())
        texts = differences("result", [next(results) for _ in want], want, case.close, case.inputs)
        close = case.slope_close
        found = [next(pulled) for _ in slope]
        texts += differences("gradient", found, slope, close, case.inputs)
        if case.graph and slope:
            found = [next(of_graphs) for _ in slope]
            texts += differences("gradient of the graph", found, slope, close, case.inputs)
        outcome.wrong += [f"{case.name}: {text}" for text in texts]
        outcome.slopes = bool(slope)


def converted_together(
    parts: Sequence[tuple[Case, Callable[..., Any]]], module: bool = False
) -> Callable[..., list[Any]]:
    """The functions of several cases' inputs, converted as one, which is traced once."""
    together = joined([function for _, function in parts], [len(c.inputs) for c, _ in parts])
    specs = [spec for case, _ in parts for spec in case.specs]
    return jax.jit(conversion(together, specs, module=module))


def check_cases(*cases: Case, **how: Any) -> None:
    """Fail with every mistake in the cases.

    **Raises:** `NoKernel` where TensorFlow cannot run one of them.
    """
    outcomes = run(cases, **how)
    for outcome in outcomes:
        if outcome.absent is not None:
            raise outcome.absent
    wrong = [text for outcome in outcomes for text in outcome.wrong]
    assert not wrong, "\n".join(wrong)


def check(
    fn: Callable[..., Any],
    *inputs: Any,
    grad: bool = True,
    tf_grad: bool = True,
    xla: bool = False,
    rtol: float | None = None,
    atol: float | None = None,
    reference: Callable[..., Any] | None = None,
) -> None:
    """Fail unless a function and its conversion agree.

    **Arguments:**

    - `grad`: also compares gradients, which TensorFlow has to have.
    - `tf_grad`: whether its gradient graph can be converted, and is compared too.
    - `xla`: TensorFlow compiles `fn`, where its own kernels lack a case (channels first, groups).
    - `reference`: computes what is wanted, in place of `fn`.
    """
    close, modes = fixed(rtol, atol), ("xla",) if xla else ("graph",)
    case = Case(
        getattr(fn, "__name__", "function"), fn, tuple(map(np.asarray, inputs)), close, close,
        grad=grad, needs_grad=True, graph=tf_grad, modes=modes, reference=reference,
    )  # fmt: skip
    check_cases(case, options=QUICK)


def compare(
    got: Sequence[Any],
    want: Sequence[np.ndarray],
    rtol: float | None = None,
    atol: float | None = None,
    what: str = "value",
) -> None:
    """Fails unless arrays agree in dtype, shape and numbers."""
    texts = differences(what, got, [np.asarray(w) for w in want], fixed(rtol, atol))
    assert not texts, "\n".join(texts)


def converted(fn: Callable[..., Any], inputs: Sequence[Any]) -> Callable[..., list[Any]]:
    """The entry point of a function, on arrays like `inputs`, then a key if it draws."""
    specs = [tf.TensorSpec(np.shape(x), np.asarray(x).dtype) for x in inputs]
    return entry(flat_function(fn).get_concrete_function(*specs))[0]
