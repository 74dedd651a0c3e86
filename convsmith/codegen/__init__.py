"""IR to LLVM text, LLVM text to object code, object code to an artifact.

Knows the IR and the facts of a target; never a problem or a config.
"""
