"""The cost of importing `invert`, and its behaviour without TensorFlow."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def _run(code: str) -> str:
    """Run `code` in a fresh interpreter and return what it printed."""
    env = os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_import_leaves_tensorflow_alone() -> None:
    out = _run(
        "import sys, invert\n"
        "print([m for m in sys.modules if m.split('.')[0] in ('tensorflow', 'keras')])\n"
    )
    assert out == "[]"


def test_import_starts_no_backend() -> None:
    # A library that touches a device at import takes the choice of platform, and on an
    # accelerator its memory, from the program that imports it.
    out = _run(
        "import jax, invert\n"
        "jax.config.update('jax_num_cpu_devices', 2)\n"  # refused once a backend is up
        "print(jax.local_device_count())\n"
    )
    assert out == "2"


_WITHOUT_TENSORFLOW = "import sys\nsys.modules['tensorflow'] = None\nimport invert\n"


def test_what_needs_tensorflow_names_the_extra() -> None:
    out = _run(
        _WITHOUT_TENSORFLOW
        + "try:\n"
        + "    invert.convert(abs)\n"
        + "except invert.MissingDependencyError as e:\n"
        + "    assert isinstance(e, ImportError)\n"
        + "    print(e)\n"
    )
    assert "pip install invert[tensorflow]" in out.replace("'", "").replace('"', "")


def test_stablehlo_needs_no_tensorflow() -> None:
    out = _run(
        _WITHOUT_TENSORFLOW
        + "import jax\n"
        + "text = jax.jit(lambda x: x + 1).lower(1.0).as_text()\n"
        + "print(float(jax.tree.leaves(invert.from_stablehlo(text)(jax.numpy.float32(2)))[0]))\n"
    )
    assert out == "3.0"


def test_help_imports_nothing_heavy() -> None:
    out = _run(
        "import sys, invert.cli\n"
        "for arguments in (['--help'], ['inspect', 'nowhere']):\n"
        "    try:\n"
        "        invert.cli.main(arguments)\n"
        "    except SystemExit:\n"
        "        pass\n"
        "print([m for m in ('jax', 'numpy', 'equinox', 'tensorflow') if m in sys.modules])\n"
    )
    assert out.splitlines()[-1] == "[]"


def test_public_names_are_imported_on_first_use() -> None:
    out = _run(
        "import sys, invert\n"
        "early = 'jax' in sys.modules\n"
        "from invert import Config, load\n"
        "import invert.patterns\n"
        "print(early, invert.load is load, 'convert' in dir(invert), hasattr(invert, 'nothing'))\n"
    )
    assert out == "False True True False"


def test_rules_can_be_imported_in_any_order() -> None:
    """SavedModels reach the rules of StableHLO by another import path than modules."""
    for module in ("frontends.saved_graph", "primitives.stablehlo.linear"):
        _run(f"import invert.{module}")


def test_what_writes_texts_is_imported_with_the_first_text() -> None:
    out = _run(
        "import sys, jax, invert\n"
        "module = invert.roundtrip(lambda x: x + 1, jax.ShapeDtypeStruct((2,), 'float32'))\n"
        "early = 'invert.emission.emit' in sys.modules\n"
        "print(early, 'x + ' in module.source, 'invert.emission.emit' in sys.modules)\n"
    )
    assert out == "False True True"
