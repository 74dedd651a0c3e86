"""Plans: configs, the loops and passes that follow from them, and the values of a plan that later code reads."""
