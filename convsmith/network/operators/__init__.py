"""Operators of networks beside convolutions and products, each with its naive nest and its reference."""
