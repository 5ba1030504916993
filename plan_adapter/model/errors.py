"""The errors of this package: one class per decision that a caller can make.

PlanAdapterError
├── InvalidPlanError      correct the plan or its inputs: every problem is in `.problems`
├── NotApprovedError      the caller may not do this, or an approval is not valid; the message says which
│   ├── ApprovalRequiredError    … until a person has approved exactly this content
│   ├── ContentChangedError      … because they answered about other content: show the gate again
│   └── InvalidAnswerError       … because the gate does not take this answer: correct it
├── NoServerError         start or reach a Prefect server, or run with `offline=True`
├── RunConflictError      the run is in another state, or another process owns it
│   └── RunNotFoundError  … or there is no run with this id, or several, or it has no such gate, step, item or field
├── StoreError            the database cannot be used; the message says why and what to do
│   ├── NotStoredError        … or has no plan, draft or standing approval with this name, version or id
│   ├── StoreSettingsError    … as it is configured: correct a setting, or upgrade the store
│   ├── LeaseLostError    … for this run, because another process has taken it over
│   └── StoreLostError    … because its file was deleted, moved, replaced or truncated while in use
├── ToolDefinitionError   correct the function that should be a tool, or the import string that names it
├── ToolError             raised by a tool that failed
│   └── UnknownOutcomeError   … or that cannot tell whether it did its work
├── ModelError            a language model cannot be asked; the message says why and what to do
├── DraftError            there is no valid plan for a task; the reason and every round are in `.draft`
├── DeploymentError       correct the runbook or its deployment; the message says how
├── ExpressionError       an expression failed at run time; its step fails
└── RunFailedError        only from `run.raise_for_status()`; the run is in `.run`
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from plan_adapter.model.problems import Problem

if TYPE_CHECKING:
    from plan_adapter.model.drafts import Draft
    from plan_adapter.model.record import PlanRun


class PlanAdapterError(Exception):
    """Base class of every error that this package raises deliberately. `hint` is the end of the message that says what to do, if known."""

    hint: str = ""


class InvalidPlanError(PlanAdapterError):
    """The plan or its inputs are invalid. `problems` holds every finding."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        """Store `problems`, and show each on a separate line."""
        self.problems: list[Problem] = list(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class NotApprovedError(PlanAdapterError):
    """The caller may not do this, or an approval is not valid: of other content, expired, used, or badly signed."""


class ApprovalRequiredError(NotApprovedError):
    """The plan or the call requires an approval of exactly this content, and nobody has given one yet."""


class ContentChangedError(NotApprovedError):
    """The answer is about other content than the gate asks about now. Show the gate again, and let the person answer what it says."""


class InvalidAnswerError(NotApprovedError):
    """The gate does not take this answer: its kind has no such decision, or a field or the note is missing or does not fit."""


class NoServerError(PlanAdapterError):
    """No Prefect server can be used. The message says what the options are."""


class RunConflictError(PlanAdapterError):
    """The run has ended, is in another state, or is owned by another process. `ended` is the reason of a run that has ended, if known."""

    def __init__(self, message: str, *, ended: str | None = None) -> None:
        """Store why the run ended."""
        self.ended = ended
        super().__init__(message)


class RunNotFoundError(RunConflictError):
    """There is no run with this id, or it has no such gate, step, item or field.

    `is_ambiguous`: several runs have an id that begins or ends so.
    """

    def __init__(self, message: str, *, hint: str = "", is_ambiguous: bool = False) -> None:
        """Store `hint` and show it behind the message, and store whether several runs have an id that fits."""
        self.hint = hint
        self.is_ambiguous = is_ambiguous
        super().__init__(f"{message}; {hint}" if hint else message)


class StoreError(PlanAdapterError):
    """The store cannot be opened, read or written."""


class NotStoredError(StoreError):
    """The store has no plan, draft or standing approval with this name, version, digest or id."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        """Store `hint`, and show it behind the message."""
        self.hint = hint
        super().__init__(f"{message}; {hint}" if hint else message)


class StoreSettingsError(StoreError):
    """The store cannot be used as it is configured. The same run fails again until a setting is corrected or the store is upgraded."""


class LeaseLostError(StoreError):
    """Another process has taken over the run. This one writes nothing more about it and starts no further step."""


class StoreLostError(StoreError):
    """The store's file is no longer the one that was opened. Nothing more is recorded, and no further step is called."""


class NotVerifiedError(StoreError):
    """A record, or an attestation of one, is not as it was written, or another key signed it. The message names what differs."""


class SigningKeyError(PlanAdapterError):
    """A file is not a key that signs attestations, or that verifies them. The message says what it is, and what to give."""


class ToolDefinitionError(PlanAdapterError):
    """Something cannot be a tool: a signature has no schema, an import is missing, a name is taken."""


class ToolError(PlanAdapterError):
    """Raise this in a tool to fail the attempt with a message."""


class UnknownOutcomeError(ToolError):
    """Raise this in a tool that began to write and cannot tell whether it finished. For a tool that only reads, it is a failure."""


class DeploymentError(PlanAdapterError):
    """A runbook that cannot be deployed, or a deployment that cannot be changed or found."""


class ModelError(PlanAdapterError):
    """A language model gave no answer: its server is unreachable, refuses, or does not follow the protocol."""


class DraftError(PlanAdapterError):
    """A model drafted no valid plan for a task. `draft` holds every round and the problems of the last answer."""

    def __init__(self, message: str, draft: "Draft") -> None:
        """Store `draft`, and list the problems of the last answer."""
        self.draft = draft
        super().__init__(message + "".join(f"\n  {problem}" for problem in draft.problems))


class ExpressionError(PlanAdapterError):
    """An expression could not be evaluated with the values of this run."""


class RunFailedError(PlanAdapterError):
    """A run did not complete. `run` is its record."""

    def __init__(self, run: "PlanRun") -> None:
        """Store `run`, and say how it ended and why."""
        self.run = run
        failed = [f"{step.id}: {step.error}" for step in run.steps if step.error]
        super().__init__(f"run {run.id} of `{run.name}` ended {run.outcome_text}" + "".join(f"\n  {line}" for line in failed))


MAX_ERROR_CHARACTERS = 4000


def error_text(error: BaseException, redact: Callable[[str], str] | None = None) -> str:
    """Return the error as text of limited length. `redact` hides secrets before the cut, which could split one."""
    text = error_message(error) if redact is None else redact(error_message(error))
    return text if len(text) <= MAX_ERROR_CHARACTERS else text[:MAX_ERROR_CHARACTERS] + "…"


def error_message(error: BaseException) -> str:
    """Return the error as text of any length: its message, with the class unless it is one of this package's."""
    try:
        message = str(error)
    except Exception:  # an exception whose own __str__ raises
        message = "(its message cannot be shown)"
    return message if isinstance(error, PlanAdapterError) else f"{type(error).__name__}: {message}" if message else type(error).__name__
