"""Rewrites of graphs: each returns a graph that computes the same outputs at a lower cost."""
