"""Rewrites: one a file, each from kernel to kernel and meaning-preserving.

What they rely on: the statements of a nest depend on each other only through its accumulator, and the order of the
terms of a sum is free.  The naive nest of a statement is such a nest, and every pass keeps it so.  ``reorder``,
``sink``, ``fission`` and ``vectorise`` therefore look for no other dependences; on a nest with ``b[i + 1] = b[i]`` in
it they would be wrong.

Passes know the IR and index arithmetic, and of a target only the facts that are passed in.  They never see a
convolution, a config or a target's name.
"""
