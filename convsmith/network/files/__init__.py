"""Networks that leave the process: files that load, libraries of C, and modules for browsers."""
