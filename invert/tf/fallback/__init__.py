"""Ops without a rule: compiled by XLA, or run on the host."""
