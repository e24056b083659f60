"""Mutants of StableHLO modules, and a process that recovers and runs them.

A mutant is a module with one change: a constant, the direction of a comparison, a number of an
attribute (axis, padding, bounds, dimension numbers), an op replaced by a similar one (reducers
included), or the order of two operands. Most are valid programs, and none is the lowering of a
pattern's function.

They run in a separate process, since some never end and some crash it.
"""

from __future__ import annotations

import collections
import dataclasses
import multiprocessing
import random
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.export
import numpy as np

from invert._private.mlir import ir, make_ir_context, stablehlo_dialect
from invert.ir import jaxprs

# Seconds that the mutant itself may run; it was compiled before.
_PATIENCE = 2
# Seconds in which it has to be compiled, or recovered, compiled and run.
_LIMIT = 120

# Ops that take one another's place. The names are those of the generic form, without the dialect.
_SIBLINGS = tuple(
    frozenset(names.split())
    for names in (
        "add subtract multiply maximum minimum",
        "divide power remainder atan2",
        "and or xor",
        "shift_left shift_right_arithmetic shift_right_logical",
        "sine cosine tanh exponential logistic",
        "floor ceil round_nearest_afz round_nearest_even sign abs negate",
        "log log_plus_one sqrt rsqrt cbrt exponential_minus_one",
        "real imag",
    )
)
_DIRECTIONS = "EQ NE GE GT LE LT".split()
# Options of LAPACK routines, which are the numbers of characters.
_CHARACTERS = {76: 85, 85: 76, 82: 76, 78: 84, 84: 78}
# Operands of these may stand in any order.
_COMMUTATIVE = frozenset("add multiply maximum minimum and or xor".split())
# Ops of which swapped operands, or changed numbers, are no other program or none at all.
_LEFT_ALONE = frozenset("func module optimization_barrier".split())
_LINE = re.compile(r'^(.*?)"(\w+)\.([\w.]+)"\(([^()]*)\)(.*)$')
_NUMBER = r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?"


@dataclasses.dataclass(frozen=True)
class Mutant:
    """A module with one line changed.

    **Arguments:**

    - `kind`: what was changed, in a word.
    - `line`: the position of the line; `before`, `after`: what it was and is.
    """

    kind: str
    line: int
    before: str
    after: str
    text: str = dataclasses.field(repr=False)

    def __str__(self) -> str:
        return f"{self.kind}, line {self.line}\n  - {self.before.strip()}\n  + {self.after.strip()}"


def generic_text(function: Callable[..., Any], args: Sequence[Any]) -> str:
    """The module that JAX exports for a function, in MLIR's generic form with one op per line."""
    exported = jax.export.export(jax.jit(function))(*args)
    module = stablehlo_dialect.deserialize_portable_artifact(
        make_ir_context(), exported.mlir_module_serialized
    )
    return module.operation.get_asm(print_generic_op_form=True, enable_debug_info=False)


def mutants(text: str, rng: random.Random) -> Iterator[Mutant]:
    """All mutants of a module in random order, alternating between kinds."""
    lines = text.split("\n")
    by_kind: dict[str, list[tuple[int, str]]] = collections.defaultdict(list)
    in_sort = False
    for i, line in enumerate(lines):
        in_sort = (in_sort and not line.strip().startswith("})")) or '"stablehlo.sort"' in line
        for kind, after in _changes(line, rng):
            # What a sort does without a strict order is its own affair.
            if after != line and not (in_sort and not re.search("direction [GL]T>", after)):
                by_kind[kind].append((i, after))
    queues = [(kind, rng.sample(found, len(found))) for kind, found in sorted(by_kind.items())]
    rng.shuffle(queues)
    while any(queue for _, queue in queues):
        for kind, queue in queues:
            if queue:
                i, after = queue.pop()
                changed = "\n".join((*lines[:i], after, *lines[i + 1 :]))
                yield Mutant(kind, i, lines[i], after, changed)


def _changes(line: str, rng: random.Random) -> Iterator[tuple[str, str]]:
    found = _LINE.match(line)
    if found is None or found[3] in _LEFT_ALONE or found[2] in ("builtin",):
        return
    head, dialect, op, operands, rest = found.groups()
    start = f'{head}"{dialect}.{op}"('
    names = [n for n in operands.split(", ") if n]
    types = _operand_types(rest, len(names))
    attributes, _, end = rest.rpartition("}>")
    if op == "constant":
        for a, b, new in _other_numbers(attributes, r"dense<(.*?)> :", rng):
            yield "constant", f"{start}{operands}){attributes[:a]}{new}{attributes[b:]}}}>{end}"
        return
    if op == "compare":
        for new in rng.sample(_DIRECTIONS, 3):
            after = re.sub(r"(comparison_direction) \w\w>", rf"\1 {new}>", line)
            yield "comparison", after
    for group in _SIBLINGS:
        if op in group:
            for new in rng.sample(sorted(group - {op}), 2 if len(group) > 2 else 1):
                yield "op", f'{head}"{dialect}.{new}"({operands}){rest}'
    if op not in _COMMUTATIVE:
        pairs = [
            (i, j)
            for i in range(len(names))
            for j in range(i)
            if names[i] != names[j] and types[i] == types[j]
        ]
        for i, j in rng.sample(pairs, min(2, len(pairs))):
            swapped = list(names)
            swapped[i], swapped[j] = names[j], names[i]
            yield "operands", f"{start}{', '.join(swapped)}){rest}"
    if op == "custom_call":
        for m in re.finditer(r"= (\d+) : ui8", attributes):
            if int(m[1]) in _CHARACTERS:
                new = _CHARACTERS[int(m[1])]
                text = f"{attributes[: m.start(1)]}{new}{attributes[m.end(1) :]}"
                yield "option", f"{start}{operands}){text}}}>{end}"
        return
    if op == "composite":
        return
    inside = (
        r"array<i64: (.*?)>|= \[([\d, -]*)\]|= (\d+)(?: : i64|,|>)|dense<(.*?)> : tensor<\S*i64>"
    )
    for a, b, new in _other_numbers(attributes, inside, rng):
        yield "attribute", f"{start}{operands}){attributes[:a]}{new}{attributes[b:]}}}>{end}"
    for m in re.finditer(r"array<i64: (-?\d+), (-?\d+)|dense<\[\[(-?\d+), (-?\d+)\]", attributes):
        one, two = (1, 2) if m[1] else (3, 4)
        text = (
            f"{attributes[: m.start(one)]}{m[two]}{attributes[m.end(one) : m.start(two)]}"
            f"{m[one]}{attributes[m.end(two) :]}"
        )
        yield "attribute", f"{start}{operands}){text}}}>{end}"
    for m in re.finditer(r"(?:lower|left_side|unit_diagonal|largest) = (true|false)", attributes):
        new = "false" if m[1] == "true" else "true"
        text = f"{attributes[: m.start(1)]}{new}{attributes[m.end(1) :]}"
        yield "option", f"{start}{operands}){text}}}>{end}"


def _operand_types(rest: str, count: int) -> list[str]:
    found = re.search(r" : \(([^()]*)\) -> ", rest)
    types = re.split(r", (?=tensor)", found[1]) if found else []
    # A region's op has its types in another line; what is swapped there has to verify.
    return types if len(types) == count else [""] * count


def _other_numbers(text: str, where: str, rng: random.Random) -> Iterator[tuple[int, int, str]]:
    """Positions of numbers in a text, and their replacements."""
    for part in re.finditer(where, text):
        group = next((i for i in range(1, (part.re.groups or 0) + 1) if part[i] is not None), None)
        if group is None or part[group].startswith('"'):
            continue
        found = list(re.finditer(rf"0x[0-9A-F]+|true|false|{_NUMBER}", part[group]))
        for m in rng.sample(found, min(2, len(found))):
            new = _other(m[0], rng)
            if new is not None:
                yield part.start(group) + m.start(), part.start(group) + m.end(), new


def _other(number: str, rng: random.Random) -> str | None:
    if number in ("true", "false"):
        return "false" if number == "true" else "true"
    if number.startswith("0x"):  # infinities and not-a-numbers: the sign
        top = int(number[2], 16) ^ 8
        return f"0x{top:X}{number[3:]}"
    if re.fullmatch(r"-?\d+", number):
        return str(int(number) + rng.choice((-1, 1)))
    value = float(number)
    new = rng.choice((value * 1.25, -value, value + 1.0)) if value else 1.0
    return f"{new:.6e}"


def draw(avals: Sequence[Any], seed: int) -> list[np.ndarray]:
    """Arguments of these types; an odd seed gives numbers with ties."""
    rng = np.random.default_rng(seed)
    values = []
    for aval in avals:
        dtype, shape = np.dtype(aval.dtype), aval.shape
        if dtype.kind == "b":
            value = rng.random(shape) < 0.5
        elif dtype.kind == "u":
            value = rng.integers(0, 2**32, shape)
        elif dtype.kind == "i":
            value = rng.integers(-1, 4, shape)
        else:
            value = rng.standard_normal(shape)
            if dtype.kind == "c":
                value = value + 1j * rng.standard_normal(shape)
            if seed % 2:
                value = np.round(value * 2) / 2
        values.append(np.asarray(value).astype(dtype))
    return values


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The outcome of a mutant: `"equal"`, `"different"` (a failure) or `"skipped"`, with a reason.

    `changed` says whether its values differ from the original program's.
    """

    state: str
    reason: str = ""
    certificate: str = ""
    rewrites: tuple[str, ...] = ()
    changed: bool = False


def _judge(connection: Any, text: str, original: str, avals: Sequence[Any], seed: int) -> Outcome:
    import invert
    from tests.harness_cases import difference
    from tests.programs.stablehlo_text import _compiled, flat, run_with_xla

    points = [draw(avals, 2 * seed + i) for i in range(2)]
    with jax.enable_x64(True):
        try:
            want = [run_with_xla(original, p) for p in points]
        except Exception as error:
            raise AssertionError(f"XLA refuses the program itself: {error}") from error
        try:
            _compiled(text)
        except Exception as error:  # noqa: BLE001  any refusal of XLA
            return Outcome("skipped", f"not compiled: {str(error)[:80]}")
        connection.send("compiled")
        try:
            values = [run_with_xla(text, p) for p in points]
        except Exception as error:  # noqa: BLE001  any refusal of XLA
            return Outcome("skipped", f"not run: {str(error)[:80]}")
        connection.send("run")
        try:
            module = invert.from_stablehlo(text)
        except invert.UnsupportedOpError as error:
            return Outcome("skipped", f"not raised: {str(error)[:160]}")
        got = [[np.asarray(x) for x in jax.jit(flat(module))(*p)] for p in points]
    certificate = module.report.certificate
    changed = any(difference(v, w) is not None for v, w in zip(values, want, strict=True))
    found = [difference(g, v, factor=10) for g, v in zip(got, values, strict=True)]
    reason = "; ".join(filter(None, found))
    rewrites = tuple(sorted(module.report.rewrites))
    return Outcome("different" if reason else "equal", reason, str(certificate), rewrites, changed)


def serve(connection: Any) -> None:
    """Judge mutants until the other side closes the pipe."""
    # Lowering a decomposition registers LAPACK, which XLA needs for modules that it gets directly.
    jax.jit(jax.numpy.linalg.cholesky).lower(np.eye(2, dtype=np.float32))
    while True:
        try:
            request = connection.recv()
        except EOFError:
            return
        try:
            connection.send(_judge(connection, *request))
        except Exception as error:  # noqa: BLE001  the other side says which mutant it was
            connection.send(Outcome("different", f"{type(error).__name__}: {error}"[:600]))


class Judge:
    """The process, restarted after a mutant that crashed it or did not end."""

    def __init__(self) -> None:
        self._process: Any = None
        self._connection: Any = None

    def __enter__(self) -> Judge:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def _stop(self) -> None:
        if self._process is not None:
            self._connection.close()
            self._process.kill()
            self._process.join()
            self._process = None

    def __call__(self, text: str, original: str, avals: Sequence[Any], seed: int) -> Outcome:
        if self._process is None:
            context = multiprocessing.get_context("spawn")
            self._connection, other = context.Pipe()
            self._process = context.Process(target=serve, args=(other,), daemon=True)
            self._process.start()
            other.close()
        self._connection.send((text, original, list(avals), seed))
        stage, limit = "compiling", _LIMIT
        try:
            while self._connection.poll(limit):
                answer = self._connection.recv()
                if isinstance(answer, Outcome):
                    return answer
                stage, limit = answer, _PATIENCE if answer == "compiled" else _LIMIT
            reason = "does not end"
        except (EOFError, ConnectionError):
            reason = "ends the process"
        self._stop()
        # If the mutant did not even run by itself, it is too much for XLA.
        return Outcome("different" if stage == "run" else "skipped", f"{reason} after: {stage}")


@dataclasses.dataclass
class Tally:
    """Outcomes of one family."""

    outcomes: list[tuple[str, Mutant, Outcome]] = dataclasses.field(default_factory=list)

    @property
    def valid(self) -> int:
        return sum(o.state != "skipped" for _, _, o in self.outcomes)

    @property
    def failures(self) -> list[str]:
        return [
            f"{name}: {mutant}\n  {o.certificate}; {', '.join(o.rewrites)}\n  {o.reason}"
            for name, mutant, o in self.outcomes
            if o.state == "different"
        ]

    def __str__(self) -> str:
        valid = [o for _, _, o in self.outcomes if o.state != "skipped"]
        exact = sum(o.certificate == "exact" for o in valid)
        changed = sum(o.changed for o in valid)
        skipped = len(self.outcomes) - len(valid)
        return (
            f"{len(valid)} mutants, {changed} with other values, {exact} exact, "
            f"{skipped} skipped, {len(self.failures)} failures"
        )


def judge_some(
    judge: Judge,
    name: str,
    function: Callable[..., Any],
    avals: Sequence[Any],
    count: int,
    seed: int = 0,
) -> Tally:
    """Judge mutants of one program until `count` of them were valid."""
    tally = Tally()
    with jax.enable_x64(any(jaxprs.is_wide_dtype(a.dtype) for a in avals)):
        text = generic_text(function, avals)
    rng = random.Random(zlib.crc32(name.encode()) + seed)
    for mutant in mutants(text, rng):
        if tally.valid >= count or len(tally.outcomes) >= 4 * count + 4:
            break
        try:
            with make_ir_context(), ir.Location.unknown():
                ir.Module.parse(mutant.text).operation.verify()
        except (ir.MLIRError, ValueError):
            continue
        outcome = judge(mutant.text, text, avals, seed)
        tally.outcomes.append((name, mutant, outcome))
    return tally
