"""The commands that messages tell a person to type next."""

from typing import Protocol

from plan_adapter.readable import item_option
from plan_adapter.record import GateKind, PlanRun


def resolve_command(run_id: str, unit: tuple[str, int | None], words: str = "done|again|abort", *, label: str | None = None) -> str:
    """Return the command that records the outcome of an interrupted write; `unit` is the step, and the item from 0 or None."""
    step_id, item = unit
    name = f'"{step_id}"' if " " in step_id else step_id
    return f"plan resolve {run_id} {name} {words}{item_option(item, label)}"


SHOWN_DIGITS = 12
"""How much of a digest a command shows: enough to tell two contents of one gate apart, short enough to read."""


class Question(Protocol):
    """What a gate asks about: a `Gate`, an `ApprovalRequest`, or the form of one."""

    @property
    def run_id(self) -> str | None: ...  # noqa: D102
    @property
    def step_id(self) -> str | None: ...  # noqa: D102
    @property
    def item(self) -> int | None: ...  # noqa: D102
    @property
    def label(self) -> str | None: ...  # noqa: D102
    @property
    def approval_digest(self) -> str: ...  # noqa: D102
    @property
    def kind(self) -> GateKind: ...  # noqa: D102


def answer_command(asked: Question, *, verb: str = "approve", api: bool = False) -> str:
    """Return the command that answers at a gate, bound by `--digest` to the content that the gate asks about.

    A gate that asks how a call ended is answered by `plan resolve`. With `api` the command needs Prefect's API alone.
    """
    option, digest = " --api" if api else "", f" --digest {asked.approval_digest[:SHOWN_DIGITS]}"
    if asked.kind == "outcome":
        return resolve_command(str(asked.run_id), (asked.step_id or "", asked.item), label=asked.label) + option + digest
    return f"plan {verb} {asked.run_id}{option}{_place(asked)}{digest}"


def open_form_notice(asked: Question) -> str:
    """Return why no one-time code counts in the form of a Prefect server that demands no authentication, and where to give it instead."""
    return (
        "This Prefect server demands no authentication: whoever reaches it can read and send forms, so a one-time code in a form proves "
        f"nobody. Answer with `{answer_command(asked)} --code CODE`."
    )


def show_command(asked: Question, *, api: bool = False) -> str:
    """Return the command that prints everything that a gate asks about, and answers nothing."""
    return f"plan approve {asked.run_id}{' --api' if api else ''}{_place(asked)} --show"


def _place(asked: Question) -> str:
    step = f" --step {asked.step_id}" if asked.step_id is not None else ""
    return step + item_option(asked.item, asked.label)


def resume_command(run: PlanRun, *, offline: bool = False) -> str:
    """Return the command that resumes `run` where it ran; `offline` adds the option even where the run has not started yet."""
    return f"plan resume {run.id}{' --offline' if offline else offline_option(run)}"


def resume_asked(run: PlanRun) -> str:
    """Return the command that resumes `run`, which waits at a gate; without a flow run it runs without Prefect."""
    return resume_command(run, offline=run.flow_run_id is None)


def rollback_command(run: PlanRun) -> str:
    """Return the command that rolls back `run` where it ran."""
    return f"plan cancel {run.id} --rollback{offline_option(run)}"


def offline_option(run: PlanRun) -> str:
    """Return ` --offline` for a run that started without Prefect, else nothing."""
    return " --offline" if run.started_at is not None and run.flow_run_id is None else ""
