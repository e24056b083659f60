"""Writes the equations of one jaxpr as statements."""

from __future__ import annotations

import ast
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from invert.emission.expressions import helpers, keys, literals, products, pullbacks, spelling
from invert.emission.expressions.groups import groups_of, replaced
from invert.emission.expressions.library import HIDDEN
from invert.emission.expressions.spelling import FLOWS
from invert.emission.expressions.statements import (
    FunctionText,
    Pattern,
    Repeat,
    Statement,
    ValueType,
    read,
)
from invert.emission.expressions.writer import Writer
from invert.emission.layers import roles
from invert.emission.layers.cut import LayerCall
from invert.emission.layers.library_names import KINDS_OF_LAYERS
from invert.emission.layers.state import StateVar
from invert.emission.python import syntax
from invert.emission.python.naming import camel, stem
from invert.emission.python.nouns import (
    FORMS,
    PLAIN,
    PRODUCT,
    RESULTS,
    mixes,
    noun,
    of_scope,
    says,
)
from invert.emission.python.pytrees import Trees
from invert.emission.sizes import expressions as sizes
from invert.emission.sizes.expressions import dimension_of
from invert.ir import kinds
from invert.ir.graph import Graph, is_number, is_var
from invert.ir.loops import CondParts
from invert.ir.order import by_number
from invert.ir.types import Atom, Eqn, Jaxpr, Literal, Var

if TYPE_CHECKING:
    from typing_extensions import TypeIs

# An expression is inlined into its only user while the line stays about this long.
_WIDTH = 71
# Reshaped, transposed or sliced fields are named after the field.
_PARTED = FORMS | {"split"}
# Values of a normalization that get a separate line, before an epsilon is added.
_NAMED = frozenset("mean var mean_square scale shift candidate reset i f g o".split())
# Wider operands get a separate line, even calls of layers.
_OPERAND, _CALL = 58, 56
# The same for one of several results.
_RESULT = 36


# The names of the parts of an array without names: `x1, x2`.
_LETTERS_OF_PARTS = "xyzuvw"


@dataclasses.dataclass
class Placed:
    """An equation as Python.

    **Arguments:**

    - `expression`: over the tokens of its operands.
    - `inline`: whether it may be inlined into the expression that uses it.
    - `functions`: local functions that it needs.
    - `hints`: preferred names of its results; meaningless ones are replaced by `python.nouns`.
    - `flows`, `pattern`, `repeat`: as for `Statement`.
    - `starts`: whether it is only what a loop starts with, and inlined there however long.
    - `covered`: ids of the other equations that it stands for.
    - `trees`: tokens of more results, trees of arrays, named by the last of the hints. They are
        numbered in the pattern after the results of the equation; without a pattern, they are all
        results.
    - `heir`: as for `Statement`.
    """

    expression: ast.expr
    inline: bool = True
    functions: Sequence[FunctionText] = ()
    hints: Sequence[str] = ()
    flows: bool | str = False
    pattern: Pattern = None
    repeat: Repeat | None = None
    starts: bool = False
    covered: frozenset[int] = frozenset()
    trees: Sequence[str] = ()
    heir: str = ""


@dataclasses.dataclass(frozen=True)
class Choice:
    """The equation that computes the branch index of a `cond`.

    **Arguments:**

    - `atom`: the argument of `lax.cond` or `lax.switch`: a bool, or an index before it is clamped.
    - `platforms`: of `lax.platform_dependent`, the platforms of each branch; `None` is the default.
    """

    eqn: Eqn
    atom: Atom | None
    is_switch: bool
    platforms: Sequence[Sequence[str] | None] = ()


def _choices(graph: Graph) -> dict[int, Choice]:
    """The branch choices that public functions can express, by the id of their `cond`."""
    choices: dict[int, Choice] = {}
    for eqn in graph.by_primitive.get("cond", ()):
        parts = CondParts.of(eqn)
        index = parts.index
        made = graph.producer(index)
        if made is None:
            continue
        count = len(parts.branches)
        name, atoms = made.primitive.name, made.invars
        if name == "convert_element_type" and count == 2 and atoms[0].aval.dtype == np.bool_:
            choices[id(eqn)] = Choice(made, atoms[0], is_switch=False)
        elif name == "clamp" and is_number(atoms[0], 0) and is_number(atoms[2], count - 1):
            choices[id(eqn)] = Choice(made, atoms[1], is_switch=True)
        elif name == "platform_index":
            platforms = made.params["platforms"]
            choices[id(eqn)] = Choice(made, None, is_switch=False, platforms=platforms)
    return choices


# Names of the only array of a layer.
_ONLY = frozenset(("weight", "kernel", "embedding", "table", "w"))


def _name_of_field(node: ast.Attribute) -> str:
    """The name of a field; that of the layer for `self.position_embeddings.weight`."""
    if node.attr in _ONLY and isinstance(node.value, ast.Attribute):
        return node.value.attr
    return node.attr


def _is_counted(name: str) -> bool:
    """Return whether a name is only the kind of a layer and a number: `conv_2`."""
    return camel(stem(name).rstrip("0123456789")) in KINDS_OF_LAYERS


def _ends_line(statement: Statement) -> bool:
    """Return whether a value is an activation of several layers, all written on one line."""
    calls = [n for n in syntax.walk(statement.value) if isinstance(n, ast.Call)]
    layers = [n for n in calls if ast.unparse(n.func).startswith("self.")]
    return statement.passes and calls[:1] != layers[:1] and len(layers) > 1


def _is_einsum(node: ast.Call) -> bool:
    return isinstance(node.func, ast.Attribute) and node.func.attr == "einsum"


class Body:
    """Writes one jaxpr.

    **Arguments:**

    - `given`: expressions of values that are not local variables, such as `self.kernel`.
    - `names`: names of the arguments.
    - `wanted`: preferred names of results with a separate line.
    - `path`: the name scopes of the jaxpr.
    - `trees`: the trees of values that the text has as one expression.
    """

    def __init__(
        self,
        writer: Writer,
        jaxpr: Jaxpr,
        given: Mapping[Var, ast.expr] | None = None,
        names: Mapping[Atom, str] | None = None,
        wanted: Mapping[Atom, str] | None = None,
        path: Sequence[str] = (),
        trees: Trees | None = None,
    ):
        self.writer = writer
        self.trees = trees or Trees()
        self.names: dict[Atom, str] = dict(names or {})
        # A transposed or reshaped field is named after the field.
        self._fields = {
            v: _name_of_field(e) for v, e in (given or {}).items() if isinstance(e, ast.Attribute)
        }
        self.program = writer.program
        jaxpr = pullbacks.unpacked(jaxpr)
        self.graph = Graph(jaxpr if writer.plain else keys.unpacked(jaxpr))
        self.wanted = {**({} if writer.plain else roles.roles(self.graph)), **(wanted or {})}
        self._apart = set() if writer.plain else roles.apart(self.graph, self.wanted)
        self.path = path
        self.given: dict[str, ast.expr] = {writer.token(v): e for v, e in (given or {}).items()}
        self.statements: list[Statement] = []
        # Values with one user, until that user is written.
        self._waiting: dict[str, tuple[ast.expr, int, Statement]] = {}
        self._uses: dict[Atom, int] = {}
        # The sums of derivatives depend on the order in which a value is read.
        self._in_order = writer.prover.differentiates
        # Transposed arrays, such as the inputs of loops.
        self._transposed: set[str] = set()
        self._place_of: dict[int, int] = {id(e): i for i, e in enumerate(self.graph.eqns)}

    @functools.cached_property
    def changes_state(self) -> bool:
        """Return whether some step assigns the state."""
        return any(isinstance(v, StateVar) for eqn in self.graph.eqns for v in eqn.outvars)

    def token(self, v: Var) -> str:
        return self.writer.token(v)

    def type_of(self, v: Var) -> ValueType:
        return self.program.shape(v), v.aval.dtype

    def run(self) -> list[ast.expr]:
        """Write all equations; return the results."""
        jaxpr = self.graph.jaxpr
        groups = groups_of(self.graph, self.writer)
        self.chosen = _choices(self.graph)
        inside = replaced(self.graph, groups)
        inside |= {id(choice.eqn) for choice in self.chosen.values() if self._only_chooses(choice)}
        for eqn in jaxpr.eqns:
            if id(eqn) not in inside:
                self._count(groups[id(eqn)].leaves if id(eqn) in groups else self.atoms(eqn))
        self._count(jaxpr.outvars)
        self._name_constants()
        for eqn in jaxpr.eqns:
            if id(eqn) in inside:
                continue
            if id(eqn) in groups:
                group = groups[id(eqn)]
                placed = Placed(
                    group.expression, hints=[group.hint], flows=group.flows, covered=group.covered
                )
                syntax.mark(placed.expression, [id(eqn), *group.covered])
                self._place(eqn, placed, group.leaves)
            else:
                self._place(eqn, self._placed(eqn), eqn.invars)
        results = [self.result(a) for a in jaxpr.outvars]
        self._flush()
        self._sort()
        return results

    def _name_constants(self) -> None:
        """Write the constants that are used several times first, each once."""
        for v in self.graph.jaxpr.constvars:
            token = self.token(v)
            if self._uses.get(v, 0) > 1 and isinstance(self.given.get(token), ast.Call):
                value = self.given.pop(token)
                named = Statement([token], value, ["constants"], [self.type_of(v)], place=-1)
                self.statements.append(named)

    def _sort(self) -> None:
        """Put the statements in the order in which they first call layers."""
        statements = self.statements
        made = [[t for t in s.targets if t is not None] for s in statements]
        order = by_number([s.place for s in statements], made, [list(read(s)) for s in statements])
        self.statements = [statements[k] for k in order]

    def _last(self, value: ast.expr) -> ast.expr | None:
        """The value of the last statement, if it only assigns `value`."""
        last = self.statements[-1] if self.statements else None
        if last is None or last.repeat is not None or last.functions or last.pattern is not None:
            return None
        if not isinstance(value, ast.Name) or last.targets != [value.id]:
            return None
        if sum(n for a, n in self._uses.items() if is_var(a) and self.token(a) == value.id) != 1:
            return None
        self.statements.pop()
        return last.value

    def _count(self, atoms: Sequence[Atom]) -> None:
        for atom in atoms:
            if is_var(atom):
                self._uses[atom] = self._uses.get(atom, 0) + 1

    def _only_chooses(self, choice: Choice) -> bool:
        """Return whether an index is used by nothing but the choices of branches."""
        (index,) = choice.eqn.outvars
        read = (a for e in self.graph.users[index] for a in self.atoms(e))
        return index not in self.graph.results and all(a is not index for a in read)

    def atoms(self, eqn: Eqn) -> list[Atom]:
        """The operands of an equation; for a `cond`, its choice's argument first."""
        if id(eqn) in self.chosen:
            atom = self.chosen[id(eqn)].atom
            return [*([] if atom is None else [atom]), *eqn.invars[1:]]
        return list(eqn.invars)

    def _placed(self, eqn: Eqn) -> Placed:
        if isinstance(eqn, keys.Unpacked):
            expression = spelling.spell(eqn.split, self.writer)
            return Placed(expression, False, hints=["key", "subkey"])
        placed = self.writer.structured(self, eqn)
        if placed is not None:
            return placed
        expression = spelling.spell(eqn, self.writer)
        name = eqn.primitive.name
        return Placed(expression, flows=FLOWS.get(name, True))

    def _hints(self, eqn: Eqn, placed: Placed, atoms: Sequence[Atom]) -> list[str]:
        """Preferred names of the results of an equation with operands `atoms`."""
        hints = list(placed.hints or RESULTS.get(eqn.primitive.name, [PLAIN]))
        hints += [hints[-1]] * (len(eqn.outvars) - len(hints))
        for i, v in enumerate(eqn.outvars):
            if isinstance(v, StateVar):
                hints[i] = "state"
            elif v in self.wanted:
                hints[i] = self.wanted[v]
                if hints[i].startswith(roles.PART):  # of a field, or of another array
                    whole = atoms[0] if atoms else None
                    field = self._fields[whole] if self._is_field(whole) else PLAIN
                    hints[i] = hints[i].replace(roles.PART, f"{field}_", 1)
            elif self._activates(eqn, placed, atoms):
                hints[i] = self.names[atoms[0]]
            elif (
                eqn.primitive.name in _PARTED
                and hints[i] != PRODUCT
                and atoms
                and self._is_field(atoms[0])
            ):
                hints[i] = self._fields[atoms[0]]
            elif (
                len(eqn.outvars) == 1
                and (hints[i] == PRODUCT or not says(hints[i]))
                and placed.pattern in (None, (0,))
            ):
                product = hints[i] == PRODUCT
                hints[i] = noun(
                    eqn, atoms, self.names, self.path, product=product, fields=self._fields
                )
                if hints[i] in ("exp", "log") and len(atoms) == 1:
                    hints[i] += self._of_given(atoms[0])
            self.names[v] = hints[i]
        if eqn.primitive.name == "split" and len(hints) > 1 and set(hints) == {PLAIN}:
            letter = self._letter_of_parts(eqn)
            hints = [f"{letter}{i + 1}" for i in range(len(hints))]
            self.names.update(zip(eqn.outvars, hints, strict=True))
        return hints

    def _letter_of_parts(self, eqn: Eqn) -> str:
        """The first letter whose parts, of an earlier split, are not used after this one."""
        place = self._place_of[id(eqn)]
        lettered = {
            self.names[v][:1]
            for split in self.graph.by_primitive["split"]
            if self._place_of[id(split)] < place
            for v in split.outvars
            if self._is_used_after(v, place) and v in self.names
        }
        return next((c for c in _LETTERS_OF_PARTS if c not in lettered), _LETTERS_OF_PARTS[0])

    def _is_used_after(self, v: Var, place: int) -> bool:
        """Return whether a value, or what a function of it alone makes, is used after a place."""
        pending = [v]
        for each in pending:  # which grows
            users = self.graph.users.get(each, ())
            if each in self.graph.results or any(self._place_of[id(u)] > place for u in users):
                return True
            pending += [o for u in users if len(u.invars) == 1 for o in u.outvars]
        return False

    def _of_given(self, atom: Atom) -> str:
        """`_key` for an argument of that name, or a value in that role."""
        if not is_var(atom):
            return ""
        given = atom in self.wanted or atom not in self.graph.producers
        name = self._fields.get(atom) or (self.names.get(atom, "") if given else "")
        return f"_{name}" if says(name) and not name.startswith(("exp", "log")) else ""

    def _activates(self, eqn: Eqn, placed: Placed, atoms: Sequence[Atom]) -> bool:
        """Return whether an equation is a layer's activation, named after the layer."""
        if list(placed.hints) != [HIDDEN] or len(atoms) != 1 or eqn.outvars[0] in self.wanted:
            return False
        maker = self.graph.producer(atoms[0])
        return type(maker) is LayerCall and len(maker.outvars) == 1 and atoms[0] not in self.wanted

    def _is_known_by_scope(self, eqn: Eqn, placed: Placed, hints: Sequence[str]) -> bool:
        """Return whether a step's only result, not a layer's, would be named after its scope."""
        plain = len(hints) == 1 and not placed.hints and not isinstance(eqn, LayerCall)
        unnamed = plain and eqn.outvars[0] not in self.wanted
        return unnamed and hints[0] == of_scope(eqn, self.path)

    def _is_field(self, atom: Atom | None) -> TypeIs[Var]:
        return is_var(atom) and atom in self._fields

    def _place(self, eqn: Eqn, placed: Placed, atoms: Sequence[Atom]) -> None:
        placed.expression = helpers.named(placed.expression, self.writer)
        syntax.mark(placed.expression, [id(eqn)])
        self._letter(placed.expression)
        if isinstance(eqn, LayerCall):
            for token in syntax.tokens_in(placed.expression):
                if token in self._waiting and _ends_line(self._waiting[token][2]):
                    self._settle(token)
        if self._in_order:
            self._settle_out_of_order(eqn, placed)
        held = {t for function in placed.functions for t in function.free()}
        value, width, inside = self._filled(
            placed.expression,
            lambda t: not placed.functions or (t in self._transposed and t not in held),
            2 * _WIDTH if placed.functions else _WIDTH,  # with and without `reverse=True`
        )
        if placed.repeat is not None and (start := self._last(value)) is not None:
            value = start
        for function in placed.functions:
            for token in function.free():
                self._settle(token)
        statement = self._statement(eqn, placed, atoms, value, inside)
        (first, *others) = eqn.outvars
        if eqn.primitive.name == "transpose":
            self._transposed.add(self.token(first))
        single = not others and self._uses.get(first) == 1
        # A returned value is inlined into the `return`.
        last = first in self.graph.results and self._one_result()
        named = self.wanted.get(first) in _NAMED or first in self._apart
        most = _CALL if isinstance(eqn, LayerCall) else _OPERAND
        short = last or placed.starts or width <= most
        if single and placed.inline and not named and not placed.functions and short:
            self._waiting[self.token(first)] = (value, width, statement)
        elif any(map(self._uses.get, eqn.outvars)):
            self.statements.append(statement)

    def _statement(
        self,
        eqn: Eqn,
        placed: Placed,
        atoms: Sequence[Atom],
        value: ast.expr,
        inside: Mapping[str, Statement],
    ) -> Statement:
        """The statement of an equation, with the statements of the inlined operands by token."""
        loops = placed.repeat is not None  # and assigns what it passes on
        outs = [v if loops or self._uses.get(v) else None for v in eqn.outvars]
        first = eqn.outvars[0]
        hints = self._hints(eqn, placed, atoms)
        heirs: list[str] = []
        for token in syntax.tokens_in(placed.expression) if placed.flows else ():
            if dimension_of(token) is None:
                heirs += inside[token].heirs if token in inside else [token]
        own = [None if v is None or self.token(v) in self.given else self.token(v) for v in outs]
        statement = Statement(
            [*own, *placed.trees],
            value,
            [*hints, *placed.hints[len(hints) :]],
            [None if v is None else self.type_of(v) for v in outs],
            self._flows(eqn, placed, atoms),
            placed.functions,
            placed.pattern,
            heirs,
            placed.repeat,
            self._place_of[id(eqn)],
            isinstance(eqn, LayerCall),
            (type(eqn) is LayerCall and len(outs) == 1 and first not in self.wanted)
            or self._activates(eqn, placed, atoms),
        )
        if placed.trees and placed.pattern is None:
            statement.targets, statement.types = placed.trees, [None] * len(placed.trees)
            statement.hints = [*hints, *placed.hints[len(hints) :]][-len(placed.trees) :]
            statement.heir = placed.heir
        reads = [s.reads for s in inside.values() if s.reads is not None]
        if (own := self._first_shared(eqn, placed)) is not None:
            reads.append(own)
        statement.reads = min(reads, default=None)
        if self._in_order:
            statement.uses = [use for s in inside.values() for use in s.uses]
            statement.uses += self._shared_uses(eqn, placed)
        called = [s.place for s in inside.values() if s.calls]
        last_of_several = statement.passes and _is_counted(hints[0])
        if called and self._is_known_by_scope(eqn, placed, hints):
            tokens = {t for t in syntax.tokens_in(value) if dimension_of(t) is None}
            statement.passes = last_of_several = len(tokens) == 1
        if called and last_of_several:
            # Its name does not say what they compute together.
            self.names[first] = PLAIN
            statement.hints = [PLAIN]
        if called:
            statement.place, statement.calls = min([*called, statement.place]), True
        elif reads:
            statement.place = min(reads)
        if statement.uses:
            statement.place = min(k for _, k in statement.uses)
        return statement

    def _settle_out_of_order(self, eqn: Eqn, placed: Placed) -> None:
        """Write what would be evaluated after an equation that reads the same value later."""
        operands = [t for t in syntax.tokens_in(placed.expression) if t in self._waiting]
        uses = [use for t in operands for use in self._waiting[t][2].uses]
        uses += self._shared_uses(eqn, placed)
        last: dict[Var, int] = {}
        in_order = True
        for v, k in uses:
            in_order = in_order and last.get(v, -1) <= k
            last[v] = k
        for token in list(self._waiting):
            inside = token in operands
            if not in_order if inside else any(v in last for v, _ in self._waiting[token][2].uses):
                self._settle(token)

    def _shared_uses(self, eqn: Eqn, placed: Placed) -> list[tuple[Var, int]]:
        """The values that an equation and others read, with the numbers of the reads."""
        eqns = self.graph.eqns
        places = sorted(self._place_of[i] for i in {*placed.covered, id(eqn)})
        atoms = ((a, k) for k in places for a in eqns[k].invars)
        return [(a, k) for a, k in atoms if is_var(a) and self._uses.get(a, 0) > 1]

    def _first_shared(self, eqn: Eqn, placed: Placed) -> int | None:
        """The number of the first equation that reads a value which others read too.

        Reverse mode adds up the gradient of such a value in the order in which it is read.
        """
        eqns = self.graph.eqns
        places = [self._place_of[i] for i in (*placed.covered, id(eqn))]
        return min((k for k in places if any(map(self._is_shared, eqns[k].invars))), default=None)

    def _is_shared(self, atom: Atom) -> bool:
        return is_var(atom) and self._uses.get(atom, 0) > 1 and not self._is_field(atom)

    def _letter(self, expression: ast.expr) -> None:
        """Name the subscripts of an einsum after the dimensions of its operands."""
        for node in syntax.walk(expression):
            if isinstance(node, ast.Call) and len(node.args) == 3 and _is_einsum(node):
                subscripts, *operands = node.args
                names = [
                    self._roles.get(o.id) if isinstance(o, ast.Name) else None for o in operands
                ]
                assert isinstance(subscripts, ast.Constant)
                text = products.lettered(str(subscripts.value), names)
                fields = [isinstance(o, ast.Name) and o.id in self._field_tokens for o in operands]
                if fields == [True, False]:
                    text = products.relettered(text, data=1)
                node.args[0] = ast.Constant(text)

    @functools.cached_property
    def _field_tokens(self) -> set[str]:
        return {self.token(v) for v in self._fields}

    @functools.cached_property
    def _roles(self) -> dict[str, str]:
        """Names of values by their roles, by token."""
        return {self.token(v): name for v, name in self.wanted.items() if isinstance(v, Var)}

    def _flows(self, eqn: Eqn, placed: Placed, atoms: Sequence[Atom]) -> bool | str:
        """Return whether a result takes over the name of an operand."""
        if any(v in self.wanted for v in eqn.outvars):
            return False
        # The product of a state `h` and a matrix is not called `h`.
        product = kinds.computes(eqn) == "dot_general"
        # Nor is the sine of angles called `angles`.
        product = product or eqn.primitive.name in ("sin", "cos")
        mixed = placed.flows and (product or mixes(eqn, atoms, self._fields))
        return "blank" if mixed else placed.flows

    def _filled(
        self, expression: ast.expr, inline: Callable[[str], bool], most: int
    ) -> tuple[ast.expr, int, dict[str, Statement]]:
        """Inline the operands that fit into an expression.

        Returns the expression, its width, and the statements of the inlined operands by token."""
        tokens = syntax.tokens_in(expression)
        width = sizes.width(expression)
        values: dict[str, ast.expr] = {}
        inside: dict[str, Statement] = {}
        for token in tokens:
            if token in self.given:
                values[token] = self.given[token]
                width += syntax.width(self.given[token]) - syntax.width(syntax.name(token))
        waiting = [t for t in tokens if t in self._waiting]
        calls = [t for t in waiting if self._waiting[t][2].calls]
        if len(calls) > 1 and width + sum(self._waiting[t][1] for t in waiting) > _WIDTH:
            for token in calls:  # one line for each, or one for all
                self._settle(token)
        for token in tokens:
            if token not in self._waiting:
                continue
            value, more, statement = self._waiting[token]
            if inline(token) and width + more <= most:
                values[token] = value
                width += more
                inside[token] = statement
                del self._waiting[token]
            else:
                self._settle(token)
        filled = syntax.substitute(expression, values) if values else expression
        return filled, width, inside

    def _settle(self, token: str) -> None:
        """Write the statement of a value that was kept back for inlining."""
        if token in self._waiting:
            self.statements.append(self._waiting.pop(token)[2])

    def _flush(self) -> None:
        for token in list(self._waiting):
            self._settle(token)

    def _one_result(self) -> bool:
        """Return whether there is exactly one result besides a state."""
        return sum(not isinstance(v, StateVar) for v in self.graph.jaxpr.outvars) == 1

    def result(self, atom: Atom) -> ast.expr:
        """A result of the body as an expression."""
        if isinstance(atom, Literal):
            return self.literal(atom)
        token = self.token(atom)
        if token in self.given:
            return self.given[token]
        if token in self._waiting:
            value, width, statement = self._waiting[token]
            # A name that only repeats that of a layer says nothing about a result.
            if self._one_result() or (statement.passes and width <= _RESULT):
                del self._waiting[token]
                return value
        self._settle(token)
        return ast.Name(token, ast.Load())

    def operand(self, atom: Atom) -> ast.expr:
        """An operand as an expression; literals have their types."""
        if isinstance(atom, Literal):
            return self.literal(atom)
        return ast.Name(self.token(atom), ast.Load())

    def settled(self, atom: Atom) -> ast.expr:
        """An operand as a repeatable expression: a name, a field or a number."""
        expression = self.operand(atom)
        if not isinstance(atom, Literal):
            self._settle(self.token(atom))
            return self.given.get(self.token(atom), expression)
        return expression

    def literal(self, atom: Literal) -> ast.expr:
        """A literal with its type."""
        return literals.of_literal(atom, plain=False)
