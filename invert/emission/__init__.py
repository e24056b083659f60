"""Recovered programs as readable Python."""
