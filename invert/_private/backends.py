"""The clients through which JAX runs programs."""

from __future__ import annotations

from jax._src import xla_bridge


def has_started() -> bool:
    """Return whether this process has made a client, with its threads."""
    return xla_bridge.backends_are_initialized()
