"""Running an artifact on a processor that this machine is not: under Bochs, without an operating system.

`objects` links object code, `image` lays out memory, `startup.s` is the ROM that begins the run, `bochs` starts the
emulator, and `kernel` is what a caller sees.
"""
