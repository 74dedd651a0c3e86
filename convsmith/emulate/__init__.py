"""Runs artifacts for machines other than the one that this process runs on.

`emulators` chooses the emulator of a target, and `base` defines the interface of an emulator. AArch64 and Hexagon run
under qemu, as processes of Linux (`qemu`; `executable` makes their file). x86-64 runs under Bochs, without an operating
system (`bochs`; `rom` makes a ROM of the memory). Both are a `processor`: `image` lays out memory, and the code that
begins a run is LLVM text or assembly of this folder. Modules of WebAssembly run in
Node or wasmtime (`wasm`). Kernels for NVIDIA's GPUs run in an interpreter of PTX (`ptx`), and kernels for Xe GPUs on
another OpenCL device (`opencl`).
"""
