"""Graphs of bytes: conversions between bytes and floats become kernels that compute with bytes."""
