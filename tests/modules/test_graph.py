"""The picture of a program: its boxes and the edges between them."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as xml

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import invert

SVG = "{http://www.w3.org/2000/svg}"


def _network(names=("first", "second")):
    draw = np.random.default_rng(0)
    params = {n: {"kernel": draw.normal(size=(4, 4)), "bias": draw.normal(size=4)} for n in names}
    params = jax.tree_util.tree_map(jnp.float32, params)

    def layer(name, x):
        with jax.named_scope(name):
            return jax.nn.relu(x @ params[name]["kernel"] + params[name]["bias"])

    def network(x):
        x = x + layer(names[0], x)
        return {"y": x + layer(names[1], x), "z": jnp.cumsum(x)}

    return invert.from_exported(jax.export.export(jax.jit(network))(jnp.ones((2, 4))))


def _boxes(element):
    """The boxes of a picture by first line: kind, other lines, numbers of edges."""
    found = {}
    for g in element.iter(f"{SVG}g"):
        lines = [t.text for t in g.findall(f"{SVG}text")]
        if lines:
            found[lines[0]] = (g.get("class"), lines[1:], g)
    return found


def _edges(element):
    """The edges directly inside a box, as pairs of first lines."""
    inside = element.find(f"{SVG}g[@class='inside']")
    names = [g.find(f"{SVG}text").text for g in inside.findall(f"{SVG}g")]
    names += ["bottom", "top"]  # -2 and -1
    edges = [json.loads(p.get("data-edge")) for p in inside.findall(f"{SVG}path")]
    return {(names[s], names[t]) for s, t, _ in edges}


def test_boxes_are_layers_and_edges_are_data_flow() -> None:
    root = xml.fromstring(_network().graph().svg)
    boxes = _boxes(root)
    assert boxes["first"][0] == "layer"
    assert boxes["first"][1] == ["float32[2, 4]", "dot_general · add · relu"]
    assert boxes["x"][:2] == ("end", ["float32[2, 4]"])
    edges = _edges(boxes["network"][2])
    assert edges == {
        ("x", "first"),
        ("x", "add · cumsum"),
        ("first", "add · cumsum"),
        ("add · cumsum", "second"),
        ("add · cumsum", "add"),
        ("second", "add"),
        ("add", "result['y']"),
        ("add · cumsum", "result['z']"),
    }


def test_boxes_do_not_overlap() -> None:
    root = xml.fromstring(_network().graph().svg)
    inside = _boxes(root)["network"][2].find(f"{SVG}g[@class='inside']")
    places = []
    for g in inside.findall(f"{SVG}g"):
        x, y = map(float, re.findall(r"[\d.]+", g.get("transform")))
        rect = g.find(f"{SVG}rect")
        places.append((x, y, x + float(rect.get("width")), y + float(rect.get("height"))))
    for i, a in enumerate(places):
        for b in places[i + 1 :]:
            assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]
    width = float(root.get("width"))
    assert all(p[0] >= 0 and p[2] <= width for p in places)


def test_depth_limits_the_unfolded_layers() -> None:
    module = _network()
    folded = _boxes(xml.fromstring(module.graph(depth=0).svg))["network"]
    assert folded[0] == "layer foldable closed"
    unfolded = _boxes(xml.fromstring(module.graph().svg))["network"]
    assert unfolded[0] == "layer foldable open"


def test_a_list_of_layers_is_one_box() -> None:
    params = [{"kernel": jnp.full((4, 4), 0.1 * i)} for i in range(3)]

    def network(x):
        for i, p in enumerate(params):
            with jax.named_scope(f"block_{i}"):
                x = jnp.tanh(x @ p["kernel"])
        return x

    module = invert.from_exported(jax.export.export(jax.jit(network))(jnp.ones((2, 4))))
    boxes = _boxes(xml.fromstring(module.graph().svg))
    assert boxes["blocks × 3"][1] == ["float32[2, 4]", "dot_general · tanh"]


def test_parameters_are_counted_without_constants() -> None:
    import tests.frontends.test_torch_stablehlo as torch

    module = invert.from_stablehlo(torch.MLP, names=torch.NAMES, params=torch.state_dict())
    boxes = _boxes(xml.fromstring(module.graph().svg))
    assert boxes["fc1"][1][:2] == ["float32[2, 8]", "40 parameters"]
    assert boxes["main"][1] == ["float32[2, 3]", "67 parameters"]


def test_names_of_a_file_are_text() -> None:
    text = 'func.func public @main(%arg0: tensor<2xf32> {jax.arg_info = "<b>x</b>\\07"}) -> '
    text += "tensor<2xf32> {\n return %arg0 : tensor<2xf32>\n}"
    svg = invert.from_stablehlo(text).graph().svg
    xml.fromstring(svg)
    assert "<b>" not in svg and "\x07" not in svg


def test_one_of_several_functions() -> None:
    module = _network()
    assert module.graph("network").svg == module.graph().svg
    with pytest.raises(invert.SignatureError, match="not 'other'"):
        module.graph("other")


def test_a_picture_is_saved(tmp_path) -> None:
    graph = _network().graph()
    graph.save(tmp_path / "net.svg")
    assert (tmp_path / "net.svg").read_text() == graph.svg == graph._repr_html_()
    assert len(repr(graph)) < 80
    assert np.isfinite([float(n) for n in re.findall(r' d="M([\d.]+)', graph.svg)]).all()
