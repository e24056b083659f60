"""The rules of `docs/architecture.md` that a program can check, found with `ast`."""

from __future__ import annotations

import ast
import functools
import importlib
import re
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

import invert
from invert import InvertError, _errors, _user_cache

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "invert"
SOURCES = sorted(PACKAGE.rglob("*.py"))

# Modules that move or vanish between releases.
PRIVATE = (
    "jax._src",
    "jax.extend.mlir",
    "jaxlib",
    "tensorflow.core",
    "tensorflow.compiler",
    "tensorflow.python",
)

PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")

# Folders and files of the package in the order of the page, top floor first. A module may import
# from its own room and from those below.
ROOMS = re.findall(r"^\| `invert/([^`]+)` \|", PAGE, re.MULTILINE)


def _module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _room(path: Path) -> str:
    inside = path.relative_to(PACKAGE)
    return inside.name if inside.parent == Path() else f"{inside.parent.as_posix()}/"


ROOM_OF = {_module_name(path): _room(path) for path in SOURCES}


def imports(tree: ast.AST, package: str) -> Iterator[tuple[int, str]]:
    """Yield `(line, absolute module)` for every import in `tree`, at any level.

    `from a import b` counts as `a.b`: `b` may be a module, and an attribute does no harm, since
    every question asked here is about prefixes.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")
                kept = parents[: len(parents) - (node.level - 1)]
                base = ".".join([*kept, base] if base else kept)
            for alias in node.names:
                yield node.lineno, f"{base}.{alias.name}"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute | ast.Name):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
            if name in ("import_module", "__import__"):
                for text in _texts((*node.args[:1], *(k.value for k in node.keywords))):
                    yield node.lineno, text


def _texts(nodes: Iterable[ast.expr]) -> Iterator[str]:
    """The strings among some arguments; of an f-string, its beginning."""
    for node in nodes:
        first = node.values[0] if isinstance(node, ast.JoinedStr) and node.values else node
        if isinstance(first, ast.Constant) and isinstance(first.value, str):
            yield first.value.rstrip(".")


# Underscored names that the standard library documents, or that have no public counterpart.
OPEN = ("_make", "_replace", "_fields", "_asdict", "_actions", "_SubParsersAction")


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__") and name not in OPEN


def private_uses(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield `(line, name)` for each private attribute that `tree` reads, or names in a string."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            path = ast.unparse(node)
            if _is_private(node.attr):
                yield node.lineno, node.attr
            elif re.fullmatch(r"(tf|tensorflow)\.(python|core|compiler)", path):
                yield node.lineno, path
        elif isinstance(node, ast.ImportFrom) and not _within(node.module or "", "invert"):
            for alias in node.names:
                if any(map(_is_private, (*(node.module or "").split("."), alias.name))):
                    yield node.lineno, f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute | ast.Name):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
            if name in ("getattr", "hasattr", "setattr", "delattr", "attrgetter", "methodcaller"):
                for text in _texts(node.args):
                    yield from (
                        (node.lineno, part) for part in text.split(".") if _is_private(part)
                    )
        elif isinstance(node, ast.Constant) and _names_private_module(node.value):
            yield node.lineno, node.value


def _names_private_module(text: object) -> bool:
    """Whether a constant is a private module, such as a key of `sys.modules`."""
    if not isinstance(text, str) or not re.fullmatch(r"[\w.]+", text):
        return False
    return text != "jaxlib" and any(_within(text, p) for p in PRIVATE)


def private_names(tree: ast.AST) -> Iterator[str]:
    """The names with a leading underscore that `tree` defines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.id if isinstance(node, ast.Name) else node.attr


def _is_told(attempt: ast.Try, handler: ast.ExceptHandler) -> bool:
    """Whether bugs pass a handler: it raises them again, or they become defects before."""
    (first, *others) = attempt.body
    managers = map(ast.unparse, first.items) if isinstance(first, ast.With) else ()
    if not others and "only_refusals()" in managers:
        return True
    return any(isinstance(n, ast.Raise) and n.exc is None for n in ast.walk(handler))


def untold_handlers(tree: ast.AST, scope: str = "") -> Iterator[tuple[str, set[str]]]:
    """Yield `(function, exceptions)` for each handler that bugs do not pass."""
    for node in ast.iter_child_nodes(tree):
        for handler in node.handlers if isinstance(node, ast.Try) else ():
            names = {"BaseException"} if handler.type is None else _names_in(handler.type)
            if not _is_told(node, handler):
                yield scope, names
        yield from untold_handlers(node, node.name if isinstance(node, ast.FunctionDef) else scope)


def _names_in(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def tuples(tree: ast.AST) -> dict[str, set[str]]:
    """The names in each tuple of a module, such as a list of exceptions."""
    return {
        target.id: _names_in(node.value)
        for node in ast.iter_child_nodes(tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


class Source:
    """The facts about a file that the rules need; all trees together would take much memory."""

    def __init__(self, path: Path):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        name = _module_name(path)
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        self.imports = list(imports(tree, package))
        self.docstring = ast.get_docstring(tree)
        self.private = list(private_uses(tree))
        self.handlers, self.tuples = list(untold_handlers(tree)), tuples(tree)
        self.defines = {name for name in private_names(tree) if _is_private(name)}
        every = list(ast.walk(tree))
        found = [node for node in every if isinstance(node, ast.Import | ast.ImportFrom)]
        self.relative = [n.lineno for n in found if isinstance(n, ast.ImportFrom) and n.level]
        later = {
            id(node)
            for scope in every
            if isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef)
            or (isinstance(scope, ast.If) and ast.unparse(scope.test).endswith("TYPE_CHECKING"))
            for node in ast.walk(scope)
            if isinstance(node, ast.Import | ast.ImportFrom)
        }
        self.early = [
            (node.lineno, module)
            for node in found
            if id(node) not in later
            for _, module in imports(node, package)
        ]
        self.calls = [
            (node.lineno, node.func.id, {k.arg for k in node.keywords}, len(node.args))
            for node in every
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        ]


_source = functools.cache(Source)


def _imports_of(path: Path) -> list[tuple[int, str]]:
    return _source(path).imports


def _within(module: str, prefix: str) -> bool:
    return module == prefix or module.startswith(prefix + ".")


def _room_of(module: str) -> str:
    """The room of a module, or of the module that defines a name."""
    while module not in ROOM_OF:
        module = module.rpartition(".")[0]
    return ROOM_OF[module]


def _relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_import_finder_sees_every_form() -> None:
    code = (
        "import jax._src.core\n"
        "from jax._src import core\n"
        "from ..emit import source\n"
        "from . import _near\n"
        "def f():\n"
        "    import tensorflow as tf\n"
        "    importlib.import_module('tensorflow.python.eager')\n"
        "    load(import_module(name='jaxlib.mlir'), __import__(f'jaxlib.{name}'))\n"
    )
    found = [module for _, module in imports(ast.parse(code), "invert.primitives")]
    assert sorted(found) == [
        "invert.emit.source",
        "invert.primitives._near",
        "jax._src.core",
        "jax._src.core",
        "jaxlib",
        "jaxlib.mlir",
        "tensorflow",
        "tensorflow.python.eager",
    ]


def _upward_imports(room: str, found: list[tuple[int, str]]) -> list[str]:
    wrong = []
    for line, module in found:
        if not _within(module, "invert"):
            continue
        target = _room_of(module)
        if target != room and ROOMS.index(target) < ROOMS.index(room):
            wrong.append(f"line {line}: invert/{room} imports {module}, of invert/{target}")
    return wrong


def test_upward_imports_are_found() -> None:
    code = (
        "from invert import _api\n"
        "from ..patterns import scan\n"
        "def f():\n"
        "    from invert.frontends.graphdef import read\n"
        "from invert.tf.ops.node import Node\n"
        "from invert.primitives.tf import nn\n"
    )
    found = list(imports(ast.parse(code), "invert.primitives"))
    wrong = _upward_imports("primitives/tf/", found)
    assert [text.split(":")[0] for text in wrong] == ["line 1", "line 2", "line 4"]


def _imported(path: Path) -> set[Path]:
    """The files of the package that a file imports."""
    files = {_module_name(p): p for p in SOURCES}
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = [m for _, m in imports(tree, _module_name(path.parent / "__init__.py"))]
    return {files[m] for name in names for m in (name, name.rpartition(".")[0]) if m in files}


def test_stored_programs_do_not_depend_on_the_folders_that_their_key_leaves_out() -> None:
    unused = [PACKAGE / name for name in _user_cache.UNUSED]
    assert all(folder.is_dir() for folder in unused)
    # What `import invert` names is imported on first use.
    public = {PACKAGE / "__init__.py", PACKAGE / "_public.py"}
    stored = PACKAGE / "ir" / "stored.py"
    pending = [path for path in SOURCES if stored in _imported(path)]
    assert len(pending) > 3
    seen = set(pending)
    while pending:
        path = pending.pop()
        assert not any(path.is_relative_to(folder) for folder in unused), path
        new = _imported(path) - seen - public
        seen |= new
        pending += new


def test_the_page_names_every_room_once() -> None:
    assert sorted(ROOMS) == sorted(set(ROOM_OF.values()))


@pytest.mark.parametrize("path", SOURCES, ids=_relative)
def test_imports_point_downwards(path: Path) -> None:
    wrong = _upward_imports(_room(path), _imports_of(path))
    assert not wrong, f"{_relative(path)}:\n" + "\n".join(wrong)


@pytest.mark.parametrize("path", SOURCES, ids=_relative)
def test_imports_are_absolute(path: Path) -> None:
    wrong = _source(path).relative
    assert not wrong, f"{_relative(path)}: lines {wrong}"


def test_underscores_mark_only_package_private_names() -> None:
    # Whatever lies in a folder is private already, unless the package re-exports it.
    inside = [path.relative_to(PACKAGE) for path in SOURCES if path.parent != PACKAGE]
    wrong = [p.as_posix() for p in inside if p.name.startswith("_") and p.name != "__init__.py"]
    assert not wrong


@pytest.mark.parametrize("path", SOURCES, ids=_relative)
def test_private_modules_in_one_room(path: Path) -> None:
    if _room(path) == "_private/":
        pytest.skip("the one place for them")
    wrong = [
        f"{_relative(path)}:{line}: {module}"
        for line, module in _imports_of(path)
        if any(_within(module, p) for p in PRIVATE)
    ]
    assert not wrong, "move these to invert/_private/:\n" + "\n".join(wrong)


@functools.cache
def _own_names() -> frozenset[str]:
    outside = [path for path in SOURCES if _room(path) != "_private/"]
    return frozenset(name for path in outside for name in _source(path).defines)


@pytest.mark.parametrize("path", SOURCES, ids=_relative)
def test_private_attributes_belong_to_the_package(path: Path) -> None:
    if _room(path) == "_private/":
        pytest.skip("the one place for those of others")
    wrong = [f"{path}:{line}: {n}" for line, n in _source(path).private if n not in _own_names()]
    assert not wrong, "move these to invert/_private/:\n" + "\n".join(wrong)


def test_private_uses_are_found() -> None:
    code = (
        "import jax\n"
        "from jax.random import _private\n"
        "jax._src.core.Jaxpr\n"
        "getattr(dtype, '_impl')\n"
        "operator.attrgetter('aval._size')\n"
        "tf.python.eager\n"
        "sys.modules['jaxlib.mlir']\n"
        "row._replace(x=1).__class__\n"
    )
    assert [name for _, name in sorted(private_uses(ast.parse(code)))] == [
        "jax.random._private",
        "_src",
        "_impl",
        "_size",
        "tf.python",
        "jaxlib.mlir",
    ]


def test_private_room_exports_names_only() -> None:
    # A module of others that it handed on would open all of it.
    imported = {
        module for path in SOURCES if _room(path) != "_private/" for _, module in _imports_of(path)
    }
    found = [m for m in imported if _within(m, "invert._private") and m not in ROOM_OF]
    values = {
        m: getattr(importlib.import_module(m.rpartition(".")[0]), m.rpartition(".")[2])
        for m in found
    }
    # MLIR's bindings are modules of classes.
    wrong = [m for m, value in values.items() if isinstance(value, ModuleType)]
    assert sorted(wrong) == ["invert._private.mlir.ir", "invert._private.mlir.stablehlo_dialect"]


def test_private_room_uses_private_modules() -> None:
    # Guards the test above: were PRIVATE misspelled, it would pass on anything.
    room = (PACKAGE / "_private").glob("*.py")
    used = [module for path in room for _, module in _imports_of(path)]
    assert any(_within(m, "jax._src") for m in used)
    assert any(_within(m, "jaxlib") for m in used)


@pytest.mark.parametrize("path", SOURCES, ids=_relative)
def test_tensorflow_only_in_front_ends_and_never_at_import(path: Path) -> None:
    early = [
        f"{_relative(path)}:{line}"
        for line, module in _source(path).early
        if _within(module, "tensorflow")
    ]
    assert not early, f"import TensorFlow inside the function that needs it: {early}"
    if any(_within(module, "tensorflow") for _, module in _imports_of(path)):
        allowed = _room(path) in ("frontends/", "_private/") or "tf" in path.parts
        assert allowed, f"{_relative(path)}: only front ends and tf/ know TensorFlow"


@pytest.mark.parametrize("path", SOURCES, ids=_relative)
def test_no_code_execution_from_files(path: Path) -> None:
    if path == PACKAGE / "emission" / "python" / "load.py":
        pytest.skip("compiles syntax trees that the package has built itself")
    calls = [
        f"{_relative(path)}:{line}: {name}"
        for line, name, *_ in _source(path).calls
        if name in ("eval", "exec")
    ]
    pickles = [m for _, m in _imports_of(path) if m.split(".")[0] in ("pickle", "marshal", "dill")]
    assert not calls
    assert not pickles


# Errors without a remedy that fits most of their causes.
_NEED_REMEDY = {
    name
    for name, value in vars(_errors).items()
    if isinstance(value, type) and issubclass(value, InvertError) and not value.remedy
} - {"InvertError"} | {"Problem"}


def test_every_error_says_what_to_do() -> None:
    assert {"SignatureError", "MeshError", "PatternError", "SaveError"} <= _NEED_REMEDY
    wrong = [
        f"{_relative(path)}:{line}: {name}"
        for path in SOURCES
        for line, name, keywords, count in _source(path).calls
        if name in _NEED_REMEDY
        and "remedy" not in keywords
        and not (name == "Problem" and count == 4)
    ]
    assert not wrong, "give these a `remedy`:\n" + "\n".join(wrong)


@pytest.mark.parametrize("path", SOURCES, ids=_relative)
def test_every_module_has_a_docstring(path: Path) -> None:
    assert _source(path).docstring, f"{_relative(path)} has no docstring"


def test_front_face_only_re_exports() -> None:
    tree = ast.parse((PACKAGE / "_public.py").read_text(encoding="utf-8"))
    body = [n for n in tree.body if not (isinstance(n, ast.Expr) and n is tree.body[0])]
    assert all(isinstance(n, ast.Import | ast.ImportFrom | ast.Assign) for n in body)


def test_every_public_name_is_in_the_docs() -> None:
    tree = ast.parse((PACKAGE / "_public.py").read_text(encoding="utf-8"))
    public = {
        alias.asname or alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if not (alias.asname or alias.name).startswith("_")
    } - {"annotations"}
    pages = [(ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("api.md", "config.md")]
    documented = re.findall(r"^::: invert\.(\w+)$", "\n".join(pages), re.MULTILINE)
    assert sorted(public) == sorted(documented)


@pytest.mark.parametrize("path", sorted((ROOT / "tests").rglob("*.py")), ids=_relative)
def test_tests_import_public_names_from_the_package(path: Path) -> None:
    wrong = [
        f"{_relative(path)}:{node.lineno}: from invert import {alias.name}"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and _within(node.module or "", "invert")
        for alias in node.names
        if node.module != "invert" and f"{node.module}.{alias.name}" in _public_origins()
    ]
    assert not wrong, "\n".join(wrong)


@functools.cache
def _public_origins() -> frozenset[str]:
    """The public names by defining module, such as `invert._config.Config`."""
    tree = ast.parse((PACKAGE / "_public.py").read_text(encoding="utf-8"))
    names = [a.name for n in tree.body if isinstance(n, ast.ImportFrom) for a in n.names]
    values = (getattr(invert, name) for name in names)
    return frozenset(f"{value.__module__}.{value.__qualname__}" for value in values)


# Exceptions that bugs of the package raise. Only a compiler or a runtime raises `RuntimeError`.
_OF_BUGS = frozenset(
    "AssertionError AttributeError BaseException Exception IndexError KeyError LookupError".split()
)
# Handlers of these where no code of the package runs, or where a bug is reported, with the reason.
_TOLD = {
    "_errors.py: optional_step": "warns of a defect",
    "_private/tensorflow.py: tf_gradient_function": "a lookup in TensorFlow's registry",
    "cli/__init__.py: main": "reports everything",
    "cli/terminal.py: without_logs": "a stream of the caller",
    "frontends/hdf5_worker.py: serve": "h5py reads a file",
    "frontends/exported.py: _vjp": "runs the author's code, and reports what it raises",
    "frontends/exported.py: _read": "JAX reads bytes",
    "stablehlo/author_rules.py: of": "traces the author's code, and reports what it raises",
    "frontends/keras_archive.py: _errors_of_keras": "Keras reads and runs a model",
    "frontends/keras_archive.py: _config_of": "zipfile and json read a file",
    "frontends/keras_model.py: _inputs_of": "a property of Keras",
    "frontends/load_check.py: checkpoint_problems": "TensorFlow reads a file",
    "frontends/run_saved_model.py: _loaded": "TensorFlow reads a file",
    "frontends/tf_function.py: _source_line": "a lookup in TensorFlow's graph",
    "ir/encoding.py: decoded": "reads text that others may have written",
    "modules/save.py: load_saved": "runs the code of a saved package",
    "tf/gradients/read.py: read_gradient": "a lookup in TensorFlow's graph",
}


def _hiding(handlers: Iterable[tuple[str, set[str]]], lists: dict[str, set[str]]) -> Iterator[str]:
    """The functions whose handlers catch what bugs raise, by name or in a tuple of exceptions."""
    for function, names in handlers:
        pending, every = [*names], set[str]()
        while pending:
            if (name := pending.pop()) not in every:
                every.add(name)
                pending += lists.get(name, ())
        if every & _OF_BUGS:
            yield function


def test_bugs_travel() -> None:
    lists = {name: found for path in SOURCES for name, found in _source(path).tuples.items()}
    found = {
        f"{path.relative_to(PACKAGE).as_posix()}: {function}"
        for path in SOURCES
        for function in _hiding(_source(path).handlers, lists)
    }
    wrong = sorted(found - set(_TOLD))
    assert not wrong, f"try only_refusals(), or a smaller body and other exceptions: {wrong}"
    assert not set(_TOLD) - found


def test_hiding_handlers_are_found() -> None:
    code = (
        "MORE = (KeyError,)\n"
        "FAULTS = (ValueError, *MORE)\n"
        "def hidden():\n"
        "    try: f()\n"
        "    except FAULTS: pass\n"
        "def bare():\n"
        "    try: f()\n"
        "    except: pass\n"
        "def told():\n"
        "    try:\n"
        "        with only_refusals(): f()\n"
        "    except Exception: pass\n"
        "def again():\n"
        "    try: f()\n"
        "    except KeyError: raise\n"
        "def refused():\n"
        "    try: f()\n"
        "    except ValueError: pass\n"
    )
    tree = ast.parse(code)
    assert list(_hiding(untold_handlers(tree), tuples(tree))) == ["hidden", "bare"]


# Paths that exist on one machine only, and files beside the checkout. Written as classes of
# characters so that this file does not match itself.
_NOT_OURS = re.compile(
    r"(?<![\w.:/])/(?:work|root|home|opt|Users)/\w|\.\./shared|\bissues[ ]show\b"
)


def _tracked() -> list[Path]:
    """Files that git does not ignore; without git, all source files."""
    try:
        listed = subprocess.run(
            ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
            cwd=ROOT,
            capture_output=True,
            check=True,
        ).stdout.decode()
        files = [ROOT / name for name in listed.split("\0") if name]
    except (OSError, subprocess.CalledProcessError):
        suffixes = (".py", ".md", ".toml", ".yml")
        files = [p for p in ROOT.rglob("*") if p.suffix in suffixes and ".venv" not in p.parts]
    return [p for p in files if p.is_file()]


def test_no_path_of_one_machine() -> None:
    assert _NOT_OURS.search("see " + "/".join(["", "home", "someone", "x"]))
    found = []
    for path in _tracked():
        data = path.read_bytes()
        if b"\0" in data:  # fixtures in binary form
            continue
        for number, line in enumerate(data.decode("utf-8", "replace").splitlines(), 1):
            if _NOT_OURS.search(line):
                found.append(f"{_relative(path)}:{number}: {line.strip()[:100]}")
    assert not found, "\n".join(found)


def test_files_stay_short() -> None:
    # Topic decides, not length; one that outgrows this usually holds two topics.
    limit = 1000
    long = {
        _relative(p): n for p in SOURCES if (n := len(p.read_text("utf-8").splitlines())) > limit
    }
    assert not long
