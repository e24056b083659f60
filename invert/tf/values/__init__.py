"""What is known of a value: constants, intervals, lengths, lists."""
