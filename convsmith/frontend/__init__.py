"""What Python users call: compiled kernels, numpy functions, explanations."""
