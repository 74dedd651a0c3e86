"""AArch64: NEON, and the extensions for products of small types."""
