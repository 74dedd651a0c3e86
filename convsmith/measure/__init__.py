"""Measuring: timing loops, alternation of subjects, and the libraries that kernels are compared with."""
