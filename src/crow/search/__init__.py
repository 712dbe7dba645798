"""Vectors to answers."""
