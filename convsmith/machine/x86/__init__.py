"""x86-64: AVX-512, and AVX2 with FMA."""
