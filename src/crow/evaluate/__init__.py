"""Answers to numbers and pictures anyone can check."""
