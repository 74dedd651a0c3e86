"""Where the values of a graph lie: their layouts, parts of other values, and the memory of a call."""
