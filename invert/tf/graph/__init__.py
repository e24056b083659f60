"""Graphs as data: checked function bodies, with TensorFlow 1 control flow as functions."""
