"""Running an artifact on a processor that this machine is not.

x86 runs under Bochs, without an operating system: `rom` makes a ROM of the memory, `startup.s` is its code. AArch64
and Hexagon run under qemu, as processes of Linux: `executable` makes their file, `startup_aarch64.ll` and
`startup_hexagon.ll` are their code. `objects` links object code, `image` lays out memory, `bochs` and `qemu` start the
emulators, and `kernel` is what a caller sees.
"""
