"""Which config: candidates, and a model of their cost that ranks them."""
