"""Loading an artifact into this process and calling it: host threads, arrays, and what the machine is.

Sees only an `Artifact`, layouts and diagnostics; never IR, passes or problems.
"""
