"""The commands that messages tell people to type. Look here to change how a message refers to a run, a gate or a call."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, assert_never

from plan_adapter.model.approvals import Decision, GateKind, Resolution
from plan_adapter.model.inventory import ON
from plan_adapter.model.language import tr
from plan_adapter.model.options import CallKind
from plan_adapter.model.plan import ExecutionPlan
from plan_adapter.model.readable import as_text, call_name, item_option, redacted
from plan_adapter.model.record import PlanRun
from plan_adapter.model.status import StepStatus

MAX_NAMES = 20
"""The most steps that one list names."""

SHOWN_DIGITS = 12
"""How many characters of a digest a command shows: enough to tell two versions of a gate's content apart, and short enough to read."""


ANY_FIELDS = "FIELD=VALUE…"
"""The fields of an answer, in a command that does not name them."""


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


ANY_RESOLUTION = "done|again|abort"
"""The answer about an unknown outcome, in a command that does not choose one."""


def resolutions_in_words(*, is_rollback: bool = False) -> dict[Resolution, str]:
    """Return the meaning and the effect of each answer about an unknown outcome, by answer. `is_rollback`: the call was a rollback."""
    return {
        "done": tr("it took effect, and is not repeated"),
        "again": tr("it did not, and is repeated; if you are wrong, it happens twice"),
        "abort": tr("you cannot tell: nothing else is undone") if is_rollback else tr("you cannot tell: the run ends, as cancelled"),
    }


def resolve_command(
    run_id: str, unit: tuple[str, int | None], resolution: str = ANY_RESOLUTION, *, label: str | None = None, kind: CallKind = "step"
) -> str:
    """Return the command that records the outcome of a call with an unknown outcome."""
    step_id, item = unit
    return f"plan resolve {run_id} {step_id} {resolution}{item_option(item, label)}{' --rollback' if kind == 'rollback' else ''}"


def answer_command(question: Question, decision: Decision = "approve", *, api: bool = False) -> str:
    """Return the command that gives this answer to a gate. `--digest` binds the answer to the content that the gate shows.

    A question is answered with `plan answer`, and an outcome gate with `plan resolve`. With `api`, the command needs only Prefect's API.
    """
    option, digest = " --api" if api else "", f" --digest {question.approval_digest[:SHOWN_DIGITS]}"
    if question.kind == "outcome":
        unit = (question.step_id or "", question.item)
        return resolve_command(str(question.run_id), unit, label=question.label, kind=question.call_kind) + option + digest
    where = f"{question.run_id}{_step_arguments(question)}{option}{digest}"
    match decision:
        case "approve" if question.kind == "question":
            return f"plan answer {question.run_id} {question.step_id}{option}{digest} {ANY_FIELDS}"
        case "approve":
            return f"plan approve {where}"
        case "reject":
            return f"plan reject {where}"
        case "request_changes":
            return f"plan reject {where} --changes --note …"
        case _:
            assert_never(decision)


PROOF_OPTIONS: Mapping[str, str] = {"ssh_signature": "--sign", "totp": "--code"}
"""The option of a command that gives each proof of identity that has one."""


def options_of_proofs(known_by: Sequence[str] | None) -> list[str]:
    """Return the options that prove who types a command, as far as a gate that accepts the proofs `known_by` accepts them."""
    return [option for proof, option in PROOF_OPTIONS.items() if known_by is None or proof in known_by]


def command_at_gate(question: Question, known_by: Sequence[str] | None, *, api: bool = False) -> str | None:
    """Return the command that answers, as code, with the options it needs; None if no command gives a proof that the gate accepts.

    With `api`, the command needs only Prefect's API, and proves no account.
    """
    command = f"`{answer_command(question, api=api)}`"
    if known_by is None or ("form" if api else "os_user") in known_by:
        return command
    options = options_of_proofs(known_by)
    return tr("{command} (with {options})", command=command, options=tr(" or ").join(options)) if options else None


def ways_to_answer(question: Question, known_by: Sequence[str] | None, *, form: str = "") -> str:
    """Return how to answer at a gate that accepts the proofs `known_by`, after the word "answer". `form` says where its form is."""
    ways = [form] if form and (known_by is None or not {"form", "totp"}.isdisjoint(known_by)) else []
    if (command := command_at_gate(question, known_by)) is not None:
        ways.append(tr("with {command}", command=command))
    if known_by is not None and not {"sign_in", "proxy"}.isdisjoint(known_by):
        ways.append(tr("at `plan desk`"))
    if known_by is not None and "slack" in known_by and question.kind == "approval":
        ways.append(tr("with a button in Slack"))
    return tr(", or ").join(ways) or tr("from a program: no page and no command gives the proof that this gate needs")


def take_back_command(question: Question, to: str) -> str:
    """Return the command that takes back that the person `to` answers at a gate."""
    return f"plan approve {question.run_id}{_step_arguments(question)} --take-back {shlex.quote(to)}"


def open_form_notice(question: Question) -> str:
    """Return why a form accepts no one-time code on a Prefect server without authentication, and where to give the code instead."""
    return tr(
        "This Prefect server demands no authentication: whoever reaches it can read and send forms, so a one-time code in a form proves "
        "nobody's identity. Answer with `{command} --code CODE`.",
        command=answer_command(question),
    )


def show_command(question: Question, *, api: bool = False) -> str:
    """Return the command that prints what a gate asks about without answering it. For an outcome gate, it prints the run with its calls."""
    if question.kind == "outcome":
        return f"plan show {question.run_id}"
    if question.kind == "question":
        return f"plan answer {question.run_id} {question.step_id}{' --api' if api else ''} --show"
    return f"plan approve {question.run_id}{_step_arguments(question)}{' --api' if api else ''} --show"


def _step_arguments(question: Question) -> str:
    step = f" {question.step_id}" if question.step_id is not None else ""
    return step + item_option(question.item, question.label)


def resume_command(run: PlanRun, *, offline: bool = False, tools: Sequence[str] = ()) -> str:
    """Return the command that resumes `run` where it ran before.

    `offline` means that the run uses no Prefect server, even if it has not started yet. `tools` are the values of `--tools` that it was
    started with, if the caller knows them; the store does not record them.
    """
    return f"plan resume {run.id}{' --offline' if offline else offline_option(run)}{tools_option(tools)}"


def tools_option(tools: Sequence[str]) -> str:
    """Return a `--tools` option for each import string in `tools`."""
    return "".join(f" --tools {shlex.quote(name)}" for name in tools)


def resume_command_after_gate(run: PlanRun, *, tools: Sequence[str] = ()) -> str:
    """Return the command that resumes `run` after its gate has opened. A run without a flow run at that point never gets one."""
    return resume_command(run, offline=run.flow_run_id is None, tools=tools)


def rollback_command(run: PlanRun, *, tools: Sequence[str] = ()) -> str:
    """Return the command that rolls `run` back, with or without Prefect, as it ran. For `tools`, see `resume_command`."""
    return f"plan rollback {run.id}{offline_option(run)}{tools_option(tools)}"


MAX_INPUT_CHARACTERS = 200
"""How long the inputs of a run may be that a command names."""


MAX_HOSTS = 5
"""How many hosts a command names."""


def _hosts_left(run: PlanRun, plan: ExecutionPlan) -> list[str]:
    """Return the hosts of `run` that its groups did not complete, in order. Empty if an item of a group is no host."""
    known, left = set[str]() if plan.inventory is None else set(plan.inventory.hosts), dict[str, None]()
    for group in plan.steps:
        if not group.is_group or group.id not in {step.id for step in run.steps}:
            continue
        items = run.step(group.id).items
        goes_through_hosts = "hosts(" in (group.for_each or "") and group.label in (None, "${{ item.name }}")
        if not goes_through_hosts or not known.issuperset(item.label for item in items):
            return []
        left |= {item.label: None for item in items if item.status is not StepStatus.COMPLETED}
    return [*left]


def _new_run_command(run: PlanRun, plan: ExecutionPlan | None = None, hosts: Sequence[str] = ()) -> str:
    """Return the command that runs the plan of `run` again, with its inputs if they are short and without secrets.

    With `plan`, inputs with their defaults are left out. With `hosts`, it runs on these only. It names them if they are few.
    """
    defined = {} if plan is None else plan.inputs
    given = {name: value for name, value in run.inputs.items() if not hosts or name != ON}
    given = {name: value for name, value in given.items() if name not in defined or defined[name].default != value}
    texts = {name: as_text(value) for name, value in given.items()}
    on = f" --on {shlex.quote(','.join(hosts)) if len(hosts) <= MAX_HOSTS else 'HOST,…'}" if hosts else ""
    inputs = " --inputs FILE"
    secrets = [value for name, value in given.items() if name in defined and defined[name].type == "secret" and isinstance(value, str)]
    if sum(map(len, texts.values())) < MAX_INPUT_CHARACTERS and redacted(given, expressions=False, names=secrets) == given:
        inputs = "".join(f" --input {shlex.quote(f'{name}={text}')}" for name, text in texts.items())
    return f"plan run {run.digest[:SHOWN_DIGITS]}{inputs}{on}{offline_option(run)}"


def new_run_hint(run: PlanRun, plan: ExecutionPlan | None = None) -> str:
    """Return the hint for a run whose failed items were rolled back, each by itself. With its `plan`, it names the hosts that remain."""
    hosts = [] if plan is None or ON not in run.inputs else _hosts_left(run, plan)
    why, command = tr("a resume would call nothing, because the failed items were rolled back"), _new_run_command(run, plan, hosts)
    if not hosts:
        return tr("{why}: `{command}` starts a new run; give it only the items that remain", why=why, command=command)
    if len(hosts) <= MAX_HOSTS:
        return tr("{why}: `{command}` starts a new run on the hosts that remain", why=why, command=command)
    return tr(
        "{why}: `{command}` starts a new run; name the {count} hosts that remain, which `plan show {run}` lists",
        why=why,
        command=command,
        count=len(hosts),
        run=run.id,
    )


def rolled_back_hint(run: PlanRun) -> str:
    """Return the hint for a run that was rolled back."""
    return tr("a run that was rolled back cannot be resumed: `{command}` starts a new one", command=_new_run_command(run))


def next_after_outcome(run: PlanRun, *, tools: Sequence[str] = (), rollback_due: bool) -> str:
    """Return the command that follows the record of an unknown outcome. If a rollback is due, there are two: roll back, or finish."""
    resume = resume_command(run, tools=tools)
    if not rollback_due:
        return f"`{resume}`"
    return tr("`{rollback}` to undo what was done, or `{resume}` to finish", rollback=rollback_command(run, tools=tools), resume=resume)


def rollback_hint(run: PlanRun) -> str:
    """Return the hint for a run that is to be rolled back, once all its outcomes are known."""
    back, resume = rollback_command(run), resume_command(run)
    return tr("`{rollback}` rolls the run back; to finish it instead, `{resume}`", rollback=back, resume=resume)


def offline_option(run: PlanRun) -> str:
    """Return ` --offline` if `run` started without Prefect, and an empty text otherwise."""
    return " --offline" if run.started_at is not None and run.flow_run_id is None else ""
