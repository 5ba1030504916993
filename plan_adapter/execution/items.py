"""`Items`: the calls of one step, one or one per item of its `for_each`, and how they make the end of the step."""

from plan_adapter.execution.ports import AttemptEnd
from plan_adapter.plan import Step

_WORST_FIRST = ("unknown", "cancelled", "timed_out", "failed")


class Items:
    """The calls of `step` and their ends; a call that was never started ends as None."""

    def __init__(self, step: Step, count: int, *, is_list: bool) -> None:
        """Expect `count` ends; `is_list` for a step with `for_each`, whose result is the list of its items' results."""
        self.step = step
        self.count = count
        self.open = count
        self.carried = 0
        self.started = False
        self.settled = False  # a person said how a call ended, after it was shown as unknown
        self.halted = False  # an item failed and the step stops on errors: no further item starts
        self.refused = ""  # why a call was not approved
        self.goes_on = False  # whether the run goes on without the calls that were not approved
        self._is_list = is_list
        self._ends: list[AttemptEnd | None] = [None] * count

    @property
    def missing(self) -> int:
        """How many calls were never started."""
        return self._ends.count(None) - self.open

    @property
    def is_refused(self) -> bool:
        """Whether nothing but a refusal keeps the step from having succeeded: every call that was made did."""
        return bool(self.refused and self.missing) and all(end is None or end.outcome == "succeeded" for end in self._ends)

    def end(self, item: int | None, end: AttemptEnd | None) -> None:
        """Note the end of one call."""
        self._ends[item or 0] = end
        self.open -= 1

    def summary(self, cause: str) -> AttemptEnd:
        """Return the end of the step; `cause` says why calls are missing, if some are."""
        ends = [end for end in self._ends if end is not None]
        if not self._is_list:
            return ends[0]
        bad = sorted((end for end in ends if end.outcome != "succeeded"), key=lambda end: _WORST_FIRST.index(end.outcome))
        if not bad and not self.missing:
            return AttemptEnd("succeeded", max((end.number for end in ends), default=0), result=[end.result for end in ends])
        texts = [f"item {place}: {end.error}" for place, end in enumerate(self._ends) if end is not None and end.outcome != "succeeded"]
        shown = "; ".join(texts[:3]) + (f"; and {len(texts) - 3} more" if len(texts) > 3 else "")
        left = f"{self.missing} of {self.count} items were not started" + (f": {cause}" if cause else "") if self.missing else ""
        outcome = bad[0].outcome if bad else "failed"
        in_middle = any(end.in_middle for end in bad)
        return AttemptEnd(outcome, 0, error="; ".join(text for text in (shown, left) if text), in_middle=in_middle)
