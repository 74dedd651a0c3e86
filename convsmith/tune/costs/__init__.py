"""The cost model: numbers of events in a kernel, which the prices of a machine turn into cycles."""
