"""What this package raises; one class per decision that a caller can take.

PlanAdapterError
├── InvalidPlanError      mend the plan or its inputs: every problem is on `.problems`
├── NotApprovedError      have the plan approved, or give an approver
├── NoServerError         start or reach a Prefect server, or run with `offline=True`
├── RunConflictError      the run is in another state, or another process holds it
├── StoreError            the database cannot be used; the message says why and what to do
│   ├── LeaseLostError    … for this run, because another process has taken it over
│   └── StoreLostError    … because its file was deleted, moved, replaced or truncated while it was in use
├── ToolDefinitionError   mend the function that is to be a tool, or the import string that names it
├── ToolError             a tool's own way to say that it failed
│   └── UnknownOutcomeError   … or that it cannot tell whether it did what it was asked to
├── ModelError            a language model cannot be asked; the message says why and what to do
├── DraftError            no valid plan came of a task; why, and every round, is on `.draft`
├── ExpressionError       an expression failed at run time; it fails its step
└── RunFailedError        only from `run.raise_for_status()`; the run is on `.run`
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from plan_adapter.problems import Problem

if TYPE_CHECKING:
    from plan_adapter.drafts import Draft
    from plan_adapter.record import PlanRun


class PlanAdapterError(Exception):
    """Base of everything that this package raises on purpose."""


class InvalidPlanError(PlanAdapterError):
    """The plan, or what was given to it, cannot run; `problems` holds every finding."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        """Keep `problems` and show each on a line of its own."""
        self.problems: list[Problem] = list(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class NotApprovedError(PlanAdapterError):
    """The plan requires an approval of exactly this content, and there is none."""


class NoServerError(PlanAdapterError):
    """No Prefect server can be used; the message names the ways out."""


class RunConflictError(PlanAdapterError):
    """The run does not exist, has ended, or is held by another process; `ended` is the reason of one that has ended, where that matters."""

    def __init__(self, message: str, *, ended: str | None = None) -> None:
        """Keep why the run ended."""
        self.ended = ended
        super().__init__(message)


class StoreError(PlanAdapterError):
    """The store cannot be opened, read or written."""


class LeaseLostError(StoreError):
    """Another process has taken the run over: this one writes nothing more about it and starts no further step."""


class StoreLostError(StoreError):
    """The file of the store is no longer the one that was opened: nothing more is recorded, and no further step is called."""


class ToolDefinitionError(PlanAdapterError):
    """Something cannot be offered as a tool: a signature without a schema, a missing import, a name that is taken."""


class ToolError(PlanAdapterError):
    """Raise it in a tool to fail the attempt with a message of your own."""


class UnknownOutcomeError(ToolError):
    """Raise it in a tool that began to write and cannot tell whether it was done; of a tool that only reads it is a failure."""


class ModelError(PlanAdapterError):
    """A language model gives no answer: its server cannot be reached, refuses, or does not speak the protocol."""


class DraftError(PlanAdapterError):
    """A model made no valid plan of a task; `draft` is the whole story, with the problems of the last answer."""

    def __init__(self, message: str, draft: "Draft") -> None:
        """Keep `draft`, and name what was wrong with the last answer."""
        self.draft = draft
        super().__init__(message + "".join(f"\n  {problem}" for problem in draft.problems))


class ExpressionError(PlanAdapterError):
    """An expression could not be evaluated with the values of this run."""


class RunFailedError(PlanAdapterError):
    """A run did not end as completed; `run` is its record."""

    def __init__(self, run: "PlanRun") -> None:
        """Keep `run` and say how it ended and why."""
        self.run = run
        failed = [f"{step.id}: {step.error}" for step in run.steps if step.error]
        reason = f" ({run.reason})" if run.reason else ""
        super().__init__(f"run {run.id} of `{run.name}` ended {run.status}{reason}" + "".join(f"\n  {line}" for line in failed))


MAX_ERROR_CHARACTERS = 4000


def error_text(error: BaseException, redact: Callable[[str], str] | None = None) -> str:
    """Return what was raised in words, cut between characters; `redact` hides secrets before the cut, which could halve one."""
    text = error_message(error) if redact is None else redact(error_message(error))
    return text if len(text) <= MAX_ERROR_CHARACTERS else text[:MAX_ERROR_CHARACTERS] + "…"


def error_message(error: BaseException) -> str:
    """Return what was raised in words, however many: its class unless it is ours, and its message."""
    try:
        message = str(error)
    except Exception:  # an exception whose own __str__ raises
        message = "(its message cannot be shown)"
    return message if isinstance(error, PlanAdapterError) else f"{type(error).__name__}: {message}" if message else type(error).__name__
