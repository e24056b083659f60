"""How many of JAX's own primitive cases come back as the program they were.

    python benchmarks/recovery.py [--limit N] [--seed S] [--strip] [--x64] [--list]

Per case: the function is exported with `jax.export` and recovered. Counted are cases whose
recovered program has the same primitives as the original, with their number (`same`), up to aliases
and primitives that leave nothing in StableHLO (`normal`), cases whose certificate is exact, and
cases that keep opaque custom calls. `--strip` takes locations out of the module first and renames
its private functions, so that only the ops are left to go by.
"""

from __future__ import annotations

import argparse
import collections
import random
import sys
import time
from pathlib import Path
from typing import Any, cast

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import jax

import invert
from invert._private.jax import dce, open_jaxpr
from invert._private.mlir import make_ir_context, stablehlo_dialect, text_of
from invert.ir import jaxprs
from invert.ir.types import ClosedJaxpr
from tests.harness_cases import Case, harnesses

CALLS = frozenset(
    "jit pjit closed_call core_call custom_jvp_call custom_vjp_call remat2 checkpoint "
    "custom_vmap_call".split()
)
# Primitives that lower to nothing, and pairs that lower to the same op.
NOTHING = frozenset("copy copy_p name pvary stop_gradient device_put tie stage".split())
ALIASES = {"add_any": "add", "squeeze": "reshape", "expand_dims": "broadcast_in_dim"}


def primitives(jaxpr: Any, normal: bool) -> collections.Counter[str]:
    """Names of the primitives, calls looked through, bodies of loops and branches counted."""
    found: collections.Counter[str] = collections.Counter()
    for eqn in jaxpr.eqns:
        name = eqn.primitive.name
        if name in CALLS or name in ("scan", "while", "cond"):
            for inner in jaxprs.sub_jaxprs(eqn):
                found += primitives(inner, normal)
            if name in CALLS:
                continue
        if normal:
            same = name in ("convert_element_type", "broadcast_in_dim", "reshape", "squeeze")
            short = [v.aval.str_short() for v in (*eqn.invars[:1], *eqn.outvars)]
            if name in NOTHING or (same and short[0] == short[1]):
                continue
            name = ALIASES.get(name, name)
        found[name] += 1
    return found


def stripped(exported: jax.export.Exported) -> str:
    """The module as text without locations, its private functions renamed."""
    module = stablehlo_dialect.deserialize_portable_artifact(
        make_ir_context(), exported.mlir_module_serialized
    )
    text: Any = module.operation.get_asm(enable_debug_info=False, large_elements_limit=None)
    names = [
        text_of(op.operation.attributes["sym_name"])
        for op in module.body.operations
        if op.operation.name == "func.func"
    ]
    for i, name in enumerate(sorted((n for n in names if n != "main"), key=len, reverse=True)):
        text = text.replace(f'@"{name}"', f"@f{i}").replace(f"@{name}(", f"@f{i}(")
        text = text.replace(f"@{name}\n", f"@f{i}\n").replace(f"@{name},", f"@f{i},")
        text = text.replace(f"@{name} ", f"@f{i} ").replace(f"@{name}]", f"@f{i}]")
    return text


def measure(name: str, strip: bool) -> dict[str, Any]:
    case = Case(name)
    exported = case.export()
    module = invert.from_stablehlo(stripped(exported)) if strip else invert.from_exported(exported)
    original = dce(open_jaxpr(cast(ClosedJaxpr, jax.make_jaxpr(case)(*case.args))))
    result = {"certificate": module.report.certificate, "opaque": module.report.opaque}
    for key, normal in (("same", False), ("normal", True)):
        want, got = primitives(original, normal), primitives(module.jaxpr, normal)
        result[key] = want == got
        result[f"{key} difference"] = (dict(want - got), dict(got - want))
    return result


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--limit", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--strip", action="store_true")
    parser.add_argument("--x64", action="store_true")
    parser.add_argument("--list", action="store_true", help="print every case that is not perfect")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", options.x64)
    groups: dict[str, list[str]] = collections.defaultdict(list)
    for name, harness in sorted(harnesses().items()):
        groups[harness.group_name].append(name)
    rng = random.Random(options.seed)
    for group in groups.values():
        rng.shuffle(group)
    names = [
        group[i]
        for i in range(max(map(len, groups.values())))
        for _, group in sorted(groups.items())
        if i < len(group)
    ][: options.limit]
    totals: collections.Counter[str] = collections.Counter()
    start = time.perf_counter()
    for i, name in enumerate(sorted(names)):
        try:
            jax.make_jaxpr(Case(name))(*Case(name).args)
            Case(name).export()
        except (TypeError, ValueError, NotImplementedError, RuntimeError):
            totals["not exported by JAX"] += 1
            continue
        totals["cases"] += 1
        try:
            result = measure(name, options.strip)
        except invert.InvertError as error:
            print(f"{name}: {error}")
            continue
        totals["converted"] += 1
        for key in ("same", "normal"):
            totals[key] += result[key]
        totals[f"certificate {result['certificate'].kind}"] += 1
        totals["with opaque calls"] += bool(result["opaque"])
        perfect = result["normal"] and result["certificate"].kind == "exact"
        if options.list and not perfect:
            missing, extra = result["normal difference"]
            print(f"{name}: missing {missing}, extra {extra}; {result['certificate']}", flush=True)
        if i % 100 == 99:
            jax.clear_caches()
    for key, n in totals.items():
        print(f"{key:24s} {n:5d} {100 * n / max(totals['cases'], 1):6.1f} %")
    print(f"{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
