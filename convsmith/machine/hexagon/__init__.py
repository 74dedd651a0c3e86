"""Hexagon: vectors of 128 bytes (HVX), with dot products of bytes, and floating-point numbers in scalars."""
