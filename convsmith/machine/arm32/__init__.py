"""Arm's processors for microcontrollers: vectors of 128 bits (MVE), and pairs of 16-bit products in scalars (DSP)."""
