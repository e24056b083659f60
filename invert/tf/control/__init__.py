"""Branches and loops: what they carry, and how often they run."""
