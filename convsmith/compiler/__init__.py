"""The driver: compiles a problem to an artifact, and keeps artifacts in a cache on disk."""
