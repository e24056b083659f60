"""The emitted file: its definitions, its imports, its text."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence

from invert._errors import EmissionError
from invert._private.jax import open_jaxpr
from invert.emission import meshes
from invert.emission.expressions import (
    control_flow,
    copies,
    derivatives,
    helpers,
    literals,
    trees,
)
from invert.emission.expressions.body import Body, Placed
from invert.emission.expressions.proof import Prover
from invert.emission.expressions.pullbacks import Forward, PulledBack
from invert.emission.expressions.render import render
from invert.emission.expressions.statements import FunctionText, Statement
from invert.emission.expressions.writer import Writer
from invert.emission.layers.mapped_trees import TreeMap
from invert.emission.python import shorthand, syntax
from invert.emission.python.format import fitted, formatted
from invert.emission.python.naming import Names, comment, snake
from invert.emission.sizes.expressions import (
    derived_sources,
    dimension_of,
    dimension_sources,
    dimension_token,
    in_place,
    quotients_in,
    text,
)
from invert.emission.sizes.program import Program
from invert.ir.composite import attributes_of, body_of, composite
from invert.ir.sizes import dimensions
from invert.ir.traced_form import difference
from invert.ir.types import AnyJaxpr, ClosedJaxpr, Eqn, JaxFunction, Jaxpr, Var
from invert.ir.value_and_grad import value_and_grad_p

# The dimensions in the strings of annotations are not names of Python.
_HEADER = "# ruff: noqa: F722, F821\n"
LINE_LENGTH = 100


class MissingSizeError(EmissionError):
    """A function depends on an open size that none of its arguments has."""


class File(Writer):
    """Writes programs into one Python file; the arguments are those of `Writer`."""

    def __init__(self, program: Program, prover: Prover, *, plain: bool = False):
        super().__init__(program, prover, plain=plain)
        self.names = Names()
        self.definitions: list[ast.stmt] = []
        self._functions: dict[int, tuple[Jaxpr, str]] = {}
        self._sizes: dict[int, list[ast.expr]] = {}
        self._texts: dict[tuple[str, str], str] = {}
        self._rules: list[tuple[ClosedJaxpr, ClosedJaxpr | str, int]] = []
        self._copied: dict[JaxFunction, str] = {}
        self.layer: Callable[[Body, Eqn], Placed | None] = lambda body, eqn: None

    def structured(self, body: Body, eqn: Eqn) -> Placed | None:
        placed = self.layer(body, eqn)
        if placed is None and eqn.primitive is value_and_grad_p:
            placed = derivatives.value_and_grad(self, body, eqn)
        if placed is None and isinstance(eqn, Forward):
            placed = derivatives.forward(self, body, eqn)
        if placed is None and isinstance(eqn, PulledBack):
            placed = derivatives.pulled_back(body, eqn)
        if placed is None and isinstance(eqn, TreeMap):
            placed = trees.tree_map(self, body, eqn)
        return placed if placed is not None else control_flow.structured(self, body, eqn)

    def function(
        self,
        closed: AnyJaxpr,
        hint: str,
        decorators: Sequence[ast.expr] = (),
        missing: list[str] | None = None,
    ) -> FunctionText:
        """A called program as a function; `missing` as for `with_dimensions`."""
        jaxpr = open_jaxpr(closed)
        body = Body(self, jaxpr, control_flow.constants_of(closed))
        value = syntax.one_or_tuple(body.run())
        tokens = [self.token(v) for v in jaxpr.invars]
        function = FunctionText(
            "", hint, tokens, control_flow.parameter_hints(len(tokens)), body.statements, value,
            decorators,
            types={self.token(v): body.type_of(v) for v in jaxpr.invars},
        )  # fmt: skip
        return self.with_dimensions(function, jaxpr.invars, missing=missing)

    def with_dimensions(
        self,
        function: FunctionText,
        arguments: Sequence[Var],
        given: Mapping[Var, ast.expr] | None = None,
        missing: list[str] | None = None,
    ) -> FunctionText:
        """Make a function read the open sizes that it uses from its arguments.

        **Arguments:**

        - `given`: expressions of arrays that are a part of an argument.
        - `missing`: receives the dimensions that no argument has.

        **Raises:** `EmissionError` if no argument has such a dimension, and `missing` is `None`.
        """
        if not function.free_dimensions():
            return function
        sizes: dict[str, Statement] = {}
        axes = [
            ((given or {}).get(v) or ast.Name(self.token(v), ast.Load()), self.program.shape(v))
            for v in arguments
        ]
        parts: dict[str, tuple[str, int]] = {}
        for size, value, part, rest in derived_sources(axes):
            name = text(size)
            parts[part] = dimension_token(name), rest
            hint = "_".join(sorted(dimensions(size)))
            sizes[name] = Statement([dimension_token(name)], value, [snake(hint, "size")])
        if parts:
            function.rewrite(lambda node: in_place(node, parts))
        wanted = dict.fromkeys(function.free_dimensions())
        sizes = {name: statement for name, statement in sizes.items() if name in wanted}
        for name, value in dimension_sources(axes).items():
            if name in wanted:
                sizes[name] = Statement([dimension_token(name)], value, [snake(name, "size")])
        nowhere = [d for d in wanted if d not in sizes]
        if missing is not None:
            missing += nowhere
        elif nowhere:
            raise MissingSizeError(
                f"{function.hint} depends on the open size {nowhere[0]}, which none of its "
                "arguments has as a dimension"
            )
        # In the order of the arrays and axes, so that layers at other sizes have the same text.
        # That of tokens would depend on how many digits their numbers have.
        number = {self.token(v): i for i, v in enumerate(arguments)}

        def place(statement: Statement) -> tuple[list[int], str]:
            read = [number.get(t, -1) for t in syntax.tokens_in(statement.value)]
            return read, syntax.text_of(statement.value)

        function.body = [*sorted(sizes.values(), key=place), *function.body]
        return function

    def define(self, function: FunctionText, hint: str) -> tuple[str, bool]:
        """Add a function unless its text is there; return name, and whether new."""
        node = render(function, "function", {}, self.names.taken)
        key = (hint, syntax.text_of(node))
        if key in self._texts:
            return self._texts[key], False
        node.name = self._texts[key] = self.names.new(hint)
        self.definitions.append(node)
        return node.name, True

    def jitted(self, closed: ClosedJaxpr, name: str, args: Sequence[ast.expr]) -> ast.expr:
        jaxpr = open_jaxpr(closed)
        if id(jaxpr) not in self._functions:
            hint = snake(name, "function").strip("_") or "function"
            missing: list[str] = []
            function = self.function(closed, hint, [syntax.name("jax.jit")], missing)
            sizes = self._static_sizes(function, missing)
            if sizes:
                # Several get neutral names, so that all calls share the text.
                names = [dimension_of(token) or "" for token in sizes] if len(sizes) == 1 else []
                hints = [snake(name, "size") for name in names] or ["size"] * len(sizes)
                function = _with_sizes(function, list(sizes), hints, "static_argnums")
            # The jaxpr is kept alive, so that no other one gets its id.
            self._functions[id(jaxpr)] = jaxpr, self.define(function, hint)[0]
            self._sizes[id(jaxpr)] = list(sizes.values())
        return syntax.call(self._functions[id(jaxpr)][1], *args, *self._sizes[id(jaxpr)])

    def _static_sizes(self, function: FunctionText, missing: Sequence[str]) -> dict[str, ast.expr]:
        """Static arguments for the sizes that no argument has, e.g. of random numbers.

        **Returns:** the size at the call, by the token of the parameter: a quotient of dimensions
        if the function uses them in no other way, so that calls at several sizes share it.
        """
        nodes: list[ast.expr] = []
        if missing:

            def read(node: ast.expr) -> ast.expr:
                nodes.append(node)
                return node

            function.rewrite(read)
        quotients = quotients_in(nodes, missing)
        if quotients is None:
            return {t: ast.Name(t, ast.Load()) for t in map(dimension_token, missing)}
        sizes: dict[str, ast.expr] = {}
        parts: dict[str, tuple[str, int]] = {}
        for quotient, rest in quotients:
            token = dimension_token(f"size_{len(sizes)}" if sizes else "size")
            sizes[token] = syntax.infix(quotient, "+", syntax.number(rest)) if rest else quotient
            parts[syntax.text_of(quotient)] = token, rest
        function.rewrite(lambda node: in_place(node, parts))
        return sizes

    def copied(self, function: JaxFunction) -> str:
        if function not in self._copied:
            source = textwrap.dedent(inspect.getsource(inspect.unwrap(function)))
            (definition,) = ast.parse(source).body
            assert isinstance(definition, ast.FunctionDef)
            called = syntax.used(definition)
            for name in sorted(called & copies.FUNCTIONS.keys()):
                syntax.rename(definition, {name: self.copied(copies.FUNCTIONS[name])})
            name = helpers.COPIED.get(definition.name, definition.name)
            definition.name = self._copied[function] = self.names.new(name)
            self.definitions.append(definition)
        return self._copied[function]

    def differentiated(self, eqn: Eqn, name: str, args: Sequence[ast.expr]) -> ast.expr:
        closed = eqn.params["call_jaxpr"]
        key = id(open_jaxpr(closed))
        if key not in self._functions:
            rule = self.program.rule(eqn)
            # A rule may call the function itself, which is a new object each time it is traced.
            for known, other, first in self._rules:
                if _same_rule(other, rule) and _same_function(known, closed):
                    self._functions[key] = open_jaxpr(closed), self._functions[first][1]
                    self._sizes[key] = self._sizes[first]
                    break
            else:
                self._define_with_rule(eqn, rule, snake(name, "function").strip("_") or "function")
        return syntax.call(self._functions[key][1], *args, *self._sizes[key])

    def _define_with_rule(self, eqn: Eqn, rule: ClosedJaxpr | str, hint: str) -> None:
        """Add a function with a derivative rule, which take the sizes that no argument has."""
        closed, is_jvp = eqn.params["call_jaxpr"], eqn.primitive.name == "custom_jvp_call"
        jaxpr, count = open_jaxpr(closed), len(eqn.invars)
        missing: list[str] = []
        decorator = syntax.name("jax.custom_jvp" if is_jvp else "jax.custom_vjp")
        function = self.function(closed, hint, [decorator], missing)
        place = len(self.definitions)

        def defined() -> ast.FunctionDef:
            hints = [snake(size, "size") for size in missing]
            sized = _with_sizes(
                function, list(map(dimension_token, missing)), hints, "nondiff_argnums"
            )
            return render(sized, "function", {}, self.names.taken)

        node = defined()
        name = node.name = self.names.new(hint)
        self.definitions.append(node)
        self._functions[id(jaxpr)] = jaxpr, name
        sizes = self._sizes[id(jaxpr)] = _tokens(missing)
        self._rules.append((closed, rule, id(jaxpr)))
        if isinstance(rule, str):
            self.definitions.append(control_flow.forbidden(name, rule, len(sizes)))
            return
        forward = "" if is_jvp else self.names.new(f"{name}_forward")
        derived = control_flow.rule_function(self, eqn, rule, name, function.hints)
        more: list[str] = []
        self.with_dimensions(derived, open_jaxpr(rule).invars[:count], missing=more)
        if more := [size for size in more if size not in missing]:
            missing += more
            sizes += _tokens(more)
            self.definitions[place] = node = defined()
            node.name = name
            derived.rewrite(lambda node: _with_arguments(node, name, _tokens(more)))
        derived.parameters = [*map(dimension_token, missing), *derived.parameters]
        derived.hints = [*(snake(size, "size") for size in missing), *derived.hints]
        backward = self.names.new(derived.hint)
        self.definitions.append(render(derived, backward, {}, self.names.taken))
        if not forward:
            return
        args: ast.expr = ast.Name("args", ast.Load())
        result = syntax.call(name, ast.Starred(args, ast.Load()))
        if sizes:
            args = ast.Subscript(args, ast.Slice(upper=syntax.number(count)), ast.Load())
        definition = syntax.function(forward, [], [ast.Return(syntax.tuple_of([result, args]))])
        definition.args.vararg = ast.arg("args")
        self.definitions.append(definition)
        rules = syntax.call(f"{name}.defvjp", syntax.name(forward), syntax.name(backward))
        self.definitions.append(ast.Expr(rules))

    def composed(self, eqn: Eqn) -> str:
        params = eqn.params
        closed = body_of(eqn)
        jaxpr = open_jaxpr(closed)
        if id(jaxpr) not in self._functions:
            keywords: dict[str, ast.expr] = {}
            if params["version"]:
                keywords["version"] = syntax.number(params["version"])
            if attributes := attributes_of(eqn):
                keywords["attributes"] = literals.value(attributes)
            mark = syntax.call(self.copied(composite), syntax.number(params["name"]), **keywords)
            hint = snake(params["name"], "function").strip("_") or "function"
            function = self.function(closed, hint, [mark])
            self._functions[id(jaxpr)] = jaxpr, self.define(function, hint)[0]
        return self._functions[id(jaxpr)][1]

    def text(self) -> str:
        """The imports and definitions, laid out."""
        copied = self._copied.values()
        definitions = helpers.arranged(syntax.cloned(self.definitions), copied)
        definitions = meshes.with_constants(definitions)
        shorthand.shortened(definitions)
        return explained(module_text(definitions))


def module_text(definitions: Sequence[ast.stmt]) -> str:
    """Definitions and what they import, laid out."""
    body = syntax.text_of(ast.Module([*definitions], []))
    # As isort does: one line before a constant, two before a class or a function.
    space = "\n\n" if definitions and isinstance(definitions[0], ast.Assign) else "\n\n\n"
    return f"{_imports(definitions)}{space}{formatted(body, LINE_LENGTH)}"


def extended(text: str, definitions: Sequence[ast.stmt]) -> str:
    """A file with further definitions, before the function `trainable`, and their imports."""
    own, lines = ast.parse(text).body, text.splitlines(keepends=True)
    imports = [s for s in own if isinstance(s, ast.Import | ast.ImportFrom)]
    begin, end = imports[0].lineno - 1, imports[-1].end_lineno
    is_last = isinstance(own[-1], ast.FunctionDef) and own[-1].name == "trainable"
    place = own[-1].lineno - 1 if is_last else len(lines)
    needed = _imports([*(s for s in own if s not in imports), *definitions])
    body = formatted(syntax.text_of(ast.Module([*definitions], [])), LINE_LENGTH)
    parts = ["".join(lines[end:place]), body, "".join(lines[place:])]
    rest = "\n\n\n".join(part.rstrip("\n") for part in parts if part)
    return f"{''.join(lines[:begin])}{needed}\n{rest}\n"


# A variance of squares, as `tf.nn.moments` and Keras compute it.
_CENTERED = re.compile(r"^( +)(\w+ = .*\(\w+ - lax\.stop_gradient\(mean\)\).*\n +var = )", re.M)


def explained(text: str) -> str:
    """The text with comments on what it does not explain itself."""
    reason = "# As in tf.nn.moments: the variance has no derivative through its mean."
    return _CENTERED.sub(rf"\1{reason}\n\1\2", text)


def headed(text: str, doc: Sequence[str]) -> str:
    """The whole file: its header and docstring, then `text`."""
    lines = [comment(line) for line in doc]
    head = '"""' + "\n".join(lines).rstrip() + '\n"""\n' if len(lines) > 1 else ""
    if len(lines) == 1:
        head = f'"""{lines[0]}"""\n'
    return f"{_HEADER}{head}\n{text}"


def _tokens(sizes: Sequence[str]) -> list[ast.expr]:
    return [ast.Name(dimension_token(size), ast.Load()) for size in sizes]


def _with_sizes(
    function: FunctionText, tokens: Sequence[str], hints: Sequence[str], keyword: str
) -> FunctionText:
    """The function with sizes as its last arguments, static ones of its decorator."""
    if not tokens:
        return function
    first, (decorator,) = len(function.parameters), function.decorators
    places = syntax.tuple_of([syntax.number(first + i) for i in range(len(tokens))])
    return dataclasses.replace(
        function,
        parameters=[*function.parameters, *tokens],
        hints=[*function.hints, *hints],
        decorators=[syntax.call("functools.partial", decorator, **{keyword: places})],
    )


def _with_arguments(node: ast.expr, function: str, args: Sequence[ast.expr]) -> ast.expr:
    """An expression with more arguments in its calls of a function, in place."""
    for each in syntax.walk(node):
        match each:
            case ast.Call(ast.Name(name)) if name == function:
                each.args += args
            case _:
                pass
    return node


def _same_function(one: ClosedJaxpr, other: ClosedJaxpr) -> bool:
    """Return whether one definition serves both: equal programs, or identities of any types."""
    programs = open_jaxpr(one), open_jaxpr(other)
    identities = (not p.eqns and p.outvars == p.invars for p in programs)
    return all(identities) or difference(one, other) is None


def _same_rule(a: ClosedJaxpr | str, b: ClosedJaxpr | str) -> bool:
    if isinstance(a, str) or isinstance(b, str):
        return isinstance(a, str) and isinstance(b, str) and a == b
    return difference(a, b) is None


def check_types(definitions: Sequence[ast.stmt]) -> None:
    """Make methods check their arguments and results against the annotations when traced.

    A method that only passes its arguments on does not: they may not be JAX arrays yet.
    """
    for definition in definitions:
        if not isinstance(definition, ast.ClassDef):
            continue
        for method in definition.body:
            if isinstance(method, ast.FunctionDef) and not isinstance(method.body[-1], ast.With):
                checked = syntax.call("jaxtyped", typechecker=syntax.name("beartype"))
                method.decorator_list.append(checked)


def _imports(definitions: Sequence[ast.stmt]) -> str:
    """The imports that the definitions need, in the order of isort."""
    roots: set[str] = set()
    dotted: set[str] = set()
    for definition in definitions:
        for node in syntax.walk(definition):
            if isinstance(node, ast.Name):
                roots.add(node.id)
            elif isinstance(node, ast.Attribute):
                dotted.add(_path(node))
    # A layer of the original may be called `P`, as `PartitionSpec` is.
    roots -= {d.name for d in definitions if isinstance(d, ast.ClassDef | ast.FunctionDef)}

    def within(module: str) -> bool:
        return any(p.startswith(module + ".") for p in dotted)

    def some(module: str, *names: str) -> str:
        used = [n for n in names if n in roots]
        line = f"from {module} import {', '.join(used)}" if used else ""
        return "\n".join(fitted(line, LINE_LENGTH))

    standard = [
        "import dataclasses" if within("dataclasses") else "",
        "import functools" if within("functools") else "",
        "import json" if within("json") else "",
        "import math" if within("math") else "",
        some("collections.abc", "Callable", "Iterator"),
        some("fnmatch", "fnmatchcase"),
        some("pathlib", "Path"),
        some("typing", "Any", "TypedDict", "get_args", "get_origin"),
        some("zlib", "crc32"),
    ]
    checked = "jaxtyped" in roots
    installed = [
        "import equinox as eqx" if "eqx" in roots else "",
        "import jax" if "jax" in roots else "",
        "import jax.custom_batching" if within("jax.custom_batching") else "",
        "import jax.extend.core" if within("jax.extend") else "",
        "import jax.numpy as jnp" if "jnp" in roots else "",
        *(f"import {m}" for m in ("jax.scipy.linalg", "jax.scipy.special") if within(m)),
        "import numpy as np" if "np" in roots else "",
        "from beartype import beartype" if checked else "",
        some("invert._opaque", "custom_call"),
        some("jax", "lax"),
        some("jax.experimental", "checkify"),
        meshes.import_line(roots),
        some("jaxtyping", *JAXTYPING, "jaxtyped"),
        some("safetensors", "SafetensorError", "safe_open"),
    ]
    sections = ["\n".join(filter(None, lines)) for lines in (standard, installed)]
    return "\n\n".join(filter(None, sections))


JAXTYPING = (
    *"Array BFloat16 Bool Complex Complex64 Complex128 Float Float16 Float32 Float64".split(),
    *"Int Int8 Int16 Int32 Int64 Key PRNGKeyArray PyTree Shaped".split(),
    *"UInt UInt8 UInt16 UInt32 UInt64".split(),
)


def _path(node: ast.Attribute) -> str:
    parts = [node.attr]
    value = node.value
    while isinstance(value, ast.Attribute):
        parts.append(value.attr)
        value = value.value
    parts.append(value.id if isinstance(value, ast.Name) else "")
    return ".".join(reversed(parts))
