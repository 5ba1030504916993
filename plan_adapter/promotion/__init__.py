"""A plan that went well becomes a runbook: what varies from run to run is proposed as typed inputs, for a person to edit."""

from plan_adapter.promotion.promoting import MOST_INPUTS, Promotion, ProposedInput, promote

__all__ = ["MOST_INPUTS", "Promotion", "ProposedInput", "promote"]
