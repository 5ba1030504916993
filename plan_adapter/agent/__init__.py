"""Drafting plans with a language model: models, prompts, and the code that reads and checks their answers."""
