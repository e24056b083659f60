"""The last functions of an emitted file: `load` reads weights, `trainable` says which train."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterable, Sequence

from invert.emission.python import syntax

# Tensors are named by the paths of their fields. Arrays of dtypes that the format lacks are bytes,
# with the dtype in the metadata. Checksums are there, too: a program that writes the file anew
# writes other metadata, so they only ever speak of the bytes next to them. Files are memory-mapped,
# and arrays are read one at a time, so at most one is in memory twice; on a mesh, each device reads
# only its part of an array.
_LOADER = '''
def load(
    path: str | Path | None = None,
    mesh: jax.sharding.Mesh | None = None,
    shardings: dict[str, jax.sharding.PartitionSpec] = SPECS,
) -> Model:
    """The module with the weights of a safetensors file, or of the shards that its index names.

    By default the file is `weights.safetensors` beside this one. On a mesh of devices, an array is
    cut as the first of `shardings` says whose pattern fits its name, such as `"*.kernel"`, and each
    device reads its own part.

    **Raises:** `ValueError` where a file is damaged, or holds other arrays than the module has, and
        where a mesh does not divide an array.
    """
    path = Path(__file__).with_name("weights.safetensors") if path is None else Path(path)
    index = path.with_name(path.name + ".index.json")
    arrays: dict[str, Any] = {}
    saves: set[str] = set()
    try:
        places = dict(json.loads(index.read_text())["weight_map"]) if index.exists() else {}
        for shard in set(places.values()) or {path.name}:
            file = safe_open(path.with_name(shard), framework="numpy")
            notes = file.metadata() or {}
            saves |= {note for key, note in notes.items() if key == "crc32 of all"}
            for name in [*file.keys()]:
                if name in arrays:
                    raise ValueError(f"{name} is in several files")
                with jax.enable_x64(True):  # to compare types before any is narrowed
                    array = _array(path.with_name(shard), name, notes, mesh, shardings)
                # JAX copies in the background, and what it copies from counts as memory until then.
                arrays[name] = jax.block_until_ready(array)
        if len(saves) > 1:
            raise ValueError("its files are of different saves")
    except (LookupError, OSError, RuntimeError, SafetensorError, TypeError, ValueError) as error:
        raise ValueError(f"cannot read the weights {path}: {error}") from error
    like = eqx.filter_eval_shape(Model, key=jax.random.key(0))
    leaves, tree = jax.tree_util.tree_flatten_with_path(like)
    names = [jax.tree_util.keystr(p, simple=True, separator=".") for p, _ in leaves]
    kinds = dict(zip(names, [x for _, x in leaves], strict=True))
    wrong = [f"{name} is missing" for name in kinds if name not in arrays]
    for name, array in arrays.items():
        if name not in kinds:
            wrong.append(f"{name} is not in the module")
        elif not _fits(array, kind := kinds[name]):
            wrong.append(f"{name} is {array.dtype}{array.shape}, not {kind.dtype}{kind.shape}")
        elif jax.dtypes.canonicalize_dtype(array.dtype) != array.dtype:
            wrong.append(f"{name} is {array.dtype}, which needs jax_enable_x64")
    if wrong:
        raise ValueError(f"{path} does not fit the module: " + "; ".join(wrong))
    return jax.tree_util.tree_unflatten(tree, [arrays[name] for name in names])


def _array(path: Path, name: str, notes: Any, mesh: Any, shardings: dict[str, Any]) -> Any:
    """An array of a file, or on a mesh the parts that the devices of this process have."""
    # Opened for each array, since what is mapped of a file counts as memory until it is closed.
    file = safe_open(path, framework="numpy")
    part = file.get_slice(name)
    kind, stored = notes.get(name), tuple(part.get_shape())
    shape = stored if kind is None else stored[:-1]

    def read(index: Any = None) -> Any:
        array = part[index] if shape and index is not None else file.get_tensor(name)
        checksum = notes.get(f"crc32 {name}")
        if checksum and array.shape == stored:  # part of an array has no checksum
            content = array.reshape(-1).view("uint8")
            if f"{crc32(content):08x}" != checksum:
                raise ValueError(f"the bytes of {name} in {path.name} are damaged")
        return array if kind is None else array.view(kind)[..., 0]

    if mesh is None:
        return jnp.asarray(read())
    patterns = [p for p in shardings if _is_called(name, p.replace("/", "."))]
    spec = shardings[patterns[0]] if patterns else jax.sharding.PartitionSpec()
    auto = jax.sharding.Mesh(mesh.devices, mesh.axis_names)
    return jax.make_array_from_callback(shape, jax.sharding.NamedSharding(auto, spec), read)


def _is_called(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern) or fnmatchcase("." + name, pattern)


def _fits(array: Any, kind: Any) -> bool:
    floats = jnp.issubdtype(array.dtype, jnp.floating) and jnp.issubdtype(kind.dtype, jnp.floating)
    return array.shape == kind.shape and (floats or array.dtype == kind.dtype)
'''

_TRAINABLE = '''
def trainable(model: Model) -> PyTree:
    """A filter for `eqx.partition`: true for the arrays that the original trains."""
    fixed = FIXED
    return jax.tree_util.tree_map_with_path(
        lambda path, _: not jax.tree_util.keystr(path).endswith(fixed), model
    )
'''

# A variable in the state has its first value in the module.
_STATE = (
    (
        """    leaves, tree = jax.tree_util.tree_flatten_with_path(like)
""",
        """    leaves, tree = jax.tree_util.tree_flatten_with_path(like, is_leaf=_is_index)
""",
    ),
    ("[x for _, x in leaves]", '[getattr(x, "init", x) for _, x in leaves]'),
    (
        """    return jax.tree_util.tree_unflatten(tree, [arrays[name] for name in names])
""",
        """    new = [_new(x, arrays[n]) for (_, x), n in zip(leaves, names, strict=True)]
    return jax.tree_util.tree_unflatten(tree, new)


def _new(like: Any, array: Any) -> Any:
    return eqx.nn.StateIndex(array) if _is_index(like) else array


def _is_index(x: Any) -> bool:
    return isinstance(x, eqx.nn.StateIndex)
""",
    ),
)


@dataclasses.dataclass(frozen=True)
class Reader:
    """The function `load` of a text, and those that it calls.

    **Arguments:**

    - `cls`: the outermost class.
    - `keyed`: whether the class is made with a key.
    - `specs`: whether the file holds the shardings of its arrays.
    """

    cls: str
    x64: bool
    stateful: bool
    keyed: bool
    specs: bool

    def definitions(self) -> list[ast.stmt]:
        """The functions."""
        text = _LOADER
        if not self.specs:
            text = text.replace(" = SPECS", " | None = None")
            text = text.replace("mesh, shardings)", "mesh, shardings or {})")
        if not self.keyed:
            text = text.replace("Model, key=jax.random.key(0)", "Model")
        for old, new in _STATE if self.stateful else ():
            text = text.replace(old, new)
        tree = ast.parse(text)
        load = tree.body[0]
        assert isinstance(load, ast.FunctionDef)
        if self.x64:
            doc, *body = load.body
            enabled = ast.withitem(syntax.call("jax.enable_x64", syntax.number(True)))
            load.body = [doc, ast.With([enabled], body, lineno=0)]
        syntax.rename(tree, {"Model": self.cls})
        return tree.body


def trainable(
    cls: str, fixed: Sequence[Sequence[str]], trained: Sequence[Sequence[str]]
) -> list[ast.stmt]:
    """The function `trainable`; empty if all arrays are trained, or none.

    **Arguments:**

    - `fixed`, `trained`: paths of the arrays that the original freezes, and that it trains.
    """
    if not fixed or not trained:
        return []
    found = _endings(fixed, trained)
    text = _TRAINABLE
    if not all(e.startswith((".", "[")) for e in found):
        path = "jax.tree_util.keystr(path)"
        text = text.replace(path, f'("{_ROOT}" + {path})')
    tree = ast.parse(text)
    syntax.rename(tree, {"Model": cls})
    endings = syntax.tuple_of([ast.Constant(e) for e in found])
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name):
            node.value = endings
    return tree.body


# The model, at the start of a path.
_ROOT = "/"


def _endings(fixed: Sequence[Sequence[str]], trained: Iterable[Sequence[str]]) -> list[str]:
    """The shortest endings that cover all paths of `fixed` and none of `trained`.

    A path that is the end of another, as `.scale` is of `.norm.scale`, begins with the model
    itself.
    """
    others = {_ending(path, i) for path in trained for i in range(len(path))}
    endings_of_all: dict[str, None] = {}
    for path in fixed:
        endings = [_ending(path, i) for i in range(len(path))]
        endings_of_all.setdefault(
            next((e for e in reversed(endings) if e not in others), _ROOT + endings[0])
        )
    return list(endings_of_all)


def _ending(path: Sequence[str], start: int) -> str:
    """The end of a path as `jax.tree_util.keystr` writes it."""
    return "".join(f"[{n}]" if n.isdigit() else f".{n}" for n in path[start:])
