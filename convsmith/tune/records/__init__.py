"""Measurements that are kept: the database, the tables of the package, and the queries that choose by them."""
