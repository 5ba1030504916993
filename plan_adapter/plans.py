"""The parts of a plan, and the functions that check and format it."""

from plan_adapter.public_names import offer_names

offer_names(__name__)
