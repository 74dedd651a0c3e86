"""Errors, warnings, settings, the event log and fork handlers. This package imports nothing else of convsmith."""
