"""Numeric routines that rules call: random bits, special functions, steps of optimizers."""
