"""The engine that finds patterns in a program and puts calls in their place."""
