"""Rewrites: one a file, each from kernel to kernel and meaning-preserving.

A rewrite that changes the order of iterations or statements asks :mod:`convsmith.passes.order` whether a dependence
forbids it, and raises a ConfigError if so.  Only the order of the terms of a sum is free.

Passes know the IR and index arithmetic, and of a target only the facts that are passed in.  They never see a
convolution, a config or a target's name.
"""
