"""Machines: facts and instruction tables, one folder per target, collected in :mod:`convsmith.machine.registry`."""
