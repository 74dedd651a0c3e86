"""Schedules of whole kernels and of their parts, as functions over primitives, for users to call or copy."""
