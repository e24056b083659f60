"""Finds layers of unnamed programs: groups parameters by the equations that use them.

A product with a parameter, a convolution or a lookup is a layer, and so is a scale with an offset;
a bias belongs to the product to which it is added. The groups get the usual names of such layers
(`linear`, `norm`, `attention/query`). Data flow then determines the layers, as for named
parameters.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence

from invert._private.jax import names_of
from invert.emission.layers.cut import NUMBER, Path
from invert.emission.layers.roles import roles
from invert.emission.python.naming import stem
from invert.ir import kinds
from invert.ir.graph import Graph, is_var, reads
from invert.ir.jaxprs import sub_jaxprs
from invert.ir.types import Atom, Eqn, Jaxpr, Var

# Uninformative names of parameters: positions, and names given to constants.
_EMPTY = re.compile(
    r"(args?|param|parameter|constant|weight|kernel|bias|scale|table|positions|frequencies|choice|exponents|offset|mean|var|p|x)?_?\d*"
)
# Names of constants whose use is known, which belong to no product or normalization.
_TABLES = frozenset(("positions", "frequencies"))
# Those that are kept instead of `scale` or `bias`.
_KEPT = _TABLES | {"constant"}
_FORMS = kinds.LAYOUT | {"convert_element_type", "copy", "rev"}
_ARITHMETIC = frozenset(("add", "sub", "mul", "div", "add_any"))
# Primitives of a rotary embedding.
_ROTATING = _FORMS | set("slice split concatenate stack neg mul div add sub".split())
_PRODUCTS = {"dot_general": "linear", "conv_general_dilated": "conv", "gather": "embed"}
_SCORED = ("query", "key", "value")


@dataclasses.dataclass(eq=False)
class _Leaf:
    """The parameters of one layer.

    **Arguments:**

    - `kind`: its name.
    - `members`: its parameters with the names of their fields.
    - `eqns`: the equations that use these.
    - `group`: the enclosing layer.
    - `again`: whether the same parameters are used several times, as by each step of a loop.
    - `beside`: the layer to whose result it is added, after other summands.
    - `where`: the path of its parameters.
    """

    kind: str
    members: dict[Var, str] = dataclasses.field(default_factory=dict)
    eqns: list[Eqn] = dataclasses.field(default_factory=list)
    group: str = ""
    again: bool = False
    beside: _Leaf | None = None
    where: Path = ()

    def add(self, v: Var, name: str) -> None:
        taken, wanted, i = set(self.members.values()), name, 2
        while name in taken:
            name, i = f"{wanted}_{i}", i + 1
        self.members.setdefault(v, name)


def named(jaxpr: Jaxpr, parameters: Mapping[Var, Path]) -> dict[Var, Path]:
    """Names of the parameters, after the layers that use them if names are uninformative."""
    names = dict(parameters)
    using = [e for e in jaxpr.eqns if reads(e, parameters)]
    arrays = [v for v in parameters if v.aval.shape]
    if any(map(names_of, using)) or any(not _EMPTY.fullmatch(parameters[v][-1]) for v in arrays):
        return names
    if any(len(p) > 1 for p in parameters.values()):
        return names
    finding = _Leaves(Graph(jaxpr), parameters)
    leaves = [leaf for leaf in finding.find() if leaf.members]
    if len(leaves) < 2:
        return names
    counts: dict[str, int] = {}
    for leaf in leaves:
        affine = {*leaf.members.values()} == {"scale", "bias"}
        if leaf.again or (leaf.kind == "scale" and not affine):
            # A vector of features alone belongs to the enclosing layer, as do parameters used by
            # each step of a loop.
            for v, name in leaf.members.items():
                own = stem(parameters[v][-1])
                name = own if own in _KEPT else name
                counts[name] = counts.get(name, 0) + 1
                names[v] = (f"{name}{NUMBER}{counts[name]}",)
                if leaf.beside is not None and leaf.beside.where:
                    names[v] = (*leaf.beside.where, name)
            continue
        number = counts[leaf.kind] = counts.get(leaf.kind, 0) + 1
        where = f"{leaf.kind}{NUMBER}{number}"
        leaf.where = (leaf.group, where) if leaf.group else (where,)
        for v, name in leaf.members.items():
            names[v] = (*leaf.where, name)
    return names


class _Leaves:
    """Finds the layers of a program, in the order of the program."""

    def __init__(self, graph: Graph, parameters: Mapping[Var, Path]):
        self.graph, self.parameters = graph, parameters
        self.roles = roles(graph)
        self.of: dict[Var, _Leaf] = {}
        # The parameters of values that depend on nothing else.
        self.sources: dict[Atom, tuple[Var, ...]] = {v: (v,) for v in parameters}
        self.constant: set[Atom] = set()
        # The leaf that each equation uses.
        self.at: dict[Eqn, _Leaf] = {}

    def find(self) -> list[_Leaf]:
        for eqn in self.graph.eqns:
            atoms = [a for a in eqn.invars if is_var(a) and a not in self.constant]
            known = [a for a in atoms if a in self.sources]
            if known and kinds.computes(eqn) in _PRODUCTS and len(eqn.invars) > len(known):
                self._use(eqn, known)
            elif not atoms:
                self.constant.update(eqn.outvars)
            elif len(known) == len(atoms) and not _looks_up(eqn):
                whole = dict.fromkeys(v for a in known for v in self.sources[a])
                self.sources.update(dict.fromkeys(eqn.outvars, tuple(whole)))
            elif known:
                self._use(eqn, known)
        leaves = list(dict.fromkeys(self.at.values()))
        for leaf in leaves:
            leaf.beside = self._beside(leaf)
        for leaf in leaves:
            self._name(leaf)
        self._attention(leaves)
        return leaves

    def _use(self, eqn: Eqn, known: Sequence[Atom]) -> None:
        """An equation of an array and a value that depends only on parameters."""
        new = dict.fromkeys(v for a in known for v in self.sources[a])
        owned = [self.of[v] for v in new if v in self.of]
        kind = "embed" if _looks_up(eqn) else _PRODUCTS.get(kinds.computes(eqn))
        if owned:
            leaf: _Leaf | None = owned[0]
            leaf.again |= kinds.computes(eqn) in _PRODUCTS or _looks_up(eqn)
        elif kind is not None:
            leaf = _Leaf(kind)
        elif eqn.primitive.name in _ARITHMETIC:
            table = any(stem(self.parameters[v][-1]) in _TABLES for v in new)
            before = self._before(eqn, known)
            if table and (before is None or not self._is_summand(eqn, new, before)):
                before = None
            leaf = before or _Leaf("scale")
        else:
            leaf = None
        if leaf is None:
            return
        for v in new:
            if v not in self.of:
                self.of[v] = leaf
                leaf.add(v, self._field(v, eqn, leaf))
        self.at[eqn] = leaf
        leaf.eqns.append(eqn)

    def _field(self, v: Var, eqn: Eqn, leaf: _Leaf) -> str:
        """The name of the field of a parameter."""
        name = kinds.computes(eqn)
        if leaf.kind == "embed":
            return "embedding"
        if name in _PRODUCTS and self._recurs(v, eqn):
            return "recurrent_kernel"
        if name in _PRODUCTS:
            moved = any(u.primitive.name == "transpose" for u in self.graph.users.get(v, ()))
            moved |= _has_outputs_first(v, eqn)
            return "weight" if moved and name == "dot_general" else "kernel"
        squared = any(self._is_under_root(u) for u in self.graph.users.get(v, ()))
        if squared:
            return "var"
        if name == "sub":
            return "mean" if leaf.eqns == [] else "bias"
        return "bias" if name in ("add", "add_any") else "scale"

    def _recurs(self, v: Var, eqn: Eqn) -> bool:
        """Return whether a parameter is used again on values that depend on its first use."""
        users = self.graph.users.get(v, ())
        later = [u for u in users if u is not eqn and kinds.computes(u) in _PRODUCTS]
        if kinds.computes(eqn) != "dot_general" or not later:
            return False
        following = {eqn}
        for other in self.graph.eqns[self.graph.index[eqn] :]:
            if any(self.graph.producer(a) in following for a in other.invars):
                following.add(other)
            if other is later[0]:
                return other in following
        return False

    def _is_under_root(self, eqn: Eqn) -> bool:
        users = self.graph.users.get(eqn.outvars[0], ())
        names = {eqn.primitive.name, *(u.primitive.name for u in users)}
        return eqn.primitive.name in {"add", "rsqrt", "sqrt"} and bool(names & {"rsqrt", "sqrt"})

    def _before(self, eqn: Eqn, known: Sequence[Atom]) -> _Leaf | None:
        """The leaf whose result is the operand of an equation, directly."""
        adds = eqn.primitive.name in ("add", "add_any")  # a mean is subtracted
        for atom in eqn.invars:
            if not is_var(atom) or atom in known:
                continue
            made = self._made(atom, through=_FORMS)
            if made in self.at:
                leaf = self.at[made]
                if leaf.kind not in ("linear", "conv", "embed"):
                    # A normalization ends with its bias.
                    return None if "bias" in leaf.members.values() and not adds else leaf
                alone = len(self.graph.users.get(atom, ())) == 1
                if leaf.kind != "embed" and adds and alone and len(leaf.members) == 1:
                    return leaf
            made = self._made(atom, through=_FORMS | kinds.ELEMENTWISE)
            if made in self.at and self.at[made].kind == "scale":
                return self.at[made]
            if adds and (leaf := self._scaled(atom)) is not None:
                return leaf
        return None

    def _is_summand(self, eqn: Eqn, new: Iterable[Var], leaf: _Leaf) -> bool:
        """Return whether parameters of several axes are added to what a normalization scales."""
        sizes = {tuple(n for n in v.aval.shape if n != 1) for v in (*leaf.members, *new)}
        adds = eqn.primitive.name in ("add", "add_any")
        return adds and leaf.kind == "scale" and len(sizes) == 1 and self._normalizes(leaf)

    def _scaled(self, atom: Atom) -> _Leaf | None:
        """The leaf that scales the inverse deviation by which a value is multiplied."""
        product = self.graph.producer(atom, *_FORMS, "mul")
        while product is not None and product.primitive.name != "mul":
            product = self.graph.producer(product.invars[0], *_FORMS, "mul")
        for factor in product.invars if product is not None else ():
            made = self._made(factor, through=_FORMS)
            leaf = self.at.get(made) if made is not None else None
            if leaf is not None and leaf.kind == "scale" and self._normalizes(leaf):
                return leaf
        return None

    def _made(self, atom: Atom, through: frozenset[str]) -> Eqn | None:
        """The equation with parameters that gives a value, possibly through given primitives."""
        for _ in range(8):
            eqn = self.graph.producer(atom)
            if eqn is None or eqn in self.at:
                return eqn
            inputs = [a for a in eqn.invars if is_var(a) and a not in self.sources]
            if eqn.primitive.name not in through or len(inputs) != 1:
                return None
            (atom,) = inputs
        return None

    def _beside(self, leaf: _Leaf) -> _Leaf | None:
        """The layer of the last product in a sum with a single bias."""
        if leaf.kind != "scale" or list(leaf.members.values()) != ["bias"]:
            return None
        for atom in leaf.eqns[0].invars:
            total = self.graph.producer(atom) if atom not in self.sources else None
            if total is None or total.primitive.name not in ("add", "add_any"):
                continue
            made = [e for a in total.invars if (e := self._made(a, through=_FORMS)) in self.at]
            used = [e for e in made if e is not None and kinds.computes(e) in _PRODUCTS]
            products = [self.at[e] for e in used]
            if products and len(products[-1].members) == 1:
                return products[-1]
        return None

    def _name(self, leaf: _Leaf) -> None:
        """Name a leaf by the use of its result."""
        if leaf.kind == "embed":
            (eqn, *_) = leaf.eqns
            places = [a for a in eqn.invars if is_var(a) and a not in self.sources]
            leaf.kind = "embed" if any(a not in self.constant for a in places) else "positions"
        if leaf.kind == "scale":
            leaf.kind = "norm" if self._normalizes(leaf) else "scale"
        if leaf.kind != "linear":
            return
        for eqn in leaf.eqns[-1:]:
            for reached in (self._forms_of, self._rotations_of):
                found = {self.roles.get(v) for v in reached(eqn.outvars[0])}
                if len(known := [name for name in _SCORED if name in found]) == 1:
                    (leaf.kind,) = known
                    break

    def _forms_of(self, v: Var) -> list[Var]:
        """A value, its other forms, and its multiples by a number."""
        found, pending = [], [v]
        while pending:
            v = pending.pop()
            found.append(v)
            users = self.graph.users.get(v, ())
            if len(users) == 1 and users[0].primitive.name in (*_FORMS, "mul", "split"):
                arrays = [a for a in users[0].invars if is_var(a) and a not in self.constant]
                pending += users[0].outvars if len(arrays) == 1 else ()
        return found

    def _rotations_of(self, v: Var) -> set[Var]:
        """Values computed from one value and tables only, as by a rotary embedding."""
        found = {v}
        pending = [v]
        while pending:
            for user in self.graph.users.get(pending.pop(), ()):
                if user.primitive.name not in _ROTATING or user.outvars[0] in found:
                    continue
                arrays = {a for a in user.invars if is_var(a)} - self.constant - found
                if all(a in self.sources for a in arrays):
                    found.update(user.outvars)
                    pending += user.outvars
        return found

    def _normalizes(self, leaf: _Leaf) -> bool:
        """Return whether the scaled value was divided, or is multiplied, by a root."""
        pending: list[Atom] = [a for e in leaf.eqns for a in e.invars if is_var(a)]
        for _ in range(24):
            if not pending:
                return False
            eqn = self.graph.producer(pending.pop(0))
            if eqn is None:
                continue
            if eqn.primitive.name in ("rsqrt", "sqrt"):
                return True
            if eqn.primitive.name in _FORMS | kinds.ELEMENTWISE and eqn not in self.at:
                pending += [a for a in eqn.invars if is_var(a)]
        return False

    def _attention(self, leaves: Sequence[_Leaf]) -> None:
        """Move queries, keys, values and the output projection into a separate layer."""
        number = 0
        # Tables of a rotary embedding come between the layers of an attention.
        leaves = [leaf for leaf in leaves if leaf.kind != "scale"]
        for i, leaf in enumerate(leaves):
            if leaf.group or not self._scored(leaf):
                continue
            members = [leaf]
            for later in leaves[i + 1 :]:
                if later.kind in {m.kind for m in members}:
                    break
                if not self._scored(later):
                    break
                members.append(later)
            following = leaves[i + len(members)] if i + len(members) < len(leaves) else None
            if following is not None and following.kind == "linear" and self._mixes(following):
                following.kind = "out"
                members.append(following)
            if len(members) < 2:
                continue
            number += 1
            if members[0].kind == "linear":
                members[0].kind = "qkv"
            for member in members:
                member.group = f"attention{NUMBER}{number}"

    def _scored(self, leaf: _Leaf) -> bool:
        """Return whether a layer computes queries, keys or values, or all three at once."""
        if leaf.kind in _SCORED:
            return True
        if leaf.kind != "linear":
            return False
        forms = self._forms_of(leaf.eqns[-1].outvars[0])
        return sum(self.roles.get(v) in _SCORED for v in forms) > 1

    def _mixes(self, leaf: _Leaf) -> bool:
        """Return whether the input of a layer is the output of an attention."""
        atom = next(a for a in leaf.eqns[0].invars if is_var(a) and a not in self.sources)
        for _ in range(8):
            eqn = self.graph.producer(atom)
            if eqn is None:
                return False
            if kinds.computes(eqn) == "dot_general" and eqn not in self.at:
                return any(self.roles.get(a) == "weights" for a in map(self._source, eqn.invars))
            if eqn.primitive.name not in _FORMS:
                return False
            (atom, *_) = eqn.invars
        return False

    def _source(self, atom: Atom) -> Atom:
        while (eqn := self.graph.producer(atom)) is not None and eqn.primitive.name in _FORMS:
            atom = eqn.invars[0]
        return atom


def _has_outputs_first(v: Var, eqn: Eqn) -> bool:
    """Return whether a matrix is multiplied along its last axis only, as those of PyTorch are."""
    if eqn.primitive.name != "dot_general" or v not in eqn.invars or len(v.aval.shape) != 2:
        return False
    contracted, _ = eqn.params["dimension_numbers"]
    return tuple(contracted[eqn.invars.index(v)]) == (1,)


def _looks_up(eqn: Eqn) -> bool:
    """Return whether an equation takes rows of its first operand."""
    if eqn.primitive.name == "gather":
        return True
    inner = [e for j in sub_jaxprs(eqn) for e in j.eqns] if eqn.primitive.name == "jit" else []
    return any(e.primitive.name == "gather" for e in inner)
