"""Arithmetic on indices: evaluation, intervals and simplification. This package needs no numpy."""

