"""Devices of WebGPU, whose kernels are WGSL."""
