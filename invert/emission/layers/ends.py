"""Shares one class among recurrent layers of which some return only their final state.

Both run the same loop; the static field `return_sequences` chooses the values of all steps.
"""

from __future__ import annotations

import ast
import copy
import dataclasses
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar

from invert.emission.layers.shared import Class, Draft, blank, integers, sites
from invert.emission.python import syntax
from invert.emission.python.naming import Names

_T = TypeVar("_T")
_FIELD = "return_sequences"
# The place of time in the values of all steps, by what is returned of them.
_TIME = {"ys": 0, "jnp.swapaxes(ys, 0, 1)": 1}
# Longer expressions are not compared.
_LONGEST = 20_000


@dataclasses.dataclass
class _Loop:
    """A method that ends with `carried, ys = lax.scan(step, init, xs)` and `return last.value`."""

    step: ast.FunctionDef
    scan: ast.Assign
    carried: ast.expr
    ys: ast.expr
    last: ast.Return

    @property
    def time(self) -> int | None:
        """The axis of time in the result; `None` if it is not that of all steps."""
        if not isinstance(self.ys, ast.Name) or self.last.value is None:
            return None
        return _TIME.get(ast.unparse(syntax.renamed(self.last.value, {self.ys.id: "ys"})))

    @property
    def place(self) -> int | None:
        """The carried value that is returned, -1 for the only one; `None` for another result."""
        if not isinstance(self.last.value, ast.Name):
            return None
        name = self.last.value.id
        if isinstance(self.carried, ast.Name):
            return -1 if self.carried.id == name else None
        carried = self.carried.elts if isinstance(self.carried, ast.Tuple) else []
        names = [v.id if isinstance(v, ast.Name) else "" for v in carried]
        return names.index(name) if name in names else None


def _loop(draft: Draft) -> _Loop | None:
    """The loop that the only method of a layer ends with."""
    if len(draft.methods) != 1 or len(draft.methods[0].body) < 3:
        return None
    *_, step, scan, last = draft.methods[0].body
    if not isinstance(step, ast.FunctionDef) or not isinstance(scan, ast.Assign):
        return None
    (target,), value, result = scan.targets, scan.value, step.body[-1]
    if not isinstance(value, ast.Call) or ast.unparse(value.func) != "lax.scan":
        return None
    pair = isinstance(result, ast.Return) and isinstance(result.value, ast.Tuple)
    if not pair or not isinstance(target, ast.Tuple) or not isinstance(last, ast.Return):
        return None
    carried, ys = target.elts
    return _Loop(step, scan, carried, ys, last)


def keys(
    drafts: Sequence[Draft],
    found: Mapping[Draft, Hashable],
    key: Callable[[Draft], tuple[Hashable, ...]],
) -> dict[Draft, Hashable]:
    """What the nodes of one class have in common, where some return only the final state.

    These get the method of the others.

    **Arguments:**

    - `found`: the same for all nodes, without regard to it.
    - `key`: that of a single node, of which the second item is the text.
    """
    wanted = dict(found)
    loops = {d: loop for d in drafts if (loop := _loop(d)) is not None}
    finals = {d: p for d, loop in loops.items() if (p := loop.place) is not None}
    alike: dict[Hashable, list[Draft]] = {}
    for draft, loop in loops.items():
        if loop.time is not None:
            alike.setdefault(found[draft], []).append(draft)
    for group in alike.values():
        first = group[0]
        rest = [d for d in finals if wanted[d] == found[d] and _rest(key(d)) == _rest(key(first))]
        same = [d for d in rest if _adopt(d, finals[d], first)]
        for draft in group if same else ():
            _add_final(draft)
        wanted |= {d: ("ends", found[first]) for d in (*group, *same) if same}
    return wanted


def _rest(key: tuple[Hashable, ...]) -> tuple[Hashable, ...]:
    return (key[0], *key[2:])


def _adopt(draft: Draft, place: int, other: Draft) -> bool:
    """Give a layer that returns its final state the method of another one, if that computes it."""
    (old,), (new,) = draft.methods, copy.deepcopy(other.methods)
    with blank(old), blank(new):
        texts = _expression(old, place), _expression(new, place)
    if "" in texts or texts[0] != texts[1]:
        return False
    own, places = [s.value for s in sites(old)], sites(new)
    numbers = [c for s in old.body for c in integers(s)]
    slots = [c for s in new.body[:-1] for c in integers(s)]
    if len(own) != len(places) or len(numbers) != len(slots):
        return False
    for site, value in zip(places, own, strict=True):
        site.value = copy.deepcopy(value)
    for slot, number in zip(slots, numbers, strict=True):
        slot.value = number.value
    if _expression(old, place) != _expression(new, place):
        return False  # the numbers are in another order
    loop = _loop(dataclasses.replace(draft, methods=[new]))
    assert loop is not None and loop.time is not None  # it is that of a layer with all steps
    _keep(draft)
    kind, shape = draft.arrays[-1]
    first = next(i for i in range(len(draft.arrays)) if _argument(draft)(i))
    draft.arrays[-1:] = [(kind, _timed(shape, loop.time, draft.arrays[first][1])), (kind, shape)]
    axes = draft.axes[-1]
    draft.axes[-1:] = [_timed(axes, loop.time, draft.axes[first]), axes]
    draft.annotations.append(copy.deepcopy(draft.annotations[-1]))
    draft.sources.append(None)
    draft.methods, draft.final = [new], place
    return True


def _timed(items: tuple[_T, ...], time: int, argument: tuple[_T, ...]) -> tuple[_T, ...]:
    """The axes of a result with that of time, which an argument has at the same place."""
    return (*items[:time], argument[time], *items[time:])


def _argument(draft: Draft) -> Callable[[int], tuple[int, ...]]:
    """The shape of an array by its place, if it is an argument; otherwise `()`."""
    return lambda i: draft.arrays[i][1] if isinstance(draft.sources[i], ast.Name) else ()


def _add_final(draft: Draft) -> None:
    """Declare the type of the final state beside that of all steps."""
    _keep(draft)
    (method,), loop = draft.methods, _loop(draft)
    assert loop is not None and loop.time is not None
    kind, shape = draft.arrays[-1]
    final = copy.deepcopy(draft.annotations[-1])
    draft.arrays.append((kind, (*shape[: loop.time], *shape[loop.time + 1 :])))
    axes = draft.axes[-1]
    draft.axes.append((*axes[: loop.time], *axes[loop.time + 1 :]))
    draft.annotations.append(final)
    draft.sources.append(None)
    assert method.returns is not None
    both = ast.BinOp(method.returns, ast.BitOr(), final)
    draft.methods = [copy.copy(method)]
    draft.methods[0].returns = both


def _keep(draft: Draft) -> None:
    """Remember a layer as it is without the others of its class."""
    draft.alone = dataclasses.replace(
        draft,
        arrays=list(draft.arrays),
        axes=list(draft.axes),
        annotations=list(draft.annotations),
        sources=list(draft.sources),
    )


def together(group: Sequence[Draft]) -> list[Draft]:
    """Layers of one class, those that return the values of all steps first.

    If all return the same, they are as they were.
    """
    if len({d.final is None for d in group}) > 1:
        return sorted(group, key=lambda d: d.final is not None)
    for draft in group:
        if draft.alone is not None:
            for name in ("methods", "arrays", "axes", "annotations", "sources", "final"):
                setattr(draft, name, getattr(draft.alone, name))
    return list(group)


def prepare(cls: Class) -> None:
    """Make the choice a static field."""
    if any(d.final is not None for d in cls.drafts):
        cls.statics[_FIELD] = tuple(d.final is None for d in cls.drafts)


def write(cls: Class) -> None:
    """Make the method of the first layer return what the field chooses."""
    place = next((d.final for d in cls.drafts if d.final is not None), None)
    if place is None:
        return
    (method,), loop = cls.drafts[0].methods, _loop(cls.drafts[0])
    assert loop is not None and loop.last.value is not None and isinstance(loop.ys, ast.Name)
    assert isinstance(loop.scan.value, ast.Call)
    init = loop.scan.value.args[1]
    start = init.elts[place] if place >= 0 and isinstance(init, ast.Tuple) else init
    taken = {n.id for n in ast.walk(method) if isinstance(n, ast.Name)}
    name = start.id if isinstance(start, ast.Name) else Names(taken).new("h")
    state = ast.Name(name, ast.Load())
    count = len(init.elts) if isinstance(init, ast.Tuple) else 0
    carried: list[ast.expr] = [
        state if i == place else ast.Name("_", ast.Load()) for i in range(count)
    ]
    target = state if place < 0 else syntax.tuple_of(carried)
    loop.scan.targets = [syntax.tuple_of([target, loop.ys])]
    chosen = syntax.field(ast.Name("self", ast.Load()), _FIELD)
    loop.last.value = ast.IfExp(chosen, loop.last.value, state)


def _expression(method: ast.FunctionDef, place: int) -> str:
    """The final state that a method computes, as one expression; `""` if it is too long.

    **Arguments:**

    - `place`: the carried value, -1 for the only one.
    """
    known: dict[str, str] = {}
    *body, step, scan, _ = method.body
    assert isinstance(step, ast.FunctionDef) and isinstance(scan, ast.Assign)
    if not _read(body, known):
        return ""
    arguments = [a.arg for a in step.args.args]
    own = {**known, **{a: f"argument_{i}" for i, a in enumerate(arguments)}}
    *inside, result = step.body
    assert isinstance(result, ast.Return) and isinstance(result.value, ast.Tuple)
    if not _read(inside, own):
        return ""
    known[step.name] = _filled(result.value.elts[0], own)
    text = _filled(scan.value, known)
    text = f"{text}[0]" if place < 0 else f"{text}[0][{place}]"
    # Without the parentheses around values of local variables.
    return "" if len(text) > _LONGEST else ast.unparse(ast.parse(text, mode="eval"))


def _read(body: list[ast.stmt], known: dict[str, str]) -> bool:
    """Adds the values of local variables; whether all statements are assignments."""
    for statement in body:
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
            return False
        text = _filled(statement.value, known)
        if len(text) > _LONGEST:
            return False
        _assign(statement.targets[0], text, known)
    return True


def _assign(target: ast.expr, text: str, known: dict[str, str]) -> None:
    if isinstance(target, ast.Name):
        known[target.id] = text
    elif isinstance(target, ast.Tuple):
        for i, part in enumerate(target.elts):
            _assign(part, f"{text}[{i}]", known)


def _filled(value: ast.expr, known: Mapping[str, str]) -> str:
    """The text of an expression with the values of local variables."""
    names = {name: f"({text})" for name, text in known.items()}
    return ast.unparse(syntax.renamed(copy.deepcopy(value), names))
