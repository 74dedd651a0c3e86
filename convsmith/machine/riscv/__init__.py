"""RISC-V: scalars, and the vector extension with vectors of any length."""
