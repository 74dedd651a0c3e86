"""The intermediate representation (IR): index arithmetic, values, statements, buffers and kernels.

This package knows nothing of convolutions, targets or LLVM.  Every node is immutable.  Expressions
(:mod:`convsmith.ir.index`, :mod:`convsmith.ir.value`) are interned, so that equality is identity; statements
(:mod:`convsmith.ir.stmt`) are plain trees.  :mod:`convsmith.ir.text` prints nodes as Python-like text, which
:mod:`convsmith.ir.parse` parses back.
"""
