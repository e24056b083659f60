"""Facts about values: constants, bounds, lengths, lists."""
