"""Equations as Python expressions and statements, each proved by tracing."""
