"""Errors, settings and the trace sink. This package knows nothing else of the compiler."""
