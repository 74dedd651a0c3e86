"""Devices of OpenCL, whose kernels are SPIR-V."""
