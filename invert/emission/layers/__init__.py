"""Cuts programs into layers, and finds what these share."""
