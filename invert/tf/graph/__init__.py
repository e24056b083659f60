"""Graphs as data: bodies of functions, checked and without frames."""
