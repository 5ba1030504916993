"""Simulations: runs on virtual time with faults, people and rival processes that a seed decides. `make simulate` runs them."""
