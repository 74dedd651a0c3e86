"""Devices of NVIDIA, whose kernels are PTX."""
