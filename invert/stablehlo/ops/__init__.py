"""The interpreter of StableHLO, and the building blocks of its rules."""
