"""Entry points of graphs: state, arguments and results around one run of a graph."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence

import jax
import numpy as np

from invert._entry import ArgSpec, EntryPoint, Param, unique
from invert._errors import MalformedModelError, Problem, SignatureError, UnsupportedOpError
from invert.frontends.argument_names import named_by_jax, with_paths
from invert.frontends.signature import (
    Signature,
    check_numeric,
    numbered,
    pruned,
    split_signature,
)
from invert.ir.jaxprs import with_values
from invert.ir.types import Value
from invert.primitives.tf.control_flow import checks_of
from invert.protos.tensors import decode_dtype
from invert.tf.fallback.host import host_entry, text_problems
from invert.tf.interpreter.analysis import Analysis
from invert.tf.interpreter.context import result_value
from invert.tf.interpreter.graph import Graph
from invert.tf.interpreter.split import Split, split
from invert.tf.ops.node import Node, import_tensorflow, variable_name
from invert.tf.ops.state import KEY, Resource
from invert.tf.values.constants import array

# The name of the variable in Keras's `SeedGenerator`.
_KERAS_SEED = "seed_generator_state"

# The remedy for loops without a reverse derivative.
_REVERSE_LOOPS = (
    "A loop of TensorFlow gets a reverse derivative by a bound on its number of steps, such as"
    " `maximum_iterations`, of at most Config(max_scan=...)."
)


@dataclasses.dataclass(frozen=True, eq=False)
class _Run:
    """A graph as an entry point's function of variables, arguments and perhaps a key.

    **Arguments:**

    - `handles`: the variables whose values it takes first.
    - `results`: the outputs it returns, with their dtypes; followed by `checks` and `assigned`.
    """

    program: Analysis
    name: str
    signature: Signature
    handles: Sequence[Resource]
    results: Sequence[tuple[int, np.dtype]]
    feeds: Sequence[Value]
    checks: Sequence[Resource]
    assigned: Sequence[Resource]
    problems: Sequence[Problem]

    def __call__(self, param_values: Sequence[Value], *flat_args: Value) -> list[Value]:
        if self.problems:
            raise UnsupportedOpError(self.problems)
        state: dict[Resource, Value] = dict(zip(self.handles, param_values, strict=True))
        state.update(dict.fromkeys(self.checks, np.zeros((), bool)))
        if self.program.draws:
            flat_args, state[KEY] = flat_args[:-1], flat_args[-1]
        leaves = jax.tree_util.tree_leaves((self.signature.args, self.signature.kwargs))
        strict = self.program.graph.config.strict_shapes
        _check_arguments(self.name, leaves, flat_args, strict=strict)
        order = self.signature.order
        values = with_values([None] * len(order), order, flat_args)
        outputs = self.program.run([*values, *self.feeds], state)
        out = [array(result_value(outputs[i], state), dtype) for i, dtype in self.results]
        return out + [array(state[handle]) for handle in (*self.checks, *self.assigned)]


def at_shapes(entry: EntryPoint, shapes: Sequence[tuple[int, ...]]) -> EntryPoint | None:
    """The same graph for arguments of other shapes or ranks than it declares.

    `None` if the entry point is not a graph.
    """
    if not isinstance(entry.fn, _Run):
        return None
    given = iter(shapes)
    args, kwargs = jax.tree_util.tree_map(
        lambda spec: dataclasses.replace(spec, shape=tuple(next(given))),
        (entry.args, dict(entry.kwargs)),
    )
    signature = dataclasses.replace(entry.fn.signature, args=args, kwargs=kwargs)
    run = dataclasses.replace(entry.fn, signature=signature)
    return dataclasses.replace(entry, fn=run, args=args, kwargs=kwargs)


def graph_entry(
    program: Analysis,
    signature: Signature,
    results: tuple[Sequence[int], object, object, Sequence[np.dtype]],
    feeds: Sequence[Value],
    params: Sequence[Param],
    *,
    name: str,
    source: str,
    problems: Sequence[Problem] = (),
    variables: Mapping[str, Param] | None = None,
) -> EntryPoint:
    """The entry point of a graph.

    **Arguments:**

    - `signature`: the arguments; `signature.order` lists the graph inputs they feed.
    - `results`: the outputs to return, their structure, the same with dictionaries in their own
        order (`EntryPoint.outputs`), and the types of the outputs.
    - `feeds`: values of the other inputs: handles of `params`, or constants.
    - `params`: the captured variables. Those that the graph creates are found here.
    - `problems`: reasons why it cannot be raised.
    - `variables`: those that the graph creates, by the names in its nodes; by default they are
        held by this process.
    """
    out_order, out_tree, numbers, out_dtypes = results
    handles = [Resource("variable", p.name) for p in params]
    taken = {p.name for p in params}
    stored = _stored(program, taken, variables)
    params = [*params, *stored.values()]
    handles += stored
    changed = _changed(program, feeds, len(signature.order)) | {
        h for h in stored if h.name in program.writes
    }
    assigned = [i for i, h in enumerate(handles) if h in changed]
    checks = {check: text for node in program.checks for check, text in checks_of(node).items()}
    outputs = [(i, out_dtypes[i]) for i in out_order]
    after = [handles[i] for i in assigned]
    run = _Run(
        program, name, signature, handles, outputs, feeds, list(checks), after, problems,
    )  # fmt: skip
    return EntryPoint(
        name=name,
        fn=run,
        args=signature.args,
        kwargs=signature.kwargs,
        arg_names=signature.arg_names,
        defaults=signature.defaults,
        out_tree=out_tree,
        params=tuple(params),
        source=source,
        assigned=tuple(assigned),
        draws=program.draws,
        notes=lambda: tuple(program.graph.notes),
        problems=tuple(problems),
        ops=program.ops,
        outside="the rules that raised its TensorFlow ops",
        checks=tuple(checks.values()),
        reverse_loops=_REVERSE_LOOPS,
        outputs=numbers,
    )


def _changed(program: Analysis, feeds: Sequence[Value], first: int) -> set[Resource]:
    """The handles among the feeds, which follow `first` arguments, to which the graph assigns."""
    written = program.writes
    return {f for i, f in enumerate(feeds, first) if isinstance(f, Resource) and i in written}


def function_entry(
    graph: Graph,
    signature: Signature,
    results: tuple[Sequence[int], object, object],
    outputs: Sequence[tuple[str, int]],
    feeds: Sequence[Value],
    params: Sequence[Param],
    problems: Sequence[Problem] = (),
    *,
    name: str,
    source: str,
    strict: bool,
    variables: Mapping[str, Param] | None = None,
) -> EntryPoint:
    """The entry point of a function; further arguments besides those of `graph_entry`:

    - `results`: the outputs to return, and their structure in both forms.
    - `outputs`: names and `DataType` of the outputs.
    - `strict`: whether ops that cannot be raised are an error; otherwise they are its `problems`.

    **Raises:** `UnsupportedOpError`, `SignatureError`.
    """
    if sorted(results[0]) != [*range(len(outputs))]:
        raise MalformedModelError(
            f"{name} has {len(outputs)} results, but its signature has {len(results[0])}"
        )
    if graph.config.text == "split":
        results, outputs = _without_text_results(graph, results, outputs)
    order, tree, numbers = results
    signature = without_text(graph, signature, feeds)
    count = len(signature.order)
    idle = graph.leave_out_idle([i for i, f in enumerate(feeds, count) if _is_seed(f)])
    unused = {feeds[i - count].name for i in idle}
    params = [p for p in params if p.name not in unused]
    program = Analysis(graph, _known(signature, feeds))
    problems = [*problems, *program.problems()]
    problems += text_problems(outputs)
    if not problems:
        signature = named_by_jax(signature, program)
        params = with_paths(params, [None] * count + [*feeds], program)
    if problems and strict:
        raise UnsupportedOpError(problems)
    if unknown := sum(not p.stated for p in params):
        graph.note(
            "the container does not state which Keras layers were frozen: invert.trainable counts "
            f"{unknown} variables as trained; `model.export` writes which ones are"
        )
    dtypes = [decode_dtype(kind) for _, kind in outputs]
    return graph_entry(
        program, signature, (order, tree, numbers, dtypes), feeds, params,
        name=name, source=source, problems=problems, variables=variables,
    )  # fmt: skip


def _is_seed(feed: Value) -> bool:
    """Return whether an input of a graph is the state of a generator of Keras."""
    return isinstance(feed, Resource) and feed.name.rpartition("/")[2] == _KERAS_SEED


def without_text(graph: Graph, signature: Signature, feeds: Sequence[Value] = ()) -> Signature:
    """Replace string arguments by the numeric tensors that the graph computes from them.

    Serialized examples are always parsed by the caller, other strings on request. The main body of
    the graph is what remains.

    **Raises:** `SignatureError` if string arguments remain, `UnsupportedOpError`.
    """
    text = graph.config.text == "split"
    leaves = jax.tree_util.tree_leaves((signature.args, signature.kwargs))
    numeric = all(spec.dtype.kind != "O" for spec in leaves)
    if numeric and not (text and graph.config.host_ops == "error"):
        return signature
    specs = dict(zip(signature.order, leaves, strict=True))
    arguments = [(specs[i].shape, specs[i].dtype) for i in range(len(leaves))]
    weights = [False] * len(leaves) + [
        isinstance(f, Resource) and f.kind in ("variable", "reference") for f in feeds
    ]
    found = split(graph, arguments, _known(signature, feeds), weights, text=text)
    if found is not None:
        signature = _split_signature(graph, signature, specs, found)
    check_numeric(signature)
    return signature


def _without_text_results(
    graph: Graph,
    results: tuple[Sequence[int], object, object],
    outputs: Sequence[tuple[str, int]],
) -> tuple[tuple[Sequence[int], object, object], Sequence[tuple[str, int]]]:
    """Leave out the results of text.

    **Raises:** `UnsupportedOpError` if there are no others.
    """
    order, _, numbers = results
    kinds = [decode_dtype(kind).kind for _, kind in outputs]
    kept = [i for i, kind in enumerate(kinds) if kind != "O"]
    if kinds and not kept:
        raise UnsupportedOpError(text_problems(outputs))
    reduced = pruned(
        jax.tree_util.tree_map(lambda n: kept.index(i) if (i := order[n]) in kept else -1, numbers)
    )
    left, tree = jax.tree_util.tree_flatten(reduced)
    if not 0 < len(kept) == len(left) < len(outputs):
        return results, outputs
    graph.leave_out_results(set(range(len(outputs))) - {*kept})
    paths = jax.tree_util.tree_leaves_with_path(numbers)
    names = [jax.tree_util.keystr(path) for path, n in paths if order[n] not in kept]
    graph.note(f"the results {', '.join(names)} are left out: they are text")
    return (left, tree, numbered(reduced)), [outputs[i] for i in kept]


def _split_signature(
    graph: Graph, signature: Signature, specs: Mapping[int, ArgSpec], found: Split
) -> Signature:
    features = []
    for feature in found.features:
        if feature.shape is None:
            reason = f"becomes the argument {feature.name!r}, whose rank the model does not give"
            remedy = "Export the model with a fixed rank there, or only its numeric part."
            raise UnsupportedOpError([Problem("text", reason, remedy=remedy)])
        features.append(ArgSpec(feature.name, feature.shape, feature.dtype))
    signature = split_signature(signature, found.kept, features)
    ops = ", ".join(sorted({f"tf.{node.op}" for node in found.front if node.op in _named(found)}))
    gone = [f"{specs[i].name!r}" for i in sorted(specs) if i not in found.kept]
    instead = ", ".join(f"{f.name!r}" for f in features)
    graph.note(
        f"the part that turns {', '.join(gone) or 'the arguments'} into numbers is left out "
        f"({ops}): its results are the arguments {instead}"
    )
    return signature


def _named(found: Split) -> set[str]:
    """The ops to name in the report: those that do more than move numbers."""
    return {n.op for n in found.front if n.op.startswith("LookupTable") or host_entry(n)}


def _known(signature: Signature, feeds: Sequence[Value]) -> list[bool]:
    """Return whether each input of the graph is a constant."""
    constants = [f is not None and not isinstance(f, Resource) for f in feeds]
    return [False] * len(signature.order) + constants


def check_count(name: str, inputs: int, signature: Signature) -> None:
    """Refuse a signature that does not fit the inputs of a graph.

    **Raises:** `SignatureError`.
    """
    if inputs != len(signature.order):
        raise SignatureError(
            f"{name}: the graph has {inputs} inputs, but its signature has {len(signature.order)} "
            "tensors",
            remedy="Convert the function that owns it instead.",
        )


def _stored(
    program: Analysis, taken: set[str], variables: Mapping[str, Param] | None
) -> dict[Resource, Param]:
    """The variables that nodes of the graph represent, with their values in this process."""
    params: dict[Resource, Param] = {}
    for node in program.nodes:
        if node.op not in ("VarHandleOp", "VariableV2", "Variable"):
            continue
        kind = "variable" if node.op == "VarHandleOp" else "reference"
        handle = Resource(kind, variable_name(node), node.attr("dtype"), node.attr("shape"))
        if handle in params:
            continue
        if variables is not None:
            param = variables.get(handle.name)
        else:
            value = _held(node)
            # Loading a model appends a number to the names of its variables.
            name = re.sub(r"_load_\d+$", "", handle.name)
            param = None if value is None else Param(name, value)
        if param is not None:
            params[handle] = dataclasses.replace(param, name=unique(param.name, taken))
    return params


def _held(node: Node) -> np.ndarray | None:
    """The value of a variable, by name, in this process's TensorFlow state."""
    tf = import_tensorflow()
    where = {"container": node.attr("container", ""), "shared_name": variable_name(node)}
    dtype, shape = node.attrs["dtype"].type, node.attr("shape")

    def read() -> Value:
        if node.op == "VarHandleOp":
            handle = tf.raw_ops.VarHandleOp(dtype=dtype, shape=shape, **where)
            return tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)
        return tf.identity(tf.raw_ops.VariableV2(dtype=dtype, shape=shape, **where))

    try:
        return np.asarray(tf.compat.v1.wrap_function(read, [])().numpy())
    except (tf.errors.FailedPreconditionError, tf.errors.NotFoundError):
        return None


def _check_arguments(
    name: str, specs: Sequence[ArgSpec], values: Sequence[Value], *, strict: bool
) -> None:
    if len(specs) != len(values):
        raise SignatureError(
            f"{name} takes {len(specs)} arrays, got {len(values)}",
            remedy=f"Pass one for each of {[spec.name for spec in specs]}.",
        )
    for spec, value in zip(specs, values, strict=True):
        shape, dtype = np.shape(value), jax.dtypes.canonicalize_dtype(jax.numpy.result_type(value))
        fits = len(shape) == len(spec.shape) and all(
            not (strict and isinstance(want, int) and isinstance(have, int)) or want == have
            for want, have in zip(spec.shape, shape, strict=True)
        )
        if not fits or dtype != jax.dtypes.canonicalize_dtype(spec.dtype):
            raise SignatureError(
                f"{name}: argument {spec.name!r} must be {spec.dtype.name}{spec.shape}, "
                f"got {dtype.name}{shape}",
                remedy="Pass an array of this type.",
            )
