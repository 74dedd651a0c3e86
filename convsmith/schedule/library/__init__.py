"""Schedules of parts of kernels, and of whole ones, as functions over primitives: users call or copy them."""
