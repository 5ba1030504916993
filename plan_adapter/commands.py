"""The commands that messages tell people to type. Look here to change how a message refers to a run, a gate or a call."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, assert_never

from plan_adapter.approvals import Decision, GateKind
from plan_adapter.options import CallKind
from plan_adapter.readable import call_name, item_option, listed
from plan_adapter.record import PlanRun

NAMED = 20
"""The most steps that one list names."""

SHOWN_DIGITS = 12
"""How many characters of a digest a command shows: enough to tell two versions of a gate's content apart, and short enough to read."""


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
    @property
    def call_kind(self) -> CallKind: ...  # noqa: D102


def unit_names(units: Iterable[tuple[str, int | None]], labels: Mapping[tuple[str, int | None], str]) -> list[str]:
    """Return the names of steps, and of items by their labels, formatted as code."""
    return [f"`{call_name(*unit, labels.get(unit))}`" for unit in units]


def names(step_ids: Iterable[str]) -> str:
    """Return the ids as code, separated by commas. A long list is cut after `NAMED` ids."""
    return listed([f"`{step_id}`" for step_id in step_ids], NAMED)


def resolve_command(
    run_id: str, unit: tuple[str, int | None], words: str = "done|again|abort", *, label: str | None = None, kind: CallKind = "step"
) -> str:
    """Return the command that records the outcome of a call whose outcome is unknown."""
    step_id, item = unit
    return f"plan resolve {run_id} {step_id} {words}{item_option(item, label)}{' --rollback' if kind == 'rollback' else ''}"


def answer_command(asked: Question, decision: Decision = "approve", *, api: bool = False) -> str:
    """Return the command that gives this answer to a gate. `--digest` binds the answer to the content that the gate shows.

    A question is answered with `plan answer`, and an outcome gate with `plan resolve`. With `api`, the command needs only Prefect's API.
    """
    option, digest = " --api" if api else "", f" --digest {asked.approval_digest[:SHOWN_DIGITS]}"
    if asked.kind == "outcome":
        unit = (asked.step_id or "", asked.item)
        return resolve_command(str(asked.run_id), unit, label=asked.label, kind=asked.call_kind) + option + digest
    where = f"{asked.run_id}{option}{_place(asked)}{digest}"
    match decision:
        case "approve" if asked.kind == "question":
            return f"plan answer {asked.run_id} {asked.step_id}{option}{digest} FIELD=VALUE…"
        case "approve":
            return f"plan approve {where}"
        case "reject":
            return f"plan reject {where}"
        case "request_changes":
            return f"plan reject {where} --changes --note …"
        case _:
            assert_never(decision)


def open_form_notice(asked: Question) -> str:
    """Return why a form on a Prefect server without authentication accepts no one-time code, and where to give the code instead."""
    return (
        "This Prefect server demands no authentication: whoever reaches it can read and send forms, so a one-time code in a form proves "
        f"nobody. Answer with `{answer_command(asked)} --code CODE`."
    )


def show_command(asked: Question, *, api: bool = False) -> str:
    """Return the command that prints everything a gate asks about and answers nothing; of an outcome gate, the run with its calls."""
    if asked.kind == "outcome":
        return f"plan show {asked.run_id}"
    if asked.kind == "question":
        return f"plan answer {asked.run_id} {asked.step_id}{' --api' if api else ''} --show"
    return f"plan approve {asked.run_id}{' --api' if api else ''}{_place(asked)} --show"


def _place(asked: Question) -> str:
    step = f" --step {asked.step_id}" if asked.step_id is not None else ""
    return step + item_option(asked.item, asked.label)


def resume_command(run: PlanRun, *, offline: bool = False, tools: Sequence[str] = ()) -> str:
    """Return the command that resumes `run` where it ran before.

    `offline` means that the run, which may not have started yet, is known to run without Prefect. `tools` are the values of `--tools` with
    which it was started, as far as the caller knows them: no record has them.
    """
    return f"plan resume {run.id}{' --offline' if offline else offline_option(run)}{tools_option(tools)}"


def tools_option(tools: Sequence[str]) -> str:
    """Return the options that name `tools`, import strings, or an empty text without any."""
    return "".join(f" --tools {shlex.quote(name)}" for name in tools)


def resume_asked(run: PlanRun, *, tools: Sequence[str] = ()) -> str:
    """Return the command that resumes `run` after somebody was asked at its gate. A run that has no flow run by then never gets one."""
    return resume_command(run, offline=run.flow_run_id is None, tools=tools)


def rollback_command(run: PlanRun, *, tools: Sequence[str] = ()) -> str:
    """Return the command that rolls `run` back where it ran. `tools` are as for `resume_command`."""
    return f"plan cancel {run.id} --rollback{offline_option(run)}{tools_option(tools)}"


def offline_option(run: PlanRun) -> str:
    """Return ` --offline` if `run` started without Prefect, which a resume would otherwise use. Return an empty text for any other run."""
    return " --offline" if run.started_at is not None and run.flow_run_id is None else ""
