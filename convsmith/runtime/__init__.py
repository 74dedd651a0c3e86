"""Loading an artifact into this process and calling it: host threads, arrays, and the machine's measured ceilings.

Sees only an `Artifact`, layouts and diagnostics; never IR, passes or problems.
"""
