"""Reads TensorFlow functions: `tf.function`, `ConcreteFunction`, and results of `jax2tf.convert`.

The signature is kept as the user wrote it. Inside, a graph has flat lists of inputs (the tensors of
the arguments in the order of `tf.nest.flatten`, then its captures) and of outputs.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import jax
import numpy as np

from invert._config import Config
from invert._entry import EntryPoint, Param, unique
from invert._errors import Problem, SignatureError, nested_too_deep
from invert._private.collection import collected_rarely
from invert._private.jax import function_of_jax2tf
from invert._private.tensorflow import (
    TfObject,
    keras_variables,
    tf_concrete_functions,
    tf_graph_bytes,
    tf_read,
    tf_values,
    tf_variable_dtype,
    tf_variable_number,
)
from invert.frontends import closures
from invert.frontends.graph_entry import check_count, function_entry
from invert.frontends.keras_model import (
    attributes,
    input_specs,
    is_layer,
    own_class,
    tracing,
    with_names,
)
from invert.frontends.signature import (
    Signature,
    composed,
    describe,
    distinct,
    expanded,
    flat_specs,
    matches,
    numbered,
    read_outputs,
    read_signature,
    tensor_spec,
)
from invert.frontends.wrong_kind import STAGES, taken
from invert.ir.arrays import copied
from invert.ir.types import Arguments, Keywords, Tree, Value
from invert.protos.messages import own
from invert.protos.ops import Definition, op_def
from invert.protos.types import OpDef
from invert.tf.fallback.host import table
from invert.tf.gradients.read import read_gradient
from invert.tf.interpreter.graph import Graph
from invert.tf.ops.node import import_tensorflow
from invert.tf.ops.state import Resource


@dataclasses.dataclass(frozen=True)
class Variables:
    """Facts of the container about variables, by `id(variable)`, and values read so far.

    **Arguments:**

    - `names`: their names.
    - `trainable`: whether they are trained, if it differs from TensorFlow's flag; `None`: the
        container does not say.
    - `held`: names of unnamed variables, from where the function holds them.
    - `keep`: keeps the variables alive, so that no `id` is reused.
    """

    names: Mapping[int, str] = dataclasses.field(default_factory=dict)
    trainable: Mapping[int, bool | None] = dataclasses.field(default_factory=dict)
    values: dict[int, np.ndarray] = dataclasses.field(default_factory=dict)
    keep: list[object] = dataclasses.field(default_factory=list)
    held: Mapping[int, str] = dataclasses.field(default_factory=dict)

    def param(self, variable: TfObject, taken: set[str]) -> Param:
        """The `Param` of `variable` with a name that is not in `taken`."""
        key = id(variable)
        if key not in self.values:
            self.values[key] = values_of(variable)
            self.keep.append(variable)
        name = self.names.get(key) or variable.name.partition(":")[0]
        if name == closures.UNNAMED:
            name = self.held.get(key, name)
        made = bool(variable.trainable)
        flag = self.trainable.get(key, made)
        said = made if flag is None else flag
        return Param(unique(name, taken), self.values[key], said, stated=flag is not None)


def values_of(variable: TfObject) -> np.ndarray:
    """A variable's values, read-only, in TensorFlow's memory where NumPy can view it.

    TensorFlow does not write to shared memory: the next assignment to the variable allocates new
    memory.
    """
    if not hasattr(variable, "read_value"):
        return np.asarray(variable.numpy())
    return tf_values(tf_read(variable))


@collected_rarely()
@nested_too_deep("the function")
def entry_point(
    tf_fn: object,
    args: Sequence[object] = (),
    kwargs: Keywords | None = None,
    *,
    config: Config,
    name: str | None = None,
    source: str = "",
    variables: Variables | None = None,
    owner: object = None,
    strict: bool = True,
) -> EntryPoint:
    """Read a TensorFlow function.

    **Arguments:**

    - `tf_fn`: a `tf.function`, a `ConcreteFunction`, a function of a restored SavedModel, or the
        callable that `jax2tf.convert` returns.
    - `args`, `kwargs`: arrays (NumPy, JAX or TensorFlow), `jax.ShapeDtypeStruct` or
        `tf.TensorSpec` in any pytree, which select the concrete function. Without them, the
        input signature or the only concrete function is taken.
    - `config`: options.
    - `name`: name of the entry point; by default the name of the function.
    - `source`: where the function came from.
    - `variables`: names and values of the variables, shared by the functions of a container.
    - `owner`: the function that a `ConcreteFunction` belongs to, with its default arguments.
    - `strict`: whether ops that cannot be raised are an error. Otherwise they are the `problems` of
        the entry point.

    **Returns:** an `EntryPoint` whose `fn` evaluates the graph on JAX values.

    **Raises:**

    - `SignatureError`: no concrete function or more than one fits, or `tf_fn` is not a function.
    - `UnsupportedOpError`: lists all ops that cannot be raised.
    - `MissingDependencyError`: TensorFlow is not installed.
    """
    import_tensorflow()
    kwargs = dict(kwargs or {})
    method = tf_fn.__call__ if callable(tf_fn) else None
    if not hasattr(tf_fn, "get_concrete_function") and hasattr(method, "get_concrete_function"):
        tf_fn = method  # an object with one, e.g. a result of tf.saved_model.load
    if hasattr(tf_fn, "structured_input_signature"):
        concrete = _checked(tf_fn, args, kwargs)
    elif hasattr(tf_fn, "get_concrete_function"):
        concrete, owner = _select(tf_fn, args, kwargs), tf_fn
    elif callable(tf_fn) and not isinstance(tf_fn, STAGES):
        return _from_callable(tf_fn, args, kwargs, config, name, strict=strict)
    else:
        files = "Use invert.load for a file, and invert.from_stablehlo for text or bytes."
        raise SignatureError(
            f"expected a tf.function, a ConcreteFunction or the result of jax2tf.convert, got "
            f"{type(tf_fn).__name__}",
            remedy=taken(tf_fn) if isinstance(tf_fn, STAGES) else files,
        )
    function = getattr(tf_fn, "python_function", None)
    signature = read_signature(concrete, _jax_signature(function), owner)
    return _build(
        concrete, signature, read_outputs(concrete), config, name or _name_of(tf_fn), variables,
        source, strict=strict, function=function,
    )  # fmt: skip


def _checked(concrete: TfObject, args: Arguments, kwargs: Keywords) -> TfObject:
    """A `ConcreteFunction` that takes these arguments, if there are any."""
    if (args or kwargs) and not matches(concrete, args, kwargs):
        raise SignatureError(_no_match([concrete], args, kwargs), remedy=_CHOOSE)
    return concrete


def _name_of(tf_fn: object) -> str:
    """The Python function's name, without the library's prefix and number."""
    name = getattr(tf_fn, "name", None) or getattr(tf_fn, "__name__", None) or "function"
    text = name.decode() if isinstance(name, bytes) else str(name)
    match = re.fullmatch(r"__inference_(?:signature_wrapper_)?(.+?)(?:_\d+)?", text)
    return match.group(1) if match else text


def _select(tf_fn: TfObject, args: Arguments, kwargs: Keywords) -> TfObject:
    """The concrete function of `tf_fn` selected by the arguments."""
    existing = distinct(tf_concrete_functions(tf_fn))
    if args or kwargs:
        # Without an input signature, a default is a static value of the trace.
        owner = None if getattr(tf_fn, "input_signature", None) is None else tf_fn
        for concrete in existing:
            if matches(concrete, args, kwargs, exact=True, owner=owner):
                return concrete
        fitting = [c for c in existing if matches(c, args, kwargs, owner=owner)]
        if fitting:
            return fitting[0]
        if hasattr(tf_fn, "concrete_functions"):  # restored: there is nothing to trace
            raise SignatureError(_no_match(existing, args, kwargs), remedy=_CHOOSE)
        if tf_fn.input_signature is not None:
            concrete = tf_fn.get_concrete_function()
            if matches(concrete, args, kwargs, owner=tf_fn):
                return concrete
            raise SignatureError(_no_match([concrete], args, kwargs), remedy=_CHOOSE)
        # To a JAX function a Python number is an array, to any other it is a static value.
        scalars = _jax_signature(tf_fn.python_function) is not None
        specs_args, specs_kwargs = jax.tree_util.tree_map(
            lambda x: tensor_spec(x, scalars=scalars), (tuple(args), dict(kwargs))
        )
        with tracing(tf_fn, _name_of(tf_fn)):
            return tf_fn.get_concrete_function(*specs_args, **specs_kwargs)
    if len(existing) == 1:
        return existing[0]
    if not existing and getattr(tf_fn, "input_signature", None) is not None:
        return tf_fn.get_concrete_function()
    if not existing:
        python_function = getattr(tf_fn, "python_function", None)
        if python_function is not None and not _needs_arguments(python_function):
            return tf_fn.get_concrete_function()
        raise SignatureError(
            "the function was never traced and has no input_signature",
            remedy="Pass example arguments or tf.TensorSpec.",
        )
    choices = "\n".join(f"  - {describe(c)}" for c in existing)
    raise SignatureError(
        f"the function has several signatures:\n{choices}",
        remedy="Pass arguments that select one of them.",
    )


def _needs_arguments(fn: Callable[..., object]) -> bool:
    original = _jax_signature(fn) or inspect.signature(fn)
    empty = inspect.Parameter.empty
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return any(p.default is empty and p.kind not in variadic for p in original.parameters.values())


_CHOOSE = "Pass arguments of one of these types."


def _no_match(concretes: Sequence[TfObject], args: Arguments, kwargs: Keywords) -> str:
    given = jax.tree_util.tree_map(_short, (tuple(args), dict(kwargs)))
    choices = "\n".join(f"  - {describe(c)}" for c in concretes)
    return f"the arguments {given} fit none of these signatures:\n{choices}"


def _short(x: TfObject) -> TfObject:
    return f"{x.dtype}{tuple(x.shape)}" if hasattr(x, "shape") and hasattr(x, "dtype") else x


def _jax_signature(fn: object) -> inspect.Signature | None:
    """Signature of the JAX function in a result of `jax2tf.convert`."""
    wrapped = function_of_jax2tf(fn)
    try:
        return None if wrapped is None else inspect.signature(wrapped)
    except ValueError:  # a builtin without a signature
        return None


def _from_callable(
    fn: TfObject,
    args: Sequence[object],
    kwargs: Keywords,
    config: Config,
    name: str | None,
    *,
    strict: bool,
) -> EntryPoint:
    """Trace a Python callable at the argument types, in any pytrees."""
    tf = import_tensorflow()
    layer, of_jax = is_layer(fn), _jax_signature(fn)
    name = name or _name_of_callable(fn)
    leaves, in_tree = jax.tree_util.tree_flatten((tuple(args), dict(kwargs)))
    # To a JAX function a Python number is an array, to any other it is a static value.
    specs = [tensor_spec(x, scalars=of_jax is not None) for x in leaves]
    if layer and not args and not any(isinstance(s, tf.TypeSpec) for s in specs):
        declared = (_declared_inputs(fn, name),)
        return _from_callable(fn, declared, kwargs, config, name, strict=strict)
    if layer and args:
        specs = with_names(fn, in_tree, specs)
    try:
        original = of_jax or inspect.signature(fn.call if layer else fn)
    except ValueError as error:
        raise SignatureError(
            f"{name} does not say which arguments it takes",
            remedy="Pass a function around it, such as lambda x: f(x).",
        ) from error
    if not layer:  # Keras has its own rules for the arguments of calls
        _check_binding(original, args, kwargs, name)
    structures: list[tuple[Tree, Tree]] = []
    tree_of_specs = in_tree.unflatten(specs)
    specs, in_tree = jax.tree_util.tree_flatten(expanded(tree_of_specs))

    @tf.function(autograph=False)
    def flat_function(*flat: TfObject) -> list[TfObject]:
        tensors = iter(flat)
        given = in_tree.unflatten(
            [next(tensors) if isinstance(s, tf.TypeSpec) else s for s in specs]
        )
        call_args, call_kwargs = jax.tree_util.tree_map(composed, tree_of_specs, given)
        out = expanded(fn(*call_args, **call_kwargs))
        out_leaves, out_tree = jax.tree_util.tree_flatten(out)
        structures.append((out_tree, numbered(out)))
        return [tf.convert_to_tensor(x) for x in out_leaves]

    with tracing(fn, name):
        concrete = flat_function.get_concrete_function(
            *(s for s in specs if isinstance(s, tf.TypeSpec))
        )
    signature = flat_specs(in_tree, specs, original)
    out_tree, numbers = structures[-1]
    results = tuple(range(out_tree.num_leaves)), out_tree, numbers
    source = f"Keras model {name}" if layer else ""
    entry = _build(concrete, signature, results, config, name, source=source, strict=strict)
    if not layer:
        return entry
    return dataclasses.replace(entry, attributes=attributes(fn), kind=own_class(fn), keras=True)


def _declared_inputs(model: TfObject, name: str) -> Tree:
    """The types of the inputs that a Keras model declares."""
    if (inputs := input_specs(model)) is None:
        raise SignatureError(
            f"the Keras model {name} does not declare its inputs",
            remedy=(
                "Pass an example or their types, as in "
                "invert.convert(model, tf.TensorSpec([None, 20]))."
            ),
        )
    return inputs


def _check_binding(
    signature: inspect.Signature, args: Arguments, kwargs: Keywords, name: str
) -> None:
    """Refuse arguments that a Python callable does not take."""
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise SignatureError(
            f"{name}{signature}: {error}",
            remedy="Pass all arguments: a Python callable has no examples of its own.",
        ) from error


def _name_of_callable(fn: TfObject) -> str:
    """The name of a callable."""
    if is_layer(fn):
        return str(fn.name)
    return str(getattr(function_of_jax2tf(fn) or fn, "__name__", "function"))


def _build(
    concrete: TfObject,
    signature: Signature,
    results: tuple[tuple[int, ...], object, object],
    config: Config,
    name: str,
    variables: Variables | None = None,
    source: str = "",
    *,
    strict: bool = True,
    function: object = None,
) -> EntryPoint:
    graph = concrete.graph
    graph_inputs = [t.name for t in graph.inputs]
    count = len(graph_inputs) - len(concrete.captured_inputs)
    check_count(name, count, signature)
    program = Graph(
        # The cut needs the shapes of the remaining part.
        tf_graph_bytes(graph, add_shapes=config.text == "split"),
        graph_inputs,
        [t.name for t in graph.outputs],
        config=config,
        op_def=_op_def_lookup(graph),
        control_outputs=[op.name for op in getattr(graph, "control_outputs", ())],
        source_line=lambda node: _source_line(graph, node),
        read_gradient=functools.partial(read_gradient, graph),
        compiled=lambda: concrete.function_def.attr["_XlaMustCompile"].b,
    )
    needed = set(program.main.order)
    if variables is None:
        unnamed = any(v.name.partition(":")[0] == closures.UNNAMED for v in graph.variables)
        held = closures.held_names(function) if unnamed else {}
        variables = Variables(*keras_variables(graph.variables), held=held)
    params, feeds, problems = _captures(concrete, count, needed, variables)
    entry = function_entry(
        program,
        signature,
        results,
        [(t.name, t.dtype.base_dtype.as_datatype_enum) for t in graph.outputs],
        feeds,
        params,
        problems,
        name=name,
        source=source or f"TensorFlow function {name}",
        strict=strict,
    )
    return dataclasses.replace(entry, keras=bool(variables.names))


class _HandleVariable:
    """A variable known to the graph only by its handle, as for optimizer ops."""

    trainable = False

    def __init__(self, handle: object, dtype: int, name: str):
        tf = import_tensorflow()
        self.value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.dtypes.as_dtype(dtype))
        self.shape = self.value.shape
        self.name = name

    def numpy(self) -> np.ndarray:
        return self.value.numpy()


def _captures(
    concrete: TfObject, count: int, needed: set[int], variables: Variables
) -> tuple[list[Param], list[Value], list[Problem]]:
    """Variables in the order they were made, values of captured inputs, and problems.

    Captured values are handles or constants.
    """
    tf = import_tensorflow()
    owners = {id(v.handle): v for v in concrete.graph.variables}
    params: list[Param] = []
    handles: dict[int, Resource] = {}
    feeds: list[Value] = []
    problems: list[Problem] = []
    names: set[str] = set()
    numbers: list[int | None] = []
    for i, captured in enumerate(concrete.captured_inputs):
        variable = owners.get(id(captured))
        dtype = tf_variable_dtype(captured) if variable is None else None
        if dtype is not None and count + i in needed:
            variable = _HandleVariable(captured, dtype, concrete.graph.inputs[count + i].name)
        if count + i not in needed:
            feeds.append(None)
        elif variable is not None:
            if id(variable) not in handles:
                param = variables.param(variable, names)
                params.append(param)
                numbers.append(tf_variable_number(variable))
                shape = tuple(variable.shape) if variable.shape.rank is not None else None
                handles[id(variable)] = Resource("variable", param.name, param.value.dtype, shape)
            feeds.append(handles[id(variable)])
        elif captured.dtype == tf.resource and (found := table(captured)) is not None:
            feeds.append(found)
        elif captured.dtype in (tf.resource, tf.variant):
            feeds.append(None)
            problems.append(
                Problem(
                    "tf.Placeholder",
                    f"captures a {captured.dtype.name} that is not a variable",
                    f"input {concrete.graph.inputs[count + i].name!r}",
                    "Move it out of the function.",
                )
            )
        else:
            # It may share memory with an array of the caller.
            feeds.append(copied(tf_values(captured)))
    known = [n for n in numbers if n is not None]
    if len(known) == len(params):
        params = [p for _, p in sorted(zip(known, params, strict=True), key=lambda pair: pair[0])]
    return params, feeds, problems


def _op_def_lookup(graph: TfObject) -> Callable[[str], Definition | None]:
    """The definition of an op type that `graph` uses, if known.

    Libraries other than TensorFlow register ops too.
    """
    tf = import_tensorflow()

    @functools.cache
    def lookup(op: str) -> Definition | None:
        if (known := op_def(op)) is not None:
            return known
        try:
            proto = graph.op_def_for_type(op)
        except (tf.errors.NotFoundError, RuntimeError):  # this process has no such op
            return None
        return Definition.of(own(proto, OpDef, f"the definition of tf.{op}"))

    return lookup


def _source_line(graph: TfObject, node: str) -> str:
    """The user's source line that created `node`; empty for graphs read from a file."""
    try:
        frames = graph.get_operation_by_name(node).traceback
    except (KeyError, ValueError):
        return ""
    own = [f for f in frames or () if not any(name in f.filename for name in _OTHERS)]
    return f"{own[-1].filename}:{own[-1].lineno}" if own else ""


# Folders of code that is not the user's. This package, which calls what is converted, need not
# be installed.
_OTHERS = ("site-packages", sysconfig.get_path("stdlib"), str(Path(__file__).parents[1]))
