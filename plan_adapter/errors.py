"""The errors that a caller can handle, besides their base class `PlanAdapterError`."""

from plan_adapter.public_names import offer_names

offer_names(__name__)
