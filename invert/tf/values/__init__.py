"""What is known of a value: constants, bounds, lengths, lists."""
