"""An interpreter of PTX: it runs the text that LLVM emits for NVIDIA's GPUs, without a GPU, and reports faults.

`launch.run` executes a kernel; `emulator.PTX` runs the entries of an artifact. Registers are numpy arrays over the 32
lanes of a warp; warps run under a random schedule; every access to memory is checked for bounds, alignment,
initialisation and races. Asynchronous effects happen as late as the program allows, so that a missing wait shows. The
PTX manual defines the semantics.
"""
