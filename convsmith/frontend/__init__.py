"""The public interface in Python: compiled kernels, functions on arrays, explanations."""
