"""Raising rules for StableHLO, CHLO and Shardy ops."""
