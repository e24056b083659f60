"""Ops that only the host can run."""
