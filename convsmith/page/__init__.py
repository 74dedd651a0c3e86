"""Self-contained pages of HTML about kernels and measurements."""
