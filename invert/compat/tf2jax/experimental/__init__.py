"""The experimental part of tf2jax."""

from invert.compat.tf2jax.experimental import mhlo as mhlo
from invert.compat.tf2jax.experimental import ops as ops
