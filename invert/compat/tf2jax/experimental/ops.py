"""Importing this makes tf2jax convert `XlaCallModule`; here that is always converted."""
