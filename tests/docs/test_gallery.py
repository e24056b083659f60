"""The gallery in the documentation is what its scripts generate."""

from __future__ import annotations

import ast
import functools

import pytest

from tools import gallery

PAGE = gallery.PAGE.read_text(encoding="utf-8")

piece_of = functools.cache(gallery.piece)


@pytest.mark.parametrize("name", gallery.MODELS)
def test_the_page_shows_the_recovered_source(name: str) -> None:
    try:
        piece = piece_of(name)
    except ImportError as error:
        pytest.skip(str(error))
    assert piece.certificate.startswith("exact")
    assert gallery.section(piece) == gallery.sections(PAGE)[name], "run `make pages`"


def test_the_front_page_shows_the_transformer() -> None:
    first = piece_of("keras_transformer")
    page = gallery.FRONT.read_text(encoding="utf-8")
    assert gallery.front(page, first) == page, "run `make pages`"
    assert "class Block(eqx.Module):" in page and "class Block(layers.Layer):" in page
    assert gallery.picture(first) == gallery.PICTURE.read_text(encoding="utf-8")


def test_the_page_has_every_script_once() -> None:
    scripts = {path.stem for path in gallery.SCRIPTS.glob("*.py")}
    assert scripts == set(gallery.MODELS) == set(gallery.sections(PAGE))
    assert PAGE.count("\n## ") == len(scripts)


def test_omitted_definitions_are_mentioned() -> None:
    source = "import jax\n\n\ndef noise():\n    return 1\n\n\nclass Net:\n    pass\n"
    assert gallery.shown(source, ()) == "def noise():\n    return 1\n\n\nclass Net:\n    pass"
    cut = gallery.shown(source, ("noise",))
    assert cut.startswith("# 2 lines are left out here") and cut.endswith("class Net:\n    pass")
    ast.parse(cut)
