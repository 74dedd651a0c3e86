"""The search for the fastest config: spaces of configs, and the processes that compile and time them."""
