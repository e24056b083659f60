"""Names values by roles: a normalization's variance, an LSTM's gates.

A role is derived from the equations around a value, never guessed from a name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from invert._private.jax import open_jaxpr
from invert.emission.layers.cut import LayerCall
from invert.ir import kinds
from invert.ir.graph import Graph, is_var
from invert.ir.jaxprs import fills
from invert.ir.loops import ScanParts
from invert.ir.types import Atom, Eqn, Jaxpr, Literal, Var

_WAY = kinds.LAYOUT | {"convert_element_type"}
# Operations on the scores of an attention before the softmax.
_SCORED = _WAY | {"mul", "div", "add", "select_n", "max", "sub", "tanh"}
_LONGEST = 12


def roles(graph: Graph) -> dict[Atom, str]:
    """Names of values by their roles in a body."""
    found: dict[Atom, str] = {}
    for name, of in _ROLES:
        for eqn in graph.by_primitive.get(name, ()):
            for atom, role in of(eqn, graph):
                if is_var(atom):
                    found.setdefault(atom, role)
    return found


def _source(graph: Graph, atom: Atom) -> Atom:
    """The array that a value is reshaped or transposed from."""
    while (eqn := graph.producer(atom, *_WAY)) is not None and is_var(eqn.invars[0]):
        atom = eqn.invars[0]
    return atom


def _users(graph: Graph, atom: Atom, *names: str) -> list[Eqn]:
    """The equations with given primitives that use a value, possibly in another form."""
    users: list[Eqn] = []
    for eqn in graph.users.get(atom, ()) if is_var(atom) else ():
        if eqn.primitive.name in names:
            users.append(eqn)
        elif eqn.primitive.name in _WAY:
            users += _users(graph, eqn.outvars[0], *names)
    return users


def _normalization(eqn: Eqn, graph: Graph) -> Iterator[tuple[Atom, str]]:
    """`rsqrt(var + epsilon) * gamma` is the scale, `beta - mean * scale` the shift."""
    inside, known, name = graph.producer(eqn.invars[0], "add"), False, "var"
    if inside is not None and any(isinstance(a, Literal) for a in inside.invars):
        variance = next((a for a in inside.invars if is_var(a)), None)
        if variance is not None and (name := _mean_of_squares(graph, variance)):
            known = True
            yield variance, name
            yield from _squares(graph, variance)
        elif variance is not None and (difference := _difference(graph, variance)) is not None:
            known = True
            yield variance, "var"
            yield _source(graph, difference.invars[0]), "mean_square"
    (out,) = eqn.outvars
    products = [u for u in _users(graph, out, "mul") if _of_one_axis(u, graph)]
    scale = products[0].outvars[0] if len(products) == 1 else None
    if scale is not None and _is_of_shape(products[0], graph):
        yield scale, "normalized"
        return
    alone = scale is None and not products and eqn.primitive.name == "rsqrt"
    if known and alone and len(out.aval.shape) > 1:
        yield out, "inv_std"
    if known and eqn.primitive.name == "sqrt":
        yield out, "std" if name == "var" else "rms"
    if scale is None:
        if len(products) > 1 and len(out.aval.shape) == 1:  # the stored statistics alone
            yield out, "scale"
        return
    yield scale, "scale"
    scaled = _users(graph, scale, "mul")
    for product in scaled:
        for atom in product.invars:
            centered = graph.producer(atom, "sub")
            if centered is not None and _sum_of_mean(graph, centered.invars[1]):
                yield centered.invars[1], "mean"
        for last in _users(graph, product.outvars[0], "add", "sub"):
            others = [a for a in last.invars if _source(graph, a) is not product.outvars[0]]
            if others and all(graph.producer(_source(graph, a)) is None for a in others):
                makers = [
                    graph.producer(_source(graph, a), "mul")
                    for u in _users(graph, last.outvars[0], "add")
                    for a in u.invars
                ]
                if any(m is not None and m in scaled and m is not product for m in makers):
                    yield last.outvars[0], "shift"


def _of_one_axis(eqn: Eqn, graph: Graph) -> bool:
    """Return whether one factor is an argument of the body, perhaps reshaped."""
    return any(graph.producer(_source(graph, a)) is None for a in eqn.invars if is_var(a))


def _is_of_shape(eqn: Eqn, graph: Graph) -> bool:
    """Return whether an array of several axes, such as `x` in `x * rsqrt(...)`, is a factor."""
    (out,) = eqn.outvars
    sources = [_source(graph, a) for a in eqn.invars if is_var(a)]
    whole = [v for v in sources if graph.producer(v) is None and v.aval.shape == out.aval.shape]
    return len(out.aval.shape) > 1 and bool(whole) and len(sources) == 2


def _rotation(eqn: Eqn, graph: Graph) -> Iterator[tuple[Atom, str]]:
    """Values whose sine and cosine are taken, positions times frequencies."""
    angles = eqn.invars[0]
    if not is_var(angles) or not _users(graph, angles, "sin"):
        return
    yield angles, "angles"
    source = _source(graph, angles)
    joined = graph.producer(source, "concatenate")
    if joined is not None and len({*joined.invars}) == 1:  # the same for both halves
        source = _source(graph, joined.invars[0])
    product = graph.producer(source, "mul", "dot_general")
    if product is not None:
        yield product.outvars[0], "angles"
    for factor in product.invars if product is not None else ():
        frequencies = _source(graph, factor)
        steps = _from_range(graph, frequencies)
        if any(step.primitive.name in ("pow", "exp", "exp2") for step in steps):
            yield frequencies, "frequencies"
            yield from ((v, "exponents") for e in steps for v in e.outvars if v is not frequencies)


def _from_range(graph: Graph, atom: Atom) -> list[Eqn]:
    """The equations of a value computed from a range of integers."""
    eqns, outside = graph.needed([atom])
    known = kinds.ELEMENTWISE | _WAY | {"iota"}
    return [] if outside or any(e.primitive.name not in known for e in eqns) else eqns[::-1]


def _alternating(eqn: Eqn, graph: Graph) -> Iterator[tuple[Atom, str]]:
    """Every other element along the last axis."""
    shape, strides = eqn.invars[0].aval.shape, eqn.params["strides"]
    if strides is not None and strides[-1] == 2 and set(strides[:-1]) <= {1}:
        start = eqn.params["start_indices"]
        whole = [n for i, n in enumerate(shape[:-1]) if eqn.params["limit_indices"][i] == n]
        if len(whole) == len(shape) - 1 and not any(start[:-1]) and start[-1] in (0, 1):
            yield eqn.outvars[0], ("even", "odd")[start[-1]]


def _mean_of_squares(graph: Graph, atom: Atom) -> str:
    """`var` for the mean of squared deviations, `mean_square` for that of squares."""
    bounded = graph.producer(_source(graph, atom), "max")
    if bounded is not None and any(isinstance(a, Literal) for a in bounded.invars):
        atom = next((a for a in bounded.invars if is_var(a)), atom)  # at least zero
    called = graph.producer(_source(graph, atom), "jit")
    if called is not None and called.params["name"] == "_var":
        return "var"
    total = _sum_of_mean(graph, atom)
    square = total and graph.producer(
        _source(graph, total.invars[0]), "square", "integer_pow", "mul"
    )
    if not square or any(a is not square.invars[0] for a in square.invars):
        return ""
    return "var" if graph.producer(square.invars[0], "sub") is not None else "mean_square"


def _sum_of_mean(graph: Graph, atom: Atom) -> Eqn | None:
    """The sum that a mean divides, if a value is a mean."""
    division = graph.producer(_source(graph, atom), "div")
    return division and graph.producer(_source(graph, division.invars[0]), "reduce_sum")


def _difference(graph: Graph, atom: Atom) -> Eqn | None:
    """The mean of squares minus the squared mean, which is clamped to variance."""
    eqn = graph.producer(_source(graph, atom), "max", "sub")
    if eqn is not None and eqn.primitive.name == "max":
        arrays = [a for a in eqn.invars if is_var(a)]
        eqn = graph.producer(arrays[0], "sub") if len(arrays) == 1 else None
    if eqn is None or _mean_of_squares(graph, eqn.invars[0]) != "mean_square":
        return None
    square = graph.producer(eqn.invars[1], "square", "integer_pow", "mul")
    mean = square and graph.producer(_source(graph, square.invars[0]), "div")
    return eqn if mean else None


def _squares(graph: Graph, variance: Atom) -> Iterator[tuple[Atom, str]]:
    """The squares whose mean is a variance."""
    if total := _sum_of_mean(graph, variance):
        yield _source(graph, total.invars[0]), "squared"


def _attention(eqn: Eqn, graph: Graph) -> Iterator[tuple[Atom, str]]:
    """Products before and after a softmax, whose quotient is `eqn`."""
    exponential = graph.producer(eqn.invars[0], "exp")
    if exponential is None or graph.producer(exponential.invars[0], "sub") is None:
        return
    chosen = _users(graph, eqn.outvars[0], "select_n")
    forms = [eqn.outvars[0], *(e.outvars[0] for e in chosen)]
    products = [e for v in forms for e in _users(graph, v, "dot_general")]
    way: list[Var] = []
    product: Eqn | None = None
    pending = [a for a in graph.producers[exponential.invars[0]].invars[:1] if is_var(a)]
    while pending and len(way) < _LONGEST:
        atom = pending.pop()
        maker = graph.producer(atom)
        if maker is None or not is_var(atom):
            continue
        if maker.primitive.name == "dot_general":
            product = maker
            way.append(atom)
        elif maker.primitive.name in _SCORED and not _is_number(maker):
            yield from _added(maker, graph)
            dtype = eqn.outvars[0].aval.dtype
            pending += [a for a in maker.invars if is_var(a) and a.aval.dtype == dtype]
            way.append(atom)
    if product is None:
        for after in products:
            yield from _pooled(after, forms, graph)
    if product is None or not products:
        return
    made: set[Atom] = set(product.outvars)
    for v in sorted(way, key=lambda v: graph.index[graph.producers[v]]):
        # What is added to the scores is none.
        if any(a in made for a in graph.producers[v].invars if is_var(a)):
            made.add(v)
    for v in way:
        if v in made and v.aval.dtype == product.outvars[0].aval.dtype and len(v.aval.shape) > 2:
            yield v, "scores"
        maker = graph.producer(v, "select_n")
        if maker is not None and is_var(mask := maker.invars[0]) and mask in graph.producers:
            yield from ((a, "mask") for a, _ in _forms(graph, mask, ""))
    yield from ((v, "weights") for v in forms)
    keys = _key_of(product, graph)
    names = ("key", "query") if keys == 0 else ("query", "key")
    for atom, name in zip(product.invars, names, strict=True):
        yield from _forms(graph, atom, name)
    for after in products:
        others = [a for a in after.invars if _source(graph, a) not in forms]
        for atom in others:
            yield from _forms(graph, atom, "value")
        if len(others) == 1:
            yield from _later_forms(graph, after.outvars[0], "context")


def _pooled(product: Eqn, weights: Sequence[Atom], graph: Graph) -> Iterator[tuple[Atom, str]]:
    """The mean of an array along its second axis, by weights that a layer computes."""
    (out,) = product.outvars
    for atom in product.invars:
        shape = atom.aval.shape
        means = (*shape[:1], *shape[2:]), (*shape[:1], 1, *shape[2:])
        if len(shape) > 2 and _source(graph, atom) not in weights and out.aval.shape in means:
            yield from _later_forms(graph, out, "pooled")


def _length(eqn: Eqn, graph: Graph) -> Iterator[tuple[Atom, str]]:
    """The square root of a sum of squares: of an array, or of the difference of two."""
    inside = _source(graph, eqn.invars[0])
    added = graph.producer(inside, "add", "max")
    arrays = [a for a in added.invars if is_var(a)] if added is not None else []
    inside = _source(graph, arrays[0]) if len(arrays) == 1 else inside
    total = graph.producer(inside, "reduce_sum")
    square = total and graph.producer(total.invars[0], "square", "integer_pow", "mul")
    if not square or any(a is not square.invars[0] for a in square.invars):
        return
    if square.params.get("y", 2) == 2:
        apart = graph.producer(square.invars[0], "sub") is not None
        yield square.outvars[0], "squared"
        yield eqn.outvars[0], "distance" if apart else "norm"


# What scores are added to: large negative numbers at some positions, or numbers for each head.
ADDED_TO_SCORES = MASK, BIAS = "mask", "bias"


def _added(eqn: Eqn, graph: Graph) -> Iterator[tuple[Atom, str]]:
    """An input that is added to the scores of an attention."""
    for atom in eqn.invars if eqn.primitive.name == "add" else ():
        source = _source(graph, atom)
        if is_var(source) and source not in graph.producers and len(source.aval.shape) > 2:
            # The last axes are heads, queries and keys.
            shape = source.aval.shape
            yield source, MASK if 1 in (shape[-3:-1] if len(shape) > 3 else shape[:-1]) else BIAS


def _is_number(eqn: Eqn) -> bool:
    return all(isinstance(a, Literal) for a in eqn.invars)


def _key_of(product: Eqn, graph: Graph) -> int:
    """The factor of the scores whose axis the weights sum to one along."""
    ((left, _), (batch, _)) = product.params["dimension_numbers"]
    free = len(product.invars[0].aval.shape) - len(left) - len(batch)
    rank = len(product.outvars[0].aval.shape)
    axis = rank - 1
    atom: Atom = product.outvars[0]
    # The scores may be scaled before their axes are exchanged.
    while len(users := graph.users.get(atom, ())) == 1 and len(users[0].outvars) == 1:
        if users[0].primitive.name == "transpose":
            axis = users[0].params["permutation"][-1]
            break
        if users[0].primitive.name not in ("mul", "div"):
            break
        atom = users[0].outvars[0]
    return 0 if axis < len(batch) + free else 1


def _forms(graph: Graph, atom: Atom, name: str) -> Iterator[tuple[Atom, str]]:
    """A value and those that it is reshaped or transposed from, within the body."""
    while is_var(atom) and (eqn := graph.producer(atom)) is not None:
        yield atom, name
        if eqn.primitive.name not in (*_WAY, "mul"):
            return
        atom = eqn.invars[0]


def _later_forms(graph: Graph, atom: Var, name: str) -> Iterator[tuple[Atom, str]]:
    """A value and its other forms, while each is used only for the next."""
    yield atom, name
    while len(users := graph.users.get(atom, ())) == 1 and users[0].primitive.name in _WAY:
        (atom,) = users[0].outvars
        yield atom, name


_ROTATED = "rotated"
_FACTORS = frozenset(("query", "key", "value", "weights"))


def apart(graph: Graph, names: Mapping[Atom, str]) -> set[Atom]:
    """An attention's values that its products use, each on its own line.

    So do its scores and its context, in their last form. A matrix transposed for a product does
    not: `query @ jnp.swapaxes(key, 2, 3)`. Halves that are exchanged for a rotation do.
    """
    found: set[Atom] = set()
    for eqn in graph.by_primitive.get("dot_general", ()):
        for atom in eqn.invars:
            if is_var(atom) and names.get(atom) in _FACTORS:
                maker = graph.producer(atom, "transpose")
                turned = maker is not None and _turns_matrices(maker)
                found.add(maker.invars[0] if maker is not None and turned else atom)
    for atom, name in names.items():
        users = graph.users.get(atom, ()) if name in ("scores", "context") else ()
        if users and all(names.get(v) != name for eqn in users for v in eqn.outvars):
            found.add(atom)
        if name == _ROTATED:
            found.add(atom)
    return found


def _turns_matrices(eqn: Eqn) -> bool:
    """Return whether a transposition exchanges the last two axes alone."""
    *rest, row, column = eqn.params["permutation"]
    count = len(rest)
    return rest == list(range(count)) and (row, column) == (count + 1, count)


def _lstm(eqn: Eqn, graph: Graph) -> Iterator[tuple[Atom, str]]:
    """The gates of `c = f * c + i * g` and `h = o * tanh(c)`."""
    products = [graph.producer(a, "mul") for a in eqn.invars]
    if None in products:
        return
    kept = added = None
    for product in products:
        if product is None:
            return
        makers = [graph.producer(a) for a in product.invars]
        names = {m.primitive.name if m else "" for m in makers}
        if names == {"logistic", ""}:
            kept = product
        elif names == {"logistic", "tanh"}:
            added = product
    if kept is None or added is None:
        return
    yield from _masked(eqn.outvars[0], "c", graph)
    yield added.outvars[0], "update"
    for a in kept.invars:
        gate = graph.producer(a, "logistic")
        yield (a, "c") if gate is None else (_gate(gate, graph), "f")
        if gate is not None:
            yield from _summands(gate, "f", graph)
    for a in added.invars:
        gate = graph.producer(a)
        if gate is not None:
            whole = graph.producer(gate.invars[0], "split")
            if whole is not None:
                yield from _sums(whole.invars[0], graph)
            name = "i" if gate.primitive.name == "logistic" else "g"
            yield _gate(gate, graph), name
            yield from _summands(gate, name, graph)
    for last in _users(graph, eqn.outvars[0], "tanh"):
        for product in _users(graph, last.outvars[0], "mul"):
            yield from _masked(product.outvars[0], "h", graph)
            for a in product.invars:
                if (gate := graph.producer(a, "logistic")) is not None:
                    yield _gate(gate, graph), "o"
                    yield from _summands(gate, "o", graph)


# The part of a field for one gate: `*` stands for the name of the field.
PART = "*_"


def _summands(gate: Eqn, name: str, graph: Graph) -> Iterator[tuple[Atom, str]]:
    """The summands of a gate computed alone: `x_i`, `h_i` and parts of parameters."""
    pending = [gate.invars[0]]
    while pending:
        atom = _source(graph, pending.pop())
        total = graph.producer(atom, "add")
        product = graph.producer(atom, "conv_general_dilated", "dot_general")
        if total is not None:
            pending += total.invars
        elif product is not None:
            given, factor = product.invars
            if graph.producer(factor, "split") is not None:
                yield atom, f"{'h' if _is_state(given, graph) else 'x'}_{name}"
                yield factor, f"{PART}{name}"
        elif graph.producer(atom, "split") is not None:
            yield atom, f"{PART}{name}"


def _is_state(atom: Atom, graph: Graph) -> bool:
    """Return whether an array has the first result's shape, like a cell's state."""
    results = graph.jaxpr.outvars[:1]
    return is_var(atom) and any(atom.aval.shape == r.aval.shape for r in results)


def _gate(eqn: Eqn, graph: Graph) -> Atom:
    """The value named as a gate: a part of all, or of one alone."""
    parted = graph.producer(eqn.invars[0], "split", "slice") is not None
    return eqn.invars[0] if parted else eqn.outvars[0]


def _gru(eqn: Eqn, graph: Graph) -> Iterator[tuple[Atom, str]]:
    """The gates of `h = update * h + (1 - update) * candidate`."""
    products = [graph.producer(a, "mul") for a in eqn.invars]
    kept = added = None
    for product in products:
        if product is None:
            return
        makers = {m.primitive.name for a in product.invars if (m := graph.producer(a)) is not None}
        if makers == {"logistic"}:
            kept = product
        elif makers == {"sub", "tanh"}:
            added = product
    if kept is None or added is None:
        return
    gate = next(a for a in kept.invars if graph.producer(a, "logistic") is not None)
    difference = next(e for a in added.invars if (e := graph.producer(a, "sub")) is not None)
    candidate = next(a for a in added.invars if graph.producer(a, "tanh") is not None)
    if difference.invars[1] is not gate:
        return
    yield gate, "update"
    yield candidate, "candidate"
    yield from _masked(eqn.outvars[0], "h", graph)
    yield from ((a, "h") for a in kept.invars if a is not gate)
    for name, made in (("update", graph.producers[gate]), ("", graph.producers[candidate])):
        total = graph.producer(made.invars[0], "add")
        for a in () if total is None else total.invars:
            yield from _part(a, name or "candidate", graph)
            product = graph.producer(a, "mul")
            for b in product.invars if product is not None else ():
                reset = graph.producer(b, "logistic")
                if reset is None:
                    yield from _part(b, "candidate", graph)
                    continue
                yield b, "reset"
                both = graph.producer(reset.invars[0], "add")
                for part in both.invars if both is not None else ():
                    yield from _part(part, "reset", graph)


def _sums(atom: Atom, graph: Graph) -> Iterator[tuple[Atom, str]]:
    """A sum of gates and its nested sums."""
    while (eqn := graph.producer(atom, "add")) is not None:
        yield atom, "gates"
        atom = next((a for a in eqn.invars if graph.producer(a, "add") is not None), eqn.invars[0])


def _part(atom: Atom, name: str, graph: Graph) -> Iterator[tuple[Atom, str]]:
    """A gate's summand that is a product with the state or input."""
    parts = graph.producer(atom, "split")
    if parts is None:
        return
    total = parts.invars[0]
    product = graph.producer(total, "dot_general", "layer") or _product_in(total, graph)
    factor = product.invars[0] if product is not None else None
    carried = factor is not None and factor not in graph.producers
    side = "h" if factor is not None and carried and _is_updated(factor, graph) else "x"
    yield atom, f"{side}_{name}"
    yield total, f"{side}_gates"
    whole = graph.producer(total, "add")
    for a in whole.invars if whole is not None else ():
        if graph.producer(_source(graph, a), "split") is not None:
            bias = "recurrent_bias" if side == "h" else "input_bias"
            yield _source(graph, a), bias


def _product_in(total: Atom, graph: Graph) -> Eqn | None:
    """The product that a bias is added to."""
    eqn = graph.producer(total, "add")
    made = (graph.producer(a, "dot_general") for a in eqn.invars) if eqn is not None else ()
    return next(filter(None, made), None)


def _is_updated(v: Atom, graph: Graph) -> bool:
    """Return whether `v` is multiplied or chosen from, as the state before a step is."""
    return any(e.primitive.name in ("mul", "select_n") for e in graph.users.get(v, ()))


def _masked(v: Var, name: str, graph: Graph) -> Iterator[tuple[Atom, str]]:
    """A new state, and values chosen between it and the old, or a number."""
    chosen: list[tuple[Atom, str]] = []
    for eqn in graph.users.get(v, ()):
        if eqn.primitive.name == "select_n":
            others = [a for a in eqn.invars[1:] if a is not v]
            others = [a for a in others if _is_filled(graph, a) or a not in graph.producers]
            # The old state has other users too; a number, such as zeros, does not.
            state = any(len(graph.users.get(a, ())) > 1 for a in others if is_var(a))
            if others:
                chosen.append((eqn.outvars[0], name if state else "output"))
    yield v, f"{name}_new" if chosen else name
    yield from chosen


def _is_filled(graph: Graph, atom: Atom) -> bool:
    """Return whether an array holds a single number."""
    eqn = graph.producer(atom)
    return isinstance(atom, Literal) or (eqn is not None and fills(eqn))


def states(body: Jaxpr, start: int, count: int) -> dict[Atom, str]:
    """Names of a body's carried values: its arguments from `start` on."""
    variables = body.invars[start : start + count]
    names = _carried(body, start, count)
    return {variables[i]: name for i, name in names.items()}


def carried(parts: ScanParts) -> dict[int, str]:
    """Names of the carried values of a `scan`, by their roles in its body."""
    return _carried(open_jaxpr(parts.body), len(parts.consts), len(parts.init))


def initial(steps: Sequence[Eqn]) -> dict[Var, str]:
    """Names of the initial values of loops, by their roles in the loops."""
    found: dict[Var, str] = {}
    for parts in (ScanParts.of(e) for e in steps if e.primitive.name == "scan"):
        for i, name in carried(parts).items():
            if isinstance(v := parts.init[i], Var):
                found.setdefault(v, name)
    return found


def _carried(body: Jaxpr, start: int, count: int) -> dict[int, str]:
    known = roles(Graph(body))
    variables = body.invars[start : start + count]
    pairs = zip(variables, body.outvars[:count], strict=True)
    named = ((i, known.get(out) or known.get(v)) for i, (v, out) in enumerate(pairs))
    found = {i: name for i, name in named if name}
    # The state of a recurrent layer is multiplied by a matrix.
    if count == 1 and not found and _multiplied(variables[0], body):
        return {0: "h"}
    return found


def _multiplied(v: Var, body: Jaxpr) -> bool:
    return any(e.primitive.name == "dot_general" and v in e.invars for e in body.eqns)


def _layer(eqn: Eqn, graph: Graph) -> Iterator[tuple[Atom, str]]:
    """The states of a cell, by their names inside it."""
    if not isinstance(eqn, LayerCall) or not eqn.layer.arguments:
        return
    layer = eqn.layer
    for atom, v in zip(eqn.invars, layer.inputs, strict=False):
        if v in layer.arguments:
            yield atom, layer.arguments[v]
    inner = roles(Graph(graph.jaxpr.replace(eqns=layer.steps, outvars=layer.outputs)))
    names = set(layer.arguments.values())
    for v, result in zip(eqn.outvars, layer.results, strict=False):
        if (name := inner.get(result)) is not None:
            yield from _masked(v, name, graph)
        elif len(names) == 1:
            yield from _masked(v, next(iter(names)), graph)


def _scan(eqn: Eqn, graph: Graph) -> Iterator[tuple[Atom, str]]:
    """Values before and after a loop, by their names inside it."""
    parts = ScanParts.of(eqn)
    for i, name in carried(parts).items():
        if parts.init[i] in graph.producers:
            yield parts.init[i], name
        yield eqn.outvars[i], name


def _channel_gate(eqn: Eqn, graph: Graph) -> Iterator[tuple[Atom, str]]:
    """A factor per channel of an image, computed from it: squeeze and excitation."""
    for factor, image in (eqn.invars, eqn.invars[::-1]):
        gate = _source(graph, factor)
        if not is_var(gate) or not is_var(image):
            continue
        small, shape = factor.aval.shape, image.aval.shape
        kept = {i for i, n in enumerate(small) if n != 1}
        if not len(small) == len(shape) > 2 or kept != {0, len(shape) - 1} or small == shape:
            continue
        if any(small[i] != shape[i] for i in kept):
            continue
        yield gate, "gate"
        scaled = graph.producer(gate, "mul", "div")
        if scaled is not None and isinstance(_source(graph, scaled.invars[1]), Literal):
            yield scaled.invars[0], "gate"


def _rotated(eqn: Eqn, graph: Graph) -> Iterator[tuple[Atom, str]]:
    """The halves of an array in the other order, one of them negated."""
    first, *rest = eqn.invars
    negated = graph.producer(first, "neg")
    halves = negated and graph.producer(negated.invars[0], "split", "slice")
    if halves is not None and len(rest) == 1:
        other = graph.producer(rest[0], halves.primitive.name)
        if other is not None and other.invars[0] is halves.invars[0]:
            yield eqn.outvars[0], _ROTATED


_Role = Callable[[Eqn, Graph], Iterator[tuple[Atom, str]]]
_ROLES: tuple[tuple[str, _Role], ...] = (
    ("rsqrt", _normalization),
    ("sqrt", _normalization),
    ("sqrt", _length),
    ("div", _attention),
    ("add", _lstm),
    ("add", _gru),
    ("mul", _channel_gate),
    ("cos", _rotation),
    ("concatenate", _rotated),
    ("slice", _alternating),
    ("scan", _scan),
    ("layer", _layer),
)
