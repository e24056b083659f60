"""Layers of equal programs, of which one method is written and the others are copies."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Hashable, Iterator, Mapping, Sequence

from invert._private.jax import holds_jaxprs, names_of, sub_jaxprs
from invert.emission.layers.state import StateVar
from invert.emission.python import syntax
from invert.emission.python.nouns import of_scope
from invert.ir.avals import is_key
from invert.ir.jaxprs import equations
from invert.ir.merging import program_key
from invert.ir.types import Atom, Eqn, Jaxpr, Var


@dataclasses.dataclass
class Written:
    """The method of a layer.

    **Arguments:**

    - `program`: its program, over fields and arguments.
    - `arguments`: the names of its arguments, in the order of the program's.
    - `names`: preferred names of its values.
    - `texts`: as for a `Draft`, once they are read.
    """

    program: Jaxpr
    method: ast.FunctionDef
    arguments: Sequence[str]
    names: Mapping[Atom, str]
    texts: list[str] = dataclasses.field(default_factory=list)

    def copied(self, program: Jaxpr) -> tuple[ast.FunctionDef, dict[Atom, str]] | None:
        """The method of a layer with an equal program, and the names of its values.

        `None` if it is unknown where a number in the text comes from.
        """
        variables: dict[Atom, Var] = dict(
            zip(_variables(self.program), _variables(program), strict=True)
        )
        own = {id(v): id(w) for v, w in variables.items()}
        own |= {id(e): id(f) for e, f in zip(self.program.eqns, program.eqns, strict=True)}
        method = syntax.cloned(self.method)
        for node in syntax.walk(method):
            if isinstance(node, ast.Constant) and (origin := syntax.origin_of(node)):
                if not all((p if isinstance(p, int) else p[0]) in own for p in origin):
                    return None
                syntax.originate(
                    node, [own[p] if isinstance(p, int) else (own[p[0]], p[1]) for p in origin]
                )
        return method, {variables.get(a, a): n for a, n in self.names.items()}


def key_of(program: Jaxpr, path: Sequence[str], wanted: Mapping[Atom, str]) -> Hashable | None:
    """All that the text of a layer's program depends on; `None` if that is more than a key holds.

    **Arguments:**

    - `path`: the name scopes of the layer.
    - `wanted`: preferred names of some values.
    """
    called = [p for e in program.eqns if holds_jaxprs(e) for p in sub_jaxprs(e)]
    inner = [e for p in called for e in equations(p)]
    if any(type(e) is not Eqn for e in (*program.eqns, *inner)):  # of layers inside, or of a state
        return None
    if any(is_key(v) or isinstance(v, StateVar) for v in program.invars):
        return None
    if (key := program_key(program)) is None:
        return None
    scopes = tuple([of_scope(e, path) for e in program.eqns])
    # The text of a function that an equation calls may have names of its own.
    inside = tuple(map(names_of, inner))
    places: dict[Atom, int] = {v: i for i, v in enumerate(_variables(program))}
    names = tuple([(places.get(v, -1), name) for v, name in wanted.items()])
    return None if any(i < 0 for i, _ in names) else (key, scopes, inside, names)


def _variables(program: Jaxpr) -> Iterator[Var]:
    yield from program.invars
    for eqn in program.eqns:
        yield from eqn.outvars
