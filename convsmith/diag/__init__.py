"""Errors, warnings, settings, the trace sink, and fork(). This package knows nothing else of the compiler."""
