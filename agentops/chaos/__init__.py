"""Chaos: a throwaway instance under load, broken on purpose, and at the end the protocol's invariants looked up."""
