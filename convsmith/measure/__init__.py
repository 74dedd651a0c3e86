"""Measurement: timing loops, measured peaks, verification, and the libraries that kernels are compared with."""
