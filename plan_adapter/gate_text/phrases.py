"""Facts in the words that the texts of all gates say them in."""

from collections.abc import Sequence

from plan_adapter.plan import ApprovalPolicy, Effect, ExecutionPlan, Step
from plan_adapter.readable import code, counted, duration, listed

EFFECTS_SHOWN: dict[Effect, str] = {"read": "read", "idempotent_write": "write, repeatable", "write": "**write**"}

NAMED = 12
"""How many steps are told one a line; more are named in one sentence."""


def named(ids: Sequence[str], limit: int = 5) -> str:
    """Return the first of some names, and how many more there are."""
    return listed([code(name) for name in ids], limit)


def uses_secrets(secrets: Sequence[str]) -> list[str]:
    """Return the line that names the secrets that are handed to tools; none where there are none."""
    return [f"- uses the secrets: {named(secrets, NAMED)}"] if secrets else []


def expiry(plan: ExecutionPlan, expires_ms: int, step: Step | None) -> str:
    """Return the sentence that says what happens without an answer at the gate of the plan, or of a step; 0 is no limit."""
    if not expires_ms:
        return "It waits for an answer without limit."
    skips = step is not None and (plan.approval or ApprovalPolicy()).expires == "skip"
    return f"{'Skipped' if skips else 'Rejected'} without an answer within {duration(expires_ms)}."


def retries(step: Step) -> str:
    """Return how often a step is tried again, and after how long."""
    delay = f" after {duration(step.retry_delay_ms)}" if step.retry_delay_ms else ""
    growth = f", each × {step.retry_backoff:g}" if delay and step.retry_backoff > 1 and step.max_retries > 1 else ""
    return counted(step.max_retries, "retry", "retries") + delay + growth
