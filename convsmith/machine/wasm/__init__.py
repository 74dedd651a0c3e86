"""WebAssembly: vectors of 128 bits, in two levels."""
