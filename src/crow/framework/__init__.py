"""The paper, pure arrays in and out: one room per step of Algorithm 1."""
