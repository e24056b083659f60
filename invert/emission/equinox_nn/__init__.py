"""Replaces parts of a program by layers of `equinox.nn`."""
