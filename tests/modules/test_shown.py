"""How a module is displayed in a session and a notebook, and how it is copied."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from pathlib import Path

import equinox as eqx
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import invert


def _module() -> invert.Module:
    weight = jnp.arange(12.0).reshape(3, 4)

    def net(inputs):
        return {"out": (jax.nn.relu(inputs["a"] @ weight) + inputs["b"],)}

    inputs = {"a": jnp.ones((2, 3)), "b": jnp.ones((4,))}
    return invert.from_exported(jax.export.export(jax.jit(net))(inputs))


INPUTS = {"a": np.ones((2, 3), np.float32), "b": np.ones(4, np.float32)}


def test_a_module_shows_arguments_results_certificate_and_size() -> None:
    assert repr(_module()) == (
        "<net(inputs: {'a': float32[2,3], 'b': float32[4]}) -> {'out': (float32[2,4],)}; "
        "certificate: exact; 12 constants in 1 array>"
    )


def test_a_summary_has_a_row_for_each_layer() -> None:
    module = _module()
    first, second, head, row, total = module.summary().splitlines()
    assert first.startswith("net(inputs: ") and second == "certificate: exact"
    assert head.split() == ["layer", "arrays", "parameters"]
    assert row.split() == ["(constants)", "constant_0", "float32[3,4]", "12"]
    assert total == "12 constants in 1 array"


def test_a_notebook_shows_names_of_a_file_as_text() -> None:
    text = 'func.func public @main(%arg0: tensor<2xf32> {jax.arg_info = "<b>x</b>"}) -> '
    text += "tensor<2xf32> {\n return %arg0 : tensor<2xf32>\n}"
    shown = invert.from_stablehlo(text)._repr_html_()
    assert "<b>" not in shown
    assert "float32[2]" in shown and shown.startswith("<div>") and shown.endswith("</div>")


def test_transformed_modules_are_shown_by_their_leaves() -> None:
    module = _module()
    flags = jax.tree_util.tree_map(lambda _: False, module)
    assert "constants=(False,)" in repr(flags)


def test_a_module_is_copied_with_its_arrays_alone() -> None:
    module = _module()
    for other in (copy.copy(module), copy.deepcopy(module)):
        assert eqx.tree_equal(other(INPUTS), module(INPUTS))
        assert other._function is module._function
    assert copy.deepcopy(module).constants[0] is not module.constants[0]


def test_pickling_a_module_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    module = _module()
    with pytest.raises(invert.SaveError, match=r"invert\.save\(module, directory\)"):
        pickle.dumps(module)
    invert.save(module, tmp_path / "saved")
    assert eqx.tree_equal(invert.load(tmp_path / "saved")(INPUTS), module(INPUTS))


def test_a_pickle_of_the_emitted_module_is_read_in_another_process(tmp_path: Path) -> None:
    model = _module().model
    again = pickle.loads(pickle.dumps(model))
    assert type(again) is type(model) and eqx.tree_equal(again, model)
    assert type(copy.deepcopy(model)) is type(model)
    (tmp_path / "model.pickle").write_bytes(pickle.dumps(model))
    np.savez(tmp_path / "x.npz", **INPUTS)
    program = (
        "import pickle, numpy as np\n"
        "model = pickle.load(open('model.pickle', 'rb'))\n"
        "assert type(pickle.loads(pickle.dumps(model))) is type(model)\n"
        "np.save('y.npy', model(dict(np.load('x.npz')))['out'][0])\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=environment, check=True)
    assert np.array_equal(np.load(tmp_path / "y.npy"), model(INPUTS)["out"][0])


def test_an_emission_is_shown_in_one_line() -> None:
    text = repr(_module().emit())
    assert text.startswith("<Emission of Net: ") and text.endswith(" lines; exact>")


def test_options_at_their_default_are_not_shown() -> None:
    assert repr(invert.Config()) == "Config()"
    assert repr(invert.Config(verify=False, max_scan=7)) == "Config(verify=False, max_scan=7)"


@pytest.mark.parametrize("name", ["notes.txt", "model.py"])
def test_text_other_than_a_model_is_named(name: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_text("def f(x):\n    return x\n")
    with pytest.raises(
        invert.MalformedModelError, match=rf"{name}, read as a StableHLO module: .*"
    ):
        invert.load(file)
