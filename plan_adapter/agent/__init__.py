"""Drafting plans with a language model: models, prompts, and the code that reads and checks their answers.

The public names are in the stub next to this file; the modules are internal.
"""

from plan_adapter.public_names import offer_names

offer_names(__name__)
