"""Loading an artifact into this process and calling it: host threads, arrays, permissions.

This package sees artifacts, layouts and diagnostics; it knows no IR, passes or problems.
"""
