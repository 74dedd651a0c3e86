"""Runs artifacts for machines that this process does not run on.

`emulators` chooses the emulator of a target, and `base` is what an emulator is. AArch64 and Hexagon run under qemu, as
processes of Linux (`qemu`; `executable` makes their file). x86-64 runs under Bochs, without an operating system
(`bochs`; `rom` makes a ROM of the memory). Both are a `processor`: `image` lays out memory, and the code that begins a
run is LLVM text or assembly of this folder. Kernels for NVIDIA's GPUs run in an interpreter of PTX (`ptx`), and those
for Xe GPUs on another device of OpenCL (`opencl`).
"""
