"""Schedules: configs, the loops and passes that follow from them, and the plan that later code reads."""
