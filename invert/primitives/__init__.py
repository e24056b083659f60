"""Raising rules, one table row or one short function per op."""
