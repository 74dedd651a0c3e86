"""Configs and costs of kernels of devices: of threads, of warps, and of copy engines."""
