"""The context of expressions: a program, the proofs of its expressions, its tokens."""

from __future__ import annotations

import abc
import ast
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from invert.emission.expressions.proof import Prover
from invert.emission.layers.cut import Layer
from invert.emission.python import syntax
from invert.emission.sizes.program import Program
from invert.ir.types import ClosedJaxpr, Eqn, JaxFunction, Var

if TYPE_CHECKING:
    from invert.emission.expressions.body import Body, Placed


class Writer(abc.ABC):
    """Base class of the file that expressions are written into.

    Equations that hold programs are written as functions of the file, which again contain
    expressions.

    **Arguments:**

    - `plain`: use functions of `lax` throughout, after a nicer form has failed.
    """

    def __init__(self, program: Program, prover: Prover, *, plain: bool = False):
        self.program, self.prover, self.plain = program, prover, plain
        self._tokens: dict[Var, str] = {}
        self._modules: dict[Layer, str] = {}
        # Returns the field with the stacked modules of which a layer is one.
        self.stacked: Callable[[Layer], ast.expr]

    def token(self, v: Var) -> str:
        """The token of a variable."""
        if v not in self._tokens:
            self._tokens[v] = syntax.new_token()
        return self._tokens[v]

    def module(self, layer: Layer) -> str:
        """The token of the module of a layer, one of those that a loop goes through."""
        if layer not in self._modules:
            self._modules[layer] = syntax.new_token()
        return self._modules[layer]

    @abc.abstractmethod
    def structured(self, body: Body, eqn: Eqn) -> Placed | None:
        """An equation that holds jaxprs or is a layer; `None` if it is neither."""

    @abc.abstractmethod
    def jitted(self, closed: ClosedJaxpr, name: str, args: Sequence[ast.expr]) -> ast.expr:
        """The call of the file's function for a called program."""

    @abc.abstractmethod
    def copied(self, function: JaxFunction) -> str:
        """The name, in the file, of a copied function of this package."""

    @abc.abstractmethod
    def differentiated(self, eqn: Eqn, name: str, args: Sequence[ast.expr]) -> ast.expr:
        """The call of the file's function for one with a derivative rule."""

    @abc.abstractmethod
    def composed(self, eqn: Eqn) -> str:
        """The file's function for a composite, whose name compilers know."""
