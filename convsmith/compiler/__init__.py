"""The driver: from a problem to an artifact, through the cache of artifacts on disk."""
