"""Problems as statements ``C += A * B``: the views of the tensors, the epilogue, and the naive nest of a statement.

This package knows no config.
"""
