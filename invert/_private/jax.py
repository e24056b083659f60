"""Private parts of JAX, in one place to adapt to a new release.

Everything here exists in jax 0.10.2 and jax 0.12.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import re
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard, TypeVar, cast

import jax
import jax.export
import numpy as np
from jax._src import config, core, dispatch, pjit, source_info_util
from jax._src import linear_util as lu
from jax._src.ad_util import add_jaxvals_p as add_any_p
from jax._src.export import _export as export_internal
from jax._src.export import shape_poly
from jax._src.interpreters import mlir as jax_mlir
from jax._src.interpreters import partial_eval, pxla
from jax._src.lax import lax as lax_internal
from jax._src.lax import linalg as lax_linalg
from jax._src.mesh import empty_abstract_mesh, get_abstract_mesh
from jax._src.random import core as random_core
from jax._src.random import philox2x32, philox4x32, prng, threefry2x32, threefry4x32
from jax._src.util import weakref_lru_cache
from jaxlib import xla_client

from invert._private.meshes import on_whole_values
from invert._private.mlir import ir, make_reading_context, stablehlo_dialect, text_of
from invert._private.staging import inlined, tell_origin

if TYPE_CHECKING:
    # JAX's classes, except that every variable has an array type.
    class Var(core.Var):
        aval: core.ShapedArray  # pyright: ignore[reportIncompatibleVariableOverride]

    class Literal:
        val: Any
        aval: core.ShapedArray

        def __init__(self, val: object, aval: core.ShapedArray) -> None: ...

    class Eqn(core.JaxprEqn):
        invars: list[Var | Literal]  # pyright: ignore
        outvars: list[Var]  # pyright: ignore

        def replace(self, *args: object, **kwargs: object) -> Eqn: ...

    class Jaxpr(core.Jaxpr):
        constvars: list[Var]  # pyright: ignore
        invars: list[Var]  # pyright: ignore
        outvars: list[Var | Literal]  # pyright: ignore
        eqns: list[Eqn]  # pyright: ignore

        def replace(self, **kwargs: object) -> Jaxpr: ...

    class ClosedJaxpr(core.ClosedJaxpr):
        jaxpr: Jaxpr
        consts: Sequence[Any]

    # JAX accepts these wherever it accepts numbers, and annotates them as `int`.
    class DimExpr(int):
        scope: jax.export.SymbolicScope
else:
    DimExpr = shape_poly._DimExpr
    Var, Literal, Eqn, Jaxpr = core.Var, core.Literal, core.JaxprEqn, core.Jaxpr
    # jax 0.12 has one class for closed and open jaxprs.
    ClosedJaxpr = getattr(core, "ClosedJaxpr", core.Jaxpr)
ShapedArray = core.ShapedArray

Atom: TypeAlias = Var | Literal
# A closed jaxpr, or an open one.
AnyJaxpr: TypeAlias = ClosedJaxpr | Jaxpr
# Anything with a shape and a dtype: `ShapedArray`, `jax.ShapeDtypeStruct`.
Aval: TypeAlias = Any
# Values of an evaluator or a rule: arrays, tracers, NumPy arrays known at conversion, handles
# and pytrees such as a `TensorList`, atoms of another program, facts.
Value: TypeAlias = Any
# A function of arrays, as `jax.make_jaxpr` takes it.
JaxFunction: TypeAlias = Callable[..., Any]
# The parameters of an equation, by name.
Params: TypeAlias = dict[str, Any]
# A pytree of arrays, of their types, or of numbers for them.
Tree: TypeAlias = Any
# What a caller passes: pytrees of arrays, and static values.
Arguments: TypeAlias = Sequence[Any]
Keywords: TypeAlias = Mapping[str, Any]
CallArguments: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]
# For functions that return the kind of jaxpr they are given.
_T = TypeVar("_T")
J = TypeVar("J", bound=ClosedJaxpr | Jaxpr)

DropVar = core.DropVar
Primitive = core.Primitive
abstract_token = core.abstract_token
eval_context = core.eval_context
# Symbolic dimensions.
InconclusiveDimensionOperation = core.InconclusiveDimensionOperation
# Raised by undecided comparisons, and for dimensions that no argument has.
SIZE_ERRORS = (core.InconclusiveDimensionOperation, shape_poly.UnexpectedDimVar)
# Raised where a function is traced or lowered at types that it does not take. They come from the
# checks of `jax.lax`, `jax.numpy` and `jax.nn`, and from `mlir.lower_jaxpr_to_module` for a
# primitive without a lowering for the platform. Some lowerings only assert (`iota_2x32_shape`
# without axes) or overflow (`select_and_gather_add` of integers). NumPy raises them for numbers out
# of range, and ops that need a known size do. Any other, such as a `NameError`, is a defect.
REFUSALS = (
    TypeError, ValueError, NotImplementedError, ArithmeticError, IndexError, AssertionError,
    *SIZE_ERRORS,
)  # fmt: skip
# A context in which errors of JAX keep its frames in their tracebacks: `with full_tracebacks():`.
full_tracebacks = functools.partial(config.traceback_filtering, "off")


class _NoFrames:
    """A traceback without frames."""

    def raw_frames(self) -> tuple[list[object], list[object]]:
        return [], []

    def as_python_traceback(self) -> None:
        return None


_NO_FRAMES = _NoFrames()


def from_nowhere() -> contextlib.AbstractContextManager[None]:
    """Make scopes of sizes without the caller's line, whose search starts with a large pattern."""
    return source_info_util.user_context(cast("Value", _NO_FRAMES))


_UNDECIDED = re.compile(r"comparison '(.+)' (<=|>=|<|>) '(.+)' is inconclusive")


def undecided(error: Exception) -> tuple[str, str, str] | None:
    """The undecided comparison that an error reports: both sizes as text, and the sign."""
    if not isinstance(error, InconclusiveDimensionOperation):
        return None
    match = _UNDECIDED.search(str(error))
    return None if match is None else (match[1], match[2], match[3])


is_symbolic_dim = core.is_symbolic_dim
max_dim = core.max_dim
min_dim = core.min_dim
dim_as_value_p = shape_poly.dim_as_value_p
# A number, or an expression of open dimensions.
DimSize: TypeAlias = int
# A dimension by name, or an operation (`floordiv`, `mod`, `max`, `min`) with its operands.
DimFactor: TypeAlias = str | tuple[str, tuple[DimSize, ...]]


def dim_terms(size: DimSize) -> list[tuple[int, list[tuple[DimFactor, int]]]]:
    """The terms of a size: each a coefficient and factors with their exponents."""
    if not isinstance(size, DimExpr):
        return [(int(size), [])]
    terms: Value = size
    return [
        (coefficient, [(_dim_factor(f), exponent) for f, exponent in term._factors])
        for term, coefficient in terms._sorted_terms
    ]


def _dim_factor(factor: Value) -> DimFactor:
    if factor.var is not None:
        return factor.var
    operands = (_reduced(o) for o in factor.operands)
    return factor.operation, tuple(operands)


def _reduced(size: Value) -> DimSize:
    constant = shape_poly._DimExpr._to_constant(size)
    return size if constant is None else constant


def explicit_constraints(size: Value) -> list[tuple[DimSize, str, DimSize]]:
    """The explicit constraints of a size's scope, as `(left, relation, right)`."""
    constraints = size.scope._explicit_constraints
    is_equality = shape_poly.Comparator.EQ
    return [(c.e1, "==" if c.cmp is is_equality else ">=", c.e2) for c in constraints]


def size_as_value(size: DimSize, dtype: np.dtype) -> Value:
    """A size as a traced number: `dim_as_value`, converted."""
    value = dim_as_value_p.bind(dim=size)
    return jax.lax.convert_element_type_p.bind(
        value, new_dtype=dtype, weak_type=False, sharding=None
    )


def mapped_thunk(thunk: Value, change: Callable[[Value], Value]) -> Value:
    """Wrap a function that returns the jaxpr of a derivative, transforming that jaxpr."""

    def call(*nonzero: Value) -> tuple[Value, ...]:
        jaxpr, *rest = thunk.call_wrapped(*nonzero)
        return change(jaxpr), *rest

    return lu.wrap_init(call, debug_info=thunk.debug_info)


rng_uniform = lax_internal.rng_uniform
prngs = prng.prngs
iota_2x32_shape = prng.iota_2x32_shape
iota_2x32_shape_p = prng.iota_2x32_shape_p
random_bits_p = prng.random_bits_p
random_fold_in_p = prng.random_fold_in_p
random_seed_p = prng.random_seed_p
random_split_p = prng.random_split_p
random_unwrap_p = prng.random_unwrap_p
random_wrap_p = prng.random_wrap_p
threefry2x32_p = threefry2x32.threefry2x32_p
threefry4x32_p = threefry4x32.threefry4x32_p
philox2x32_p = philox2x32.philox2x32_p
philox4x32_p = philox4x32.philox4x32_p
random_gamma_p = random_core.random_gamma_p
# The functions into which `jax.random` outlines its own.
random_functions = frozenset(n for n in vars(random_core) if n.startswith("_"))
geqrf_p = lax_linalg.geqrf_p
geqp3_p = lax_linalg.geqp3_p
linear_solve = lax_linalg._solve


@functools.lru_cache(maxsize=4096)
def _stack(names: tuple[str, ...]) -> source_info_util.NameStack:
    stack = source_info_util.NameStack()
    for name in (*names[:256], *names[256:][-1:]):  # the last may be a hint
        stack = stack.extend(name)
    return stack


def name_stack(names: tuple[str, ...]) -> contextlib.AbstractContextManager[None]:
    """Set the name scopes of equations traced in the `with` statement; those too deep are cut."""
    return source_info_util.set_name_stack(_stack(names))


def current_names() -> tuple[str, ...]:
    """The current name scopes, without transforms."""
    return _scopes(source_info_util.current_name_stack())


def _scopes(stack: source_info_util.NameStack) -> tuple[str, ...]:
    return tuple([s.name for s in stack.stack if isinstance(s, source_info_util.Scope)])


def names_of(eqn: Eqn) -> tuple[str, ...]:
    """The name scopes of an equation, without transforms."""
    return _scopes(eqn.source_info.name_stack)


def last_name(eqn: Eqn) -> str:
    """The innermost name scope of an equation; `""` if it has none."""
    for scope in reversed(eqn.source_info.name_stack.stack):
        if isinstance(scope, source_info_util.Scope):
            return scope.name
    return ""


def source_line(eqn: Eqn) -> str:
    """The user's file and line of an equation, or `""`."""
    frame = source_info_util.user_frame(eqn.source_info.traceback)
    if frame is None or Path(frame.file_name).is_relative_to(_PACKAGE):
        return ""
    return f"{Path(frame.file_name).name}:{frame.start_line}"


# Equations of raised programs are written by this package.
_PACKAGE = Path(__file__).parents[1]


def with_names(eqn: Eqn, names: tuple[str, ...]) -> Eqn:
    """The equation with other name scopes."""
    return eqn.replace(source_info=eqn.source_info.replace(name_stack=_stack(names)))


def trace_closed(fn: JaxFunction, *avals: object) -> ClosedJaxpr:
    """Trace `fn` into a closed jaxpr, as `lax` keeps the branches of a `cond`.

    As `jax.make_jaxpr`, but without the signature and names of `jax.jit`, which take longer than a
    small trace.
    """
    leaves, tree = jax.tree_util.tree_flatten(avals)

    def flat(*values: Value) -> list[Value]:
        return jax.tree_util.tree_leaves(fn(*jax.tree_util.tree_unflatten(tree, values)))

    types = [core.shaped_abstractify(x) for x in leaves]
    # The form of names that are unknown.
    names = core.DebugInfo("jit", getattr(fn, "__name__", "fn"), ("",) * len(types), None)
    traced = lu.wrap_init(flat, debug_info=names)
    jaxpr, _, consts = partial_eval.trace_to_jaxpr_dynamic(traced, types)
    return cast("ClosedJaxpr", JAXPRS[1](jaxpr, consts))


def forget_traces(namespace: Mapping[str, object]) -> None:
    """Evict the programs that JAX caches for compiled methods of a module's classes.

    JAX keeps them as long as the classes, and the classes, since they are pytrees, forever.
    """
    for cls in namespace.values():
        if isinstance(cls, type) and cls.__module__ == namespace["__name__"]:
            for method in vars(cls).values():
                # Equinox wraps methods and compiled functions.
                wrapper = getattr(method, "method", method)
                if (compiled := getattr(wrapper, "_cached", None)) is not None:
                    compiled.clear_cache()


def apply_primitive(primitive: core.Primitive) -> JaxFunction:
    """An implementation of a primitive that compiles and runs it."""
    return functools.partial(dispatch.apply_primitive, primitive)


def function_of_jax2tf(fn: object) -> JaxFunction | None:
    """The JAX function of a result of `jax2tf.convert`; `None` for other objects.

    The result takes `(*args_tf, **kwargs_tf)` and does not expose that function, but keeps it as
    `fun_jax` (jax/experimental/jax2tf/jax2tf.py, jax 0.10 to 0.12).
    """
    if not inspect.isfunction(fn) or fn.__name__ != "converted_fun_tf":
        return None
    wrapped = inspect.getclosurevars(fn).nonlocals.get("fun_jax")
    return wrapped if callable(wrapped) else None


def default_platform() -> str:
    """The platform that this process lowers for, `"cuda"` or `"rocm"` on a GPU."""
    name = jax.default_backend()
    if name != "gpu":
        return name
    return "rocm" if "rocm" in jax.devices()[0].client.platform_version else "cuda"


# Names of JAX's platforms in XLA's registry.
_REGISTRY_NAMES = {"cpu": "Host", "cuda": "CUDA", "rocm": "ROCM"}


def custom_call_is_registered(target: str, platform: str) -> bool:
    """Return whether this process has an implementation of the custom call for `platform`."""
    name = _REGISTRY_NAMES.get(platform)
    return name is not None and target in xla_client.custom_call_targets(name)


# jax 0.12 requires the result types of a function, which jax 0.10 derives.
_WANTS_OUT_AVALS = "out_avals" in inspect.signature(jax_mlir.lower_jaxpr_to_fun).parameters


def emit_custom_call(
    ctx: jax_mlir.LoweringRuleContext,
    operands: Sequence[ir.Value],
    attributes: Sequence[tuple[str, str]],
    computations: Sequence[Value],
) -> Sequence[ir.Value]:
    """Emit `stablehlo.custom_call` with attributes given as MLIR text."""
    named = {name: ir.Attribute.parse(text) for name, text in attributes}
    if computations:
        symbols = []
        for i, computation in enumerate(computations):
            function = jax_mlir.lower_jaxpr_to_fun(
                ctx.module_context,
                f"{text_of(named['call_target_name'])}_{i}",
                computation,
                [],
                num_const_args=0,
                in_avals=computation.in_avals,
                **({"out_avals": computation.out_avals} if _WANTS_OUT_AVALS else {}),
            )
            symbols.append(ir.FlatSymbolRefAttr.get(function.name.value))
        named["called_computations"] = ir.ArrayAttr.get(symbols)
    types = [jax_mlir.aval_to_ir_type(ctx.module_context, a) for a in ctx.avals_out]
    return list(
        ir.Operation.create(
            "stablehlo.custom_call", results=types, operands=list(operands), attributes=named
        ).results
    )


# Targets that JAX lowers to without guaranteeing them in serialized modules: those of
# jax/_src/lax/linalg.py that jax/_src/export/_export.py does not list, jax 0.10.2 and 0.12.
_UNSTABLE_TARGETS = (
    *(f"lapack_{t}{k}_ffi" for t in "sdcz" for k in ("ormqr", "unmqr", "geqp3", "gesvd")),
    *(f"{p}solver_{k}_ffi" for p in ("cu", "hip") for k in ("ormqr", "gesvdp", "syrk", "geev")),
    *(f"{p}hybrid_{k}" for p in ("cu", "hip") for k in ("geqp3", "eig_real", "eig_comp")),
    *(f"{p}_tridiagonal_solve_perturbed" for p in ("cu", "hip")),
    "cu_cholesky_update_ffi",
    "hipsparse_gtsv2_ffi",
    "tridiagonal_solve_perturbed_ffi",
    # Targets of older releases, which templates of their lowerings contain.
    *(
        f"lapack_{t}{k}"
        for t in "sdcz"
        for k in (
            *("potrf", "getrf", "geqrf", "orgqr", "ungqr", "gesdd", "syevd", "heevd"),
            *("geev", "gees", "gehrd", "sytrd", "hetrd"),
        )
    ),
    *(f"blas_{t}trsm" for t in "sdcz"),
    *(
        f"{p}solver_{k}"
        for p in ("cu", "hip")
        for k in "getrf geqrf orgqr syevd syevj gesvd gesvdj sytrd".split()
    ),
    *(f"{p}blas_{k}_batched" for p in ("cu", "hip") for k in ("getrf", "geqrf")),
    *(f"{p}_threefry2x32{suffix}" for p in ("cu", "hip") for suffix in ("", "_ffi")),
)


# Modules that this process lowered itself are read into one context: making one takes longer than
# reading a small module. It keeps their constants, so it is replaced periodically.
_READS_PER_CONTEXT = 512
_reads = itertools.count()


@functools.lru_cache(maxsize=1)
def _reading_context(period: int) -> ir.Context:
    return make_reading_context()


# In jax 0.12 the value of `_dce_jaxpr` even refers to its own key, which is then never freed.
_LOWERINGS = (pjit._pjit_lower, pxla._cached_lowering_to_hlo, pxla._dce_jaxpr)


def lowered_module(fn: Callable[..., object], *avals: Aval, platform: str = "cpu") -> ir.Module:
    """The StableHLO module that JAX serializes for `fn` at given types.

    Serialization expands some ops, as it did in raised modules. This equals `jax.export` at these
    types, without its copy of the module and second trace.
    """
    checks = jax.export.DisabledSafetyCheck
    disabled = [checks.platform(), *map(checks.custom_call, _UNSTABLE_TARGETS)]
    jitted = jax.jit(fn, keep_unused=True)
    with _lowering():
        traced = jitted.trace(*avals)
        fixed = all(isinstance(n, int) for a in avals for n in a.shape)
        if fixed and not traced.jaxpr.effects:
            artifact = _serialized(traced, platform, disabled)
        else:
            artifact = jax.export.export(jitted, platforms=[platform], disabled_checks=disabled)(
                *avals
            ).mlir_module_serialized
        # JAX keeps the module of a traced function for as long as the function lives.
        for cache in _LOWERINGS:
            cache.evict_weakref(traced.jaxpr)
    return stablehlo_dialect.deserialize_portable_artifact(
        _reading_context(next(_reads) // _READS_PER_CONTEXT), artifact
    )


@contextlib.contextmanager
def _lowering() -> Iterator[None]:
    # Shardy is the partitioner that keeps axis names.
    with warnings.catch_warnings(), on_whole_values(), config.use_shardy_partitioner(True):
        # Raised for 64-bit types without x64; both settings are tried.
        warnings.filterwarnings("ignore", message=".*requested.*dtype")
        yield


def load_lapack() -> None:
    """Load what calls of LAPACK need to run; without it, they end the process.

    JAX loads it when it lowers a function of its own that calls LAPACK.
    """
    lax_linalg.initialize_lapack()


def lowered_types(fn: Callable[..., object], *avals: object) -> list[core.ShapedArray]:
    """The result types of `fn`; reuses the trace of `lowered_module`."""
    with _lowering():
        traced = jax.jit(fn, keep_unused=True).trace(*avals)
    return [v.aval for v in open_jaxpr(traced.jaxpr).outvars]


def trace_as_lowered(fn: Callable[..., object], *avals: object) -> ClosedJaxpr:
    """`trace_closed` on whole values; reuses the trace of `lowered_module`."""
    with _lowering():
        traced = jax.jit(fn, keep_unused=True).trace(*avals)
        # Arrays that the function holds are arguments of that trace.
        return trace_closed(fn, *avals) if traced._num_consts else traced.jaxpr


def traced_to_lower(primitive: core.Primitive, platform: str) -> JaxFunction | None:
    """The function that JAX traces to lower a primitive for a platform.

    `None` where its rule emits ops itself. `mlir.lower_fun` makes the other rules; it does not
    expose the function, but keeps it as `fun` (jax/_src/interpreters/mlir.py, jax 0.10 to 0.12).
    """
    of_platform = jax_mlir._platform_specific_lowerings.get(platform, {})
    entry = of_platform.get(primitive) or jax_mlir._lowerings.get(primitive)
    rule = getattr(entry, "rule", entry)
    if not inspect.isfunction(rule) or rule.__qualname__ != "lower_fun.<locals>.f_lowered":
        return None
    return inspect.getclosurevars(rule).nonlocals.get("fun")


def _serialized(traced: Value, platform: str, disabled: Sequence[Value]) -> bytes:
    """Lower, check and serialize a program of static sizes as `jax.export` does (_export.py)."""
    parameters = jax_mlir.LoweringParameters(
        for_export=True,
        hoist_constants_as_args=False,
        export_ignore_forward_compatibility=config.export_ignore_forward_compatibility.value,
    )
    lowered = traced.lower(lowering_platforms=(platform,), _private_parameters=parameters)
    module = lowered._lowering.stablehlo()
    meshed = export_internal.has_sdy_mesh(ir.SymbolTable(module.operation), module)
    export_internal._check_module(module, disabled_checks=disabled, shardy_enabled=meshed)
    return export_internal._module_to_bytecode(module)


JAXPRS = (core.Jaxpr, ClosedJaxpr)
_PLAIN = frozenset({bool, int, str, type(None)})


def holds_jaxprs(eqn: Eqn) -> bool:
    """Return whether a parameter of the equation is a jaxpr or a tuple of jaxprs."""
    # Inlined, since a call for each parameter would take most of the time.
    for value in eqn.params.values():
        if type(value) in _PLAIN:
            continue
        if isinstance(value, tuple) and value:
            value = value[0]
            if type(value) in _PLAIN:
                continue
        if isinstance(value, JAXPRS):
            return True
    return False


def holds_jaxpr(value: object) -> bool:
    """Return whether a parameter is a jaxpr or a tuple of jaxprs."""
    if isinstance(value, tuple) and value:
        value = value[0]
    return type(value) not in _PLAIN and isinstance(value, JAXPRS)


def params_of_jaxprs(eqn: Eqn) -> dict[str, Value]:
    """The parameters of an equation that are jaxprs or tuples of jaxprs."""
    params = eqn.params.items()
    return {n: v for n, v in params if type(v) not in _PLAIN and holds_jaxpr(v)}


def sub_jaxprs(eqn: Eqn) -> Iterator[Jaxpr]:
    """The open jaxprs among the parameters of an equation."""
    for value in eqn.params.values():
        if type(value) in _PLAIN:
            continue
        for v in value if isinstance(value, (tuple, list)) else (value,):
            if type(v) not in _PLAIN and is_jaxpr(v):
                yield open_jaxpr(v)


def is_tracer(value: object) -> bool:
    """Return whether a value is traced rather than an array."""
    return isinstance(value, core.Tracer)


def made_by(value: object) -> tuple[str, list[Value], Params] | None:
    """Primitive, operands and parameters of the equation that defines a traced value."""
    tell_origin()
    eqn = getattr(value, "parent", None)
    if eqn is None:
        return None
    return eqn.primitive.name, [core.full_lower(t) for t in eqn.in_tracers], eqn.params


def is_jaxpr(value: object) -> TypeGuard[AnyJaxpr]:
    """Return whether `value` is a jaxpr, closed or open."""
    return isinstance(value, JAXPRS)


def open_jaxpr(closed: AnyJaxpr) -> Jaxpr:
    """The jaxpr without the values of its constants."""
    return cast("Jaxpr", getattr(closed, "jaxpr", closed))


def dce(jaxpr: Jaxpr) -> Jaxpr:
    """Remove equations whose results are not used; keep all arguments.

    Returns the jaxpr itself, unlike JAX, if nothing is removed.
    """
    if (live := _plainly_live(jaxpr)) is not None:
        places, _ = live
        if len(places) == len(jaxpr.eqns):
            return jaxpr
        return jaxpr.replace(eqns=[jaxpr.eqns[i] for i in places])
    kept = [True] * len(jaxpr.outvars)
    return cast("Jaxpr", partial_eval.dce_jaxpr(jaxpr, kept, instantiate=True)[0])


def live_part(
    jaxpr: Jaxpr, used: Sequence[bool], kept: bool | Sequence[bool] = False
) -> tuple[Jaxpr, list[bool]]:
    """The live part of a jaxpr, and a mask of the arguments it reads."""
    part = partial_eval.dce_jaxpr(jaxpr, list(used), instantiate=kept)
    return cast("tuple[Jaxpr, list[bool]]", part)


def has_effects(eqn: Eqn) -> bool:
    """Return whether an equation must stay although nothing uses its results.

    A collective need not: that it names an axis of a mesh is an effect only to JAX's tracer.
    """
    return partial_eval.has_effects(eqn)


def arguments_read(jaxpr: Jaxpr, used: Sequence[bool]) -> tuple[bool, ...]:
    """A mask of the arguments that the used results of a jaxpr need."""
    return _arguments_read(jaxpr, tuple(used))


@weakref_lru_cache
def _arguments_read(jaxpr: Jaxpr, used: tuple[bool, ...]) -> tuple[bool, ...]:
    results = zip(jaxpr.outvars, used, strict=True)
    needed = {v for v, wanted in results if wanted and not isinstance(v, Literal)}
    for eqn in reversed(jaxpr.eqns):
        read = not needed.isdisjoint(eqn.outvars)
        if eqn.effects or (read and not _plainly_needs_all(eqn, needed)):
            # JAX decides, which takes much longer: it makes the live part, too.
            return tuple(live_part(jaxpr, used)[1])
        if read:
            needed.update(v for v in eqn.invars if not isinstance(v, Literal))
    return tuple(v in needed for v in jaxpr.invars)


def constants_as_arguments(jaxpr: Jaxpr) -> Jaxpr:
    """Make the constant variables the leading arguments."""
    return cast("Jaxpr", partial_eval.convert_constvars_jaxpr(jaxpr))


def eval_jaxpr(jaxpr: Jaxpr, values: Sequence[object]) -> list[Value]:
    """Evaluate a jaxpr without constants."""
    return _evaluated(jaxpr, (), values)


def eval_closed(closed: AnyJaxpr, values: Sequence[object]) -> list[Value]:
    """Evaluate a closed jaxpr."""
    return _evaluated(open_jaxpr(closed), consts_of(closed), values)


def _evaluated(jaxpr: Jaxpr, consts: Sequence[Value], values: Sequence[Value]) -> list[Value]:
    if (results := inlined(jaxpr, consts, values)) is not None:
        return results
    return core.eval_jaxpr(jaxpr, consts, *values)


def renamed(atoms: Sequence[Atom], names: Mapping[Var, Atom] | Mapping[Atom, Atom]) -> list[Atom]:
    """Atoms, with the variables in `names` replaced."""
    return [a if isinstance(a, Literal) else names.get(a, a) for a in atoms]


def rename_operands(eqn: Eqn, names: Mapping[Var, Atom]) -> Eqn:
    """Replace the variables in `names`; the equation itself if it reads none of them."""
    for a in eqn.invars if names else ():
        if not isinstance(a, Literal) and a in names:
            return eqn.replace(invars=renamed(eqn.invars, names))
    return eqn


def rename(jaxpr: Jaxpr, names: Mapping[Var, Atom]) -> Jaxpr:
    """Replace the variables in `names`."""
    eqns = [rename_operands(e, names) for e in jaxpr.eqns]
    return jaxpr.replace(eqns=eqns, outvars=renamed(jaxpr.outvars, names))


def key_impl(dtype: Value) -> str:
    """The name of the generator of a key dtype, as `jax.random.wrap_key_data` takes it."""
    return dtype._impl.name


def key_rules(dtype: Value) -> object:
    """The generator of a key dtype, as equations on keys name it."""
    return dtype._impl


def words_of(value: Value) -> Value:
    """The words of an array of keys; other arrays unchanged."""
    if not jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        return value
    return prng.random_unwrap_p.bind(value)


def from_words(value: Value, dtype: Value) -> Value:
    """Convert words to keys if `dtype` is a key type; other arrays unchanged."""
    if not jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key):
        return value
    return prng.random_wrap_p.bind(value, impl=dtype._impl)


def by_jaxpr(function: Callable[[Value], _T], *, traces: bool = False) -> Callable[[AnyJaxpr], _T]:
    """Memoize `function` for as long as the jaxpr lives.

    The result must not hold the jaxpr itself. `traces` says that it depends on JAX's settings.
    """
    return weakref_lru_cache(function, maxsize=None, trace_context_in_key=traces)


@by_jaxpr
def _plainly_live(jaxpr: Jaxpr) -> tuple[Sequence[int], Sequence[bool]] | None:
    """The positions of the live equations, and a mask of the arguments that these read.

    `None` where only JAX's rules can decide, which takes several times as long.
    """
    if jaxpr.effects:
        return None
    used = {v for v in jaxpr.outvars if not isinstance(v, Literal)}
    places = []
    for i, eqn in reversed([*enumerate(jaxpr.eqns)]):
        if eqn.effects:
            return None
        if used.isdisjoint(eqn.outvars):
            continue
        if not _plainly_needs_all(eqn, used):
            return None
        places.append(i)
        used.update(v for v in eqn.invars if not isinstance(v, Literal))
    return places[::-1], tuple([v in used for v in jaxpr.invars])


def _plainly_needs_all(eqn: Eqn, used: Set[Var]) -> bool:
    """Return whether an equation in use needs all operands and inner equations."""
    if eqn.primitive not in partial_eval.dce_rules:
        return True
    if not (all(v in used for v in eqn.outvars) or _steps_need_all(eqn, used)):
        return False
    inner = [(jaxpr, _plainly_live(jaxpr)) for jaxpr in sub_jaxprs(eqn)]
    read = [live[1] for jaxpr, live in inner if live and len(live[0]) == len(jaxpr.eqns)]
    if len(read) == len(inner) and eqn.primitive.name == "cond":
        return all(map(any, zip(*read, strict=True)))  # a branch may ignore what others read
    return len(read) == len(inner) and all(map(all, read))


def _steps_need_all(eqn: Eqn, used: Set[Var]) -> bool:
    """Return whether the steps of a `scan` need the carries whose last values are not used."""
    if eqn.primitive.name != "scan":
        return False
    first, count = scan_layout(eqn.params)
    live = [v in used for v in eqn.outvars]
    while all(live[count:]) and not all(live):
        read = arguments_read(open_jaxpr(eqn.params["jaxpr"]), live)[first : first + count]
        more = [a or b for a, b in zip(live[:count], read, strict=True)]
        if more == live[:count]:
            return False
        live[:count] = more
    return all(live)


def physical_type(aval: Aval) -> tuple[tuple[DimSize, ...], np.dtype]:
    """Shape and dtype of the array that represents this type in a module."""
    if aval.dtype == jax.dtypes.float0:
        return aval.shape, np.dtype(bool)
    if jax.dtypes.issubdtype(aval.dtype, jax.dtypes.prng_key):
        return (*aval.shape, *aval.dtype._impl.key_shape), np.dtype(np.uint32)
    return aval.shape, aval.dtype


def consts_of(jaxpr: AnyJaxpr) -> Sequence[Value]:
    """Values of the constants of a closed jaxpr; none for an open one."""
    return getattr(jaxpr, "consts", ())


def close_like(original: J, jaxpr: Jaxpr) -> J:
    """`jaxpr` in the form of `original`: closed over its constants, or open.

    `original` itself if that is its program.
    """
    if jaxpr is open_jaxpr(original):
        return original
    is_open = isinstance(original, core.Jaxpr)
    return cast("J", jaxpr if is_open else JAXPRS[1](jaxpr, consts_of(original)))


class _SourceContext(source_info_util.UserContextManager):
    """Adds the source to an error as JAX does, but not where tracebacks are not filtered.

    JAX compares each frame with files on disk, which takes milliseconds for each error.
    """

    __slots__ = ()

    def __exit__(self, *error: Any) -> None:
        unfiltered = config.traceback_filtering.value == "off"
        super().__exit__(*((None, None, None) if unfiltered else error))


@contextlib.contextmanager
def context_of(eqn: Eqn) -> Iterator[None]:
    """Trace under an equation's name scopes, source and settings, on the current mesh."""
    info = eqn.source_info
    stack = source_info_util.current_name_stack() + info.name_stack
    mesh = get_abstract_mesh()
    with _SourceContext(info.traceback, name_stack=stack), eqn.ctx.manager:
        if get_abstract_mesh() == mesh:
            yield
            return
        # Set from the empty mesh: JAX does not let a mesh replace one of another size.
        with (
            jax.sharding.use_abstract_mesh(empty_abstract_mesh),
            jax.sharding.use_abstract_mesh(mesh),
        ):
            yield


def bind_equation(eqn: Eqn, args: Sequence[object]) -> list[Value]:
    """The results of an equation on other operands."""
    results = eqn.primitive.bind(*args, **eqn.primitive.get_bind_params(eqn.params))
    return list(results) if eqn.primitive.multiple_results else [results]


def jvp_rule_of(params: Params) -> Hashable | None:
    """The derivative rule that an author gave a `custom_jvp_call`, and its calling convention.

    Calls with equal results share one rule, given equal types and settings. JAX wraps the
    function anew in each trace, in closures of jax/_src/interpreters/partial_eval.py
    and jax/_src/custom_derivatives.py (jax 0.10.2 and 0.12). `None` where these hold anything
    else, such as values that the rule closes over or arguments that it does not differentiate.
    """
    symbolic_zeros, changes = params["symbolic_zeros"], []
    while isinstance(fun := params.get("jvp_jaxpr_fun"), lu.WrappedFun):
        if params["num_consts"] or fun.transforms:
            return None
        if (change := closed_over(fun.f, "change")) is not None:  # `mapped_thunk`
            changes.append(change)
            params = {"jvp_jaxpr_fun": closed_over(fun.f, "thunk"), "num_consts": 0}
            continue
        thunk = closed_over(fun.f, "fn")
        if (inner := closed_over(thunk, "jvp_jaxpr_fun")) is not None:
            # Dead code was removed; there is none if all results are used.
            if not all(closed_over(thunk, "used_outs") or (False,)):
                return None
            params = {"jvp_jaxpr_fun": inner, "num_consts": 0}
            continue
        rule = closed_over(thunk, "jvp")
        if not isinstance(rule, lu.WrappedFun):
            return None
        lifted = closed_over(rule.f, "jvp_jaxpr_fun")
        if lifted is None:
            # Written by an author, and only flattened.
            if [gen.__name__ for gen, _ in rule.transforms] != ["_flatten_jvp"]:
                return None
            _, _, tree, _ = rule.transforms[0][1]
            avals = tuple(closed_over(thunk, "in_avals"))
            return rule.f, tree, rule.params, avals, tuple(changes), symbolic_zeros
        # Bound again from a jaxpr.
        if rule.transforms:
            return None
        params = {"jvp_jaxpr_fun": lifted, "num_consts": closed_over(rule.f, "num_consts")}
    return None


def rule_name(params: Params) -> str:
    """The name of the derivative rule of a `custom_jvp_call`."""
    return params["jvp_jaxpr_fun"].debug_info.func_name


def closed_over(function: Value, name: str) -> Value:
    """The value of a function's free variable, or `None`."""
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    if name not in names:
        return None
    try:
        return function.__closure__[names.index(name)].cell_contents
    except ValueError:  # not set yet
        return None


def plain_params(params: Params) -> Params:
    """Parameters of an equation in comparable form.

    JAX wraps the derivative rule of a `custom_jvp_call` anew in each trace. In jax 0.12 a `scan`
    holds the trees of its operands and results. Only their numbers of constants and carried values
    matter.
    """
    if "jvp_jaxpr_fun" in params:
        rule = jvp_rule_of(params)
        return params if rule is None else {**params, "jvp_jaxpr_fun": rule}
    if "ft_in" not in params:
        return params
    consts, carry, _ = params["ft_in"].unpack()
    plain = {name: value for name, value in params.items() if name not in ("ft_in", "ft_out")}
    return {**plain, "num_consts": len(consts), "num_carry": len(carry)}


def scan_layout(params: Params) -> tuple[int, int]:
    """`(num_consts, num_carry)` of a `scan` equation."""
    plain = plain_params(params)
    return plain["num_consts"], plain["num_carry"]


# --- Who wrote an equation ------------------------------------------------------------------------

_OWN_FOLDER = str(Path(jax.__file__).parent)


def has_rule_of_jax(eqn: core.JaxprEqn) -> bool:
    """Return whether the function and rule of a `custom_jvp` are JAX's, as for `relu`.

    Those of `custom_root` call the author's.
    """
    file = open_jaxpr(eqn.params["call_jaxpr"]).debug_info.func_filename or ""
    rule = eqn.params["jvp_jaxpr_fun"].debug_info
    own = file.startswith(_OWN_FOLDER) and not file.startswith(f"{_OWN_FOLDER}/_src/lax/control_")
    return own and f" at {_OWN_FOLDER}" in rule.func_src_info


def is_solved_by_jax(eqn: core.JaxprEqn) -> bool:
    """Return whether a `custom_linear_solve` is that of `jax.numpy.linalg.solve`."""
    solve = open_jaxpr(eqn.params["jaxprs"].solve).debug_info
    return solve.func_filename == f"{_OWN_FOLDER}/_src/lax/linalg.py"


# Of `lax`, only solves call it: their derivative does not depend on how they are solved.
_LIBRARIES = tuple(
    f"{_OWN_FOLDER}/_src/{name}" for name in ("nn/", "numpy/", "ops/", "scipy/", "lax/linalg.py")
)


def is_stopped_by_jax(eqn: core.JaxprEqn) -> bool:
    """Return whether a JAX function such as `jax.nn.softmax` made a `stop_gradient`."""
    traceback = eqn.source_info.traceback
    frames = () if traceback is None else traceback.frames
    for frame, caller in itertools.pairwise(frames):
        if frame.function_name == "stop_gradient" != caller.function_name:
            return caller.file_name.startswith(_LIBRARIES)
    return False
