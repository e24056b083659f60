"""StableHLO modules: read, and raised by the rules."""
