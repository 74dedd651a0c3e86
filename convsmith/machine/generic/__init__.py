"""Anything LLVM knows: portable rows, without a claim on speed."""
