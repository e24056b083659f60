"""The options of a conversion, passed explicitly instead of global state."""

from __future__ import annotations

import collections.abc
import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal


@dataclasses.dataclass(frozen=True)
class Config:
    """Options of a conversion.

    **Raises:** `ValueError` with all invalid options and their allowed values. A conversion raises
    it for names of patterns that do not exist.

    **Arguments:**

    - `platform`: the platform whose branch is taken from a module lowered for several (`"cpu"`,
        `"cuda"`, `"rocm"` or `"tpu"`). It is also the one that StableHLO text was lowered for,
        since the text does not name it. `None`: the platform of this process if the module has it,
        otherwise the module's first.
    - `patterns`: whether equations are rewritten into the primitives they came from; a tuple of
        names enables only these. `invert.patterns.names()` lists them.
    - `disabled_patterns`: names of patterns to leave out, those of `optimize` included.
    - `extra_patterns`: patterns of your own (`invert.Pattern`), applied after all others.
    - `verify`: whether the recovered program is lowered again and compared with the input, for the
        certificate in the report.
    - `custom_gradients`: treatment of the gradient functions in a container. `"check"`:
        one is kept as the rule of its function if it differs from automatic differentiation of the
        recovered program; `"keep"`: all are kept; `"ignore"`: none is read.
    - `prevent_gradient`: effect of differentiating a function exported with
        `with_gradient=False`. `"error"`: a `LookupError`; `"warn"`: a warning.
    - `assertions`: treatment of `tf.debugging` assertions and `tf.debugging.check_numerics`.
        `"drop"`: they are left out; `"error_if"`: they become `eqx.error_if`; `"checkify"`: they
        become `jax.experimental.checkify.check`, so that a compiled call needs
        `checkify.checkify`.
    - `strict_shapes`: whether a call at sizes other than the declared ones is an error. If not, the
        program is recovered again at the sizes of the call, unless it depends on the declared ones.
    - `strict_dtypes`: whether a call with dtypes other than the declared ones is an error. If not,
        the arguments are converted; a complex number never becomes a real one.
    - `bfloat16_constants`: dtypes (`"float32"`, `"float64"`) whose constants in the program are
        stored as bfloat16 and widened where they are used; variables stay. The certificate is
        `numerical` then, and says what it was before.
    - `resize_precision`: precision of the products that resize images (area, scale and translate),
        as for `jax.numpy.einsum`. TensorFlow's is the highest.
    - `platform_check`: whether a module lowered only for platforms other than this process's is an
        error. By default it is not: a recovered program runs on all platforms.
    - `max_scan`: a data-dependent loop bounded by at most this many steps becomes a `scan`, which
        has a reverse derivative. Its steps do nothing once the condition fails. Loops with a larger
        bound stay a `while`.
    - `dynamic_sizes`: treatment of results whose size depends on data. `"ids"`: results with rows
        (`tf.where` with one argument, `tf.boolean_mask`, `tf.unique`, non-maximum suppression) are
        padded and carry their length. An op or a caller that would see the padding rows is an
        error. Indices of sparse tensors (CTC decoders, accidental hits, `tf.sparse`) are padded
        with -1, and the report says so. `"pad"`: rows are padded too, and the code that uses them
        has to ignore the padding. `"error"`: all such results are errors.
    - `sizes`: names or numbers for the sizes of arguments, by argument, as in
        `{"x": "batch length 3"}`. A name makes a size an open dimension; equal names mean equal
        sizes; a number fixes a size. Named sizes of examples of a live TensorFlow function or Keras
        model stay open.
    - `random`: the numbers of TensorFlow's random ops with a seed or a generator. `"tensorflow"`:
        those that TensorFlow draws; seeds and states are kept. `"jax"`: numbers of `jax.random`;
        draws seeded by a generator (`tf.random.Generator`, Keras's `SeedGenerator`, and so dropout)
        take a `key` of the call. The state of the generator is dropped.
    - `host_ops`: treatment of TensorFlow ops that only a host can run (text, encoded images) and
        whose inputs depend on data. `"error"`: all of them are reported; `"callback"`: TensorFlow
        runs them at run time, in a `jax.pure_callback`.
    - `text`: treatment of arguments and results that are text. `"error"`: they are reported;
        `"split"`: results of text are left out, and so are the leading ops that turn text into
        numbers. The first numeric tensors become the arguments. The report names what is left out.
    - `optimize`: the platform to optimize for, `"cpu"` or `"gpu"`: some equations are rewritten, so
        that results are equal only up to rounding; see `invert.optimize`. `"none"`: the program is
        the one that was read.
    - `custom_objects`: classes and functions by name, as for Keras, for `.keras` files with layers
        of your own. Those registered with Keras in this process can be omitted.
    - `progress`: called with a line of text at the beginning of each stage.

    ??? example

        ```python
        import invert

        config = invert.Config(optimize="cpu", progress=print)
        module = invert.load("saved_model", config=config)
        ```
    """

    platform: Literal["cpu", "cuda", "rocm", "tpu"] | None = None
    patterns: bool | tuple[str, ...] = True
    disabled_patterns: tuple[str, ...] = ()
    extra_patterns: tuple[Any, ...] = ()
    verify: bool = True
    custom_gradients: Literal["check", "keep", "ignore"] = "check"
    prevent_gradient: Literal["error", "warn"] = "error"
    assertions: Literal["drop", "error_if", "checkify"] = "drop"
    strict_shapes: bool = True
    strict_dtypes: bool = True
    bfloat16_constants: tuple[Literal["float32", "float64"], ...] = ()
    resize_precision: Literal["default", "high", "highest"] = "highest"
    platform_check: bool = False
    max_scan: int = 4096
    dynamic_sizes: Literal["ids", "pad", "error"] = "ids"
    sizes: Mapping[str, str] | None = dataclasses.field(default=None, hash=False)
    random: Literal["tensorflow", "jax"] = "tensorflow"
    host_ops: Literal["error", "callback"] = "error"
    text: Literal["error", "split"] = "error"
    optimize: Literal["none", "cpu", "gpu"] = "none"
    custom_objects: Mapping[str, Any] | None = dataclasses.field(default=None, hash=False)
    progress: Callable[[str], None] | None = None

    def __post_init__(self) -> None:
        refuse(_problems(self))

    def __repr__(self) -> str:
        """Only the options that differ from their defaults, so that `help` stays readable."""
        return f"Config({', '.join(f'{name}={value!r}' for name, value in self.changed().items())})"

    def changed(self) -> Mapping[str, Any]:
        """The options that differ from their defaults."""
        fields = [(f, getattr(self, f.name)) for f in dataclasses.fields(self)]
        return {f.name: value for f, value in fields if value != f.default}

    def begin(self, stage: str) -> None:
        """Report the beginning of a stage to `progress`, if given."""
        if self.progress is not None:
            self.progress(stage)


def refuse(problems: Iterable[str]) -> None:
    """Raise `ValueError` with the problems of a `Config`, if there are any."""
    if lines := "".join(f"\n  - {p}" for p in problems):
        raise ValueError(f"Config has invalid options:{lines}")


@functools.cache
def _hints() -> Mapping[str, object]:
    return typing.get_type_hints(Config)


def _problems(config: Config) -> Iterator[str]:
    """The options with invalid values, by the types of the fields and further rules."""
    for field in dataclasses.fields(config):
        value, hint = getattr(config, field.name), _hints()[field.name]
        if not _fits(value, hint):
            *choices, last = _choices(hint)
            wanted = f"{', '.join(choices)} or {last}" if choices else last
            yield f"{field.name}={value!r}: expected {wanted}"
    own = config.extra_patterns if isinstance(config.extra_patterns, tuple) else ()
    if any(not hasattr(p, "name") or not hasattr(p, "roots") for p in own):
        yield f"extra_patterns={own!r}: expected a tuple of invert.Pattern"
    if isinstance(config.patterns, tuple) and isinstance(config.disabled_patterns, tuple):
        for name in dict.fromkeys(n for n in config.disabled_patterns if n in config.patterns):
            yield f"disabled_patterns: {name!r} is among patterns too"
    if _fits(config.max_scan, int) and config.max_scan < 0:
        yield f"max_scan={config.max_scan}: expected 0 or more"


def _fits(value: object, hint: object) -> bool:
    """Return whether a value is of a type that a field of `Config` may have."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return isinstance(value, str) and value in args
    if origin is tuple:
        return isinstance(value, tuple) and all(_fits(v, args[0]) for v in value)
    if origin is collections.abc.Mapping:
        items = value.items() if isinstance(value, Mapping) else [(None, None)]
        return all(_fits(x, arg) for item in items for x, arg in zip(item, args, strict=True))
    if origin is types.UnionType or origin is typing.Union:
        return any(_fits(value, arg) for arg in args)
    if origin is collections.abc.Callable:
        return callable(value)
    if hint is Any:
        return True
    return (
        isinstance(hint, type)
        and isinstance(value, hint)
        and (hint is bool or not isinstance(value, bool))
    )


def _choices(hint: object) -> list[str]:
    """The allowed values of a type, in words."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return [repr(arg) for arg in args]
    if origin is tuple:
        inner = [] if args[0] is Any else _choices(args[0])
        return ["a tuple" + (f" of {' and '.join(inner)}" if inner else "")]
    if origin is types.UnionType or origin is typing.Union:
        return [choice for arg in args for choice in _choices(arg)]
    if origin is collections.abc.Callable:
        return ["a function"]
    if origin is collections.abc.Mapping:
        return ["a mapping of names to names"]
    words = {bool: ["True", "False"], int: ["an integer"], str: ["names"]}
    return words.get(hint, ["None"])
