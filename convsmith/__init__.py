"""convsmith: a compiler for convolutions."""
