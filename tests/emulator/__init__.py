"""Running an artifact on a processor that this machine is not.

x86 runs under Bochs, without an operating system: `rom` makes a ROM of the memory, `startup.s` is its code. AArch64
runs under qemu-aarch64, as a process of Linux: `executable` makes its file, `startup_aarch64.ll` is its code. `objects`
links object code, `image` lays out memory, `bochs` and `qemu` start the emulators, and `kernel` is what a caller sees.
"""
