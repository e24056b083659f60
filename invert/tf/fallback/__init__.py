"""Ops without a rule: compiled by XLA alone, or run on the host."""
