"""Names from untrusted files: the text parses, runs and contains nothing else."""

from __future__ import annotations

import ast
import builtins
import keyword
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import invert
from invert._entry import ArgSpec, EntryPoint, Param
from invert._private.jax import open_jaxpr
from invert.emission.emit import emit
from invert.emission.python.naming import RESERVED, Names, camel, comment, identifier, snake
from invert.emission.recovered import Recovered
from tests.emission.models import ramp, recovered, with_params

NASTY = [
    *"class def import None True match print __import__ __class__ self jnp jax eqx Array".split(),
    *"load _read params source x kernel Kernel KERNEL kernel_ kernel_2 dataclasses".split(),
    *"__call__ __init__ mro Float Any Path safe_open".split(),
    *"$0 $dim:b `x` <!-- # {x} %s a/b / // . .. a.b".split(),
    *"a:0 :0 a|b 0 1a é ﬀ 名前 🦆".split(),
    *("a b", "a\nb", "a\r\nimport os", "'", '"', '"""', "'''", "\\", "\\n", "kernel 2", "", " "),
    *('"""\nimport os\n"""', "');os.system('x", "\u202e", "\x00", "a" * 10_000),
]

names = st.one_of(
    st.sampled_from(NASTY), st.text(max_size=12), st.text(alphabet="ab/._: '\"\\", max_size=8)
)


def check_tree(source: str) -> None:
    """The text holds imports of known modules, functions and classes, and nothing private."""
    tree = ast.parse(source)
    allowed = {
        "dataclasses",
        "fnmatch",
        "json",
        "collections.abc",
        "pathlib",
        "typing",
        "zlib",
        "equinox",
        "jax",
        "jax.numpy",
        "numpy",
    }
    allowed |= {"jaxtyping", "safetensors"}
    classes = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    initializers: set[str] = set()
    for node in tree.body[1:]:
        if isinstance(node, ast.Assign):
            initializers |= {t.id for t in node.targets if isinstance(t, ast.Name)}
            text = ast.unparse(node)
            assert re.fullmatch(r"\w+ = jax\.nn\.initializers\.\w+\(\)", text)
            continue
        assert isinstance(node, (ast.Import, ast.ImportFrom, ast.ClassDef, ast.FunctionDef))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            assert all(alias.name in allowed for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module in allowed
        elif isinstance(node, ast.Name):
            assert node.id.isascii()
            # The weights lie beside the file.
            assert not node.id.startswith("__") or node.id == "__file__"
        elif isinstance(node, ast.Attribute):
            assert node.attr.isascii()
            assert not node.attr.startswith("__")
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            known = {"load", "_read", "safe_open", "kind", "array", "set", "dict", "tuple", "range"}
            known |= {"iter", "next"}
            known |= {
                "Path",
                "ValueError",
                "_fits",
                "_array",
                "_is_called",
                "read",
                "fnmatchcase",
                "crc32",
                "P",
                "any",
                "all",
                "int",
                "len",
                "zip",
                "list",
                "isinstance",
                "issubclass",
            }
            assert node.func.id in known | initializers | classes
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            assert node.value.isascii()
            assert len(node.value) < 500


def written(weights: list[str], entry_name: str, source: str) -> invert.Emission:
    """The text of a program whose parameters have these names, run and compared."""
    values = [ramp(2, 3) * (i + 1) for i in range(len(weights))]
    x = ramp(2, 3)

    def apply(*args):
        *held, x = args
        for value in held:
            x = jnp.tanh(x * value)
        return [x]

    entry = EntryPoint(
        name=entry_name,
        fn=lambda held, x: apply(*held, x),
        args=(ArgSpec("x", (2, 3), x.dtype),),
        kwargs={},
        arg_names=("x",),
        out_tree=jax.tree_util.tree_structure(0),
        params=tuple(
            Param(n, v, trainable=i % 3 > 0)
            for i, (n, v) in enumerate(zip(weights, values, strict=True))
        ),
        source=source,
    )
    jaxpr = open_jaxpr(jax.make_jaxpr(apply)(*values, x))
    found = emit(Recovered(entry, jaxpr, (), x64=False, certificate=source))
    check_tree(found.source)
    assert max(map(len, found.source.splitlines())) <= 120
    assert found.messages == ()
    model: Any = found.model
    assert np.array_equal(model(x), jax.jit(apply)(*values, x)[0])
    flags = jax.tree_util.tree_leaves(invert.trainable(model))
    assert sum(not flag for flag in flags) == (len(weights) + 2) // 3
    return found


@pytest.mark.slow
@settings(max_examples=15)
@given(st.lists(names, min_size=3, max_size=3, unique=True), names, names)
def test_the_text_is_the_program_for_any_names(weights, entry_name, source) -> None:
    written(weights, entry_name, source)


def test_every_nasty_name(tmp_path) -> None:
    found = written(list(dict.fromkeys(NASTY)), '"""', 'from \'"""\nimport os')
    invert.save(found.model, tmp_path)
    page = (tmp_path / "README.md").read_text()
    assert page.isascii()
    assert "\nimport os" not in page
    assert np.array_equal(invert.load(tmp_path)(ramp(2, 3)), found.model(ramp(2, 3)))


def test_no_class_has_the_name_of_a_field() -> None:
    """In `Mixer: Mixer`, type checkers take the second one for the field."""

    def apply(params, x):
        for scope in ("Mixer", "Gate"):
            with jax.named_scope(scope):
                x = jnp.tanh(x * params[scope]["w"]) * params[scope]["b"]
        return jnp.cumsum(x)

    params = {scope: {"w": ramp(3), "b": ramp(3)} for scope in ("Mixer", "Gate")}
    params["Gate"]["w"] = ramp(1)
    source = recovered(with_params(apply, params, ramp(2, 3))).source
    fields = re.findall(r"^    (\w+): (\w+)$", source, re.M)
    assert {"Mixer", "Gate"} <= {name for name, _ in fields}
    assert all(name != kind for name, kind in fields)


def test_scopes_of_any_name() -> None:
    scopes = ["class", "a b'\"", "名前", "dot_general", "__import__"]

    def apply(params, x):
        for scope in scopes:
            with jax.named_scope(scope):
                x = jnp.tanh(x @ params[scope]["w"])
        return x

    params = {scope: {"w": ramp(3, 3) + i} for i, scope in enumerate(scopes)}
    module = recovered(with_params(apply, params, ramp(2, 3)))
    check_tree(module.source)
    assert np.array_equal(module.model(ramp(2, 3)), module(ramp(2, 3)))


@given(st.text())
def test_identifiers(text: str) -> None:
    for make in (identifier, snake, camel):
        found = make(text)
        assert found.isidentifier()
        assert found.isascii()
        assert not keyword.iskeyword(found)
        assert not hasattr(builtins, found)
        assert found not in RESERVED
        assert not found.startswith("__")
    said = comment(text)
    assert said.isascii()
    assert said.isprintable()
    assert not set(said) & set("\"'\\`")


@given(st.lists(st.sampled_from(["a", "b", "a_2", "a_3", "b_"]), max_size=20))
def test_equal_names_get_different_identifiers(wanted: list[str]) -> None:
    taken = Names()
    found = [taken.new(w) for w in wanted]
    assert len(set(found)) == len(found)
