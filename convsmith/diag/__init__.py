"""Errors, warnings, settings, the event log and fork handlers. This package imports no other package of convsmith."""
