"""Rewrites: one a file, each from kernel to kernel and meaning-preserving.

Passes know the IR and index arithmetic, and of a target only the facts that are passed in.  They never see a
convolution, a config or a target's name.
"""
