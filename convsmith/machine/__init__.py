"""What hardware: facts and instruction tables, one folder a target, collected in :mod:`convsmith.machine.registry`."""
