"""Kernels as object code, assembly or a static library, with a C header, for programs without Python."""
