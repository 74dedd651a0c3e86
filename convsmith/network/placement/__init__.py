"""The places of the values of a graph: their layouts, parts of other values, and the memory of a call."""
