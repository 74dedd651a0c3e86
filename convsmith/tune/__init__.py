"""The choice of a config: candidates, and a cost model that ranks them."""
