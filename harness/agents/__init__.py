"""Agents: a model, instructions and tools, that any number of runs use at once."""
