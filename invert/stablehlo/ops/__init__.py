"""What the rules of StableHLO ops are written with, and the walk that runs them."""
