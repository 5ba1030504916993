"""Whether another attempt follows, and after how long: one pure decision."""

import random
from dataclasses import dataclass

from plan_adapter.execution.ports import AttemptEnd
from plan_adapter.plan import Step


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often a step is tried again, and the seconds between: `delay`, times `backoff` each time, give or take `jitter` (a share)."""

    retries: int
    delay: float
    backoff: float
    jitter: float

    @classmethod
    def of(cls, step: Step) -> "RetryPolicy":
        """Return the policy that `step` writes."""
        return cls(step.max_retries, step.retry_delay_ms / 1000, step.retry_backoff, step.retry_jitter)

    def planned(self) -> list[float]:
        """Return the seconds before each retry, without jitter."""
        return [self.delay * self.backoff**number for number in range(self.retries)]

    def delay_after(self, end: AttemptEnd, tries: int) -> float | None:
        """Return the seconds until the next attempt after `tries` of them, or None where none follows.

        Only known failures are tried again: an unknown outcome is a person's matter, and a stopped run makes no attempts.
        """
        if end.outcome != "failed" or not end.can_retry or tries > self.retries:
            return None
        planned = self.delay * self.backoff ** (tries - 1)
        return planned * (1 + random.uniform(-self.jitter, self.jitter)) if self.jitter else planned  # noqa: S311  # no secret
