"""Where problem, config and target facts meet: the naive nest and the list of rewrites for it."""
