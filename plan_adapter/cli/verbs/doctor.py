"""`plan doctor`."""

import asyncio
import shutil
from typing import TYPE_CHECKING

from plan_adapter.cli import output
from plan_adapter.cli.exit_codes import ExitCode, UsageError
from plan_adapter.cli.records import FIND_LIMIT
from plan_adapter.cli.servers import available_server, is_ready, location_line, secret_locations
from plan_adapter.cli.sources import model_of, open_store, plan_of, policy_of_store, tools_of
from plan_adapter.cli.verbs.desk import why_not_installed
from plan_adapter.engine.connection import Server, use_server
from plan_adapter.engine.diagnosis import Finding, diagnose
from plan_adapter.gates.approval import names_without_group
from plan_adapter.gates.policy import STORES_SIGNERS, EffectivePolicy, effective_policy
from plan_adapter.local.settings import Settings
from plan_adapter.model.approvals import Gate
from plan_adapter.model.errors import InvalidPlanError, ModelError, NoServerError, StoreError, ToolDefinitionError
from plan_adapter.model.readable import counted, duration, listed, one_line
from plan_adapter.store.store import is_local
from plan_adapter.text.commands import ways_to_answer
from plan_adapter.validation import validate
from plan_adapter.validation.named_secrets import secret_inputs

if TYPE_CHECKING:
    from plan_adapter.agent.openai_model import Probe


def doctor(plan: str | None = None, /, *, tools: list[str] | None = None, model: bool = False, json: bool = False) -> int:
    """Check this installation, its server, store, tools, signers and model. Starts no server.

    Exits with 9 if the store or the server cannot be used, and with 1 if anything else is wrong.

    Args:
        plan: Also check the secrets of this plan: where each comes from, or that it is missing. No value is ever shown.
        tools: `package.module:name` of tools to check as well; may be repeated.
        model: Also ask the language model: whether and how fast it answers, in what form, and what its server refuses. Costs a few tokens.
        json: Print one JSON object per finding.
    """
    settings = Settings()
    own_checks = (lambda: _check_tools(tools or []), lambda: _check_model(settings, ask=model))
    policy_checks = (lambda: _check_policy(settings), lambda: _check_signatures(_read_policy(settings)[0]))
    findings = diagnose(settings, checks=(lambda: _check_store(settings), *policy_checks, *own_checks))
    server = _running_server(settings)
    if server is not None:
        findings += [*_check_store_place(settings, server), *_check_forms(settings, server)]
    findings += _check_desk(settings)
    findings += [] if plan is None else _check_plan(plan, tools or [], settings)
    for finding in findings:
        if json:
            output.json_line("check", {"ok": finding.ok, "what": finding.what, "hint": finding.hint})
        else:
            output.line(f"{'ok ' if finding.ok else 'BAD'} {finding.what}" + (f"\n    {finding.hint}" if finding.hint else ""))
    return _code_of(findings)


def _code_of(findings: list[Finding]) -> ExitCode:
    """Return the exit code: UNAVAILABLE before FAILED."""
    if any(finding.is_unavailable for finding in findings):
        return ExitCode.UNAVAILABLE
    return ExitCode.DONE if all(finding.ok for finding in findings) else ExitCode.FAILED


def _check_store(settings: Settings) -> Finding:
    async def describe_store() -> str:
        async with open_store(settings) as store:
            await store.now()
            return store.label

    try:
        return Finding(ok=True, what=f"{asyncio.run(describe_store())} answers")
    except StoreError as error:
        return Finding(ok=False, what=str(error), is_unavailable=True)


def _running_server(settings: Settings) -> Server | None:
    """Return the server that answers, or None; `diagnose` says why."""
    try:
        return available_server(settings)
    except NoServerError:
        return None


def _check_store_place(settings: Settings, server: Server) -> list[Finding]:
    """Return a finding if workers on the machine of the Prefect server cannot use the store."""
    try:
        if not is_local(settings.store_url) or server.is_on_this_machine:
            return []
    except StoreError:  # another check reports it
        return []
    hint = "workers elsewhere cannot use it: set PLAN_ADAPTER_DATABASE_URL to a PostgreSQL database; `plan guide scaling`"
    return [Finding(ok=True, what="the store is a file of this machine, and the Prefect server is on another", hint=hint)]


MAX_FORMS = 50
"""How many open gates are checked, newest first. Each costs a request."""


def _check_forms(settings: Settings, server: Server) -> list[Finding]:
    """Return whether Prefect has the forms of the open gates, if there are any."""

    async def check() -> list[Finding]:
        async with open_store(settings) as store:
            gates = [gate for gate in (await store.gates.find(limit=FIND_LIMIT))[::-1] if gate.flow_run_id is not None][:MAX_FORMS]
        if not gates:
            return []
        from plan_adapter.engine.gate_forms import lacks_form  # imports Prefect

        with use_server(server):
            missing = [gate for gate in gates if await lacks_form(gate)]
        if not missing:
            return [Finding(ok=True, what=f"Prefect has a form for {counted(len(gates), 'open gate')}")]
        what = "Prefect lacks the form of the gate of {}: it cannot be answered in the UI"
        return [Finding(ok=False, what=what.format(one_line(gate.name)), hint=_how_to_answer(gate)) for gate in missing]

    try:
        return asyncio.run(check())
    except (StoreError, NoServerError):  # another check reports it
        return []


def _check_desk(settings: Settings) -> list[Finding]:
    """Return how people sign in to `plan desk` and where it sends messages, or what is missing. Empty if no setting is about it."""
    if not any(name.startswith("desk_") for name in settings.model_fields_set):
        return []
    if not_installed := why_not_installed():
        return [Finding(ok=False, what=f"PLAN_ADAPTER_DESK_… is set, but {not_installed}")]
    # These import FastAPI.
    from plan_adapter.cli.desk.messages import channels_of
    from plan_adapter.cli.desk.sign_in import OpenIdSignIn, sign_in_of
    from plan_adapter.cli.desk.slack import Slack

    found = list[Finding]()
    try:
        sign_in = sign_in_of(settings, address=settings.desk_url or "")
        how = "with a one-time code or an SSH signature only, on this machine: no sign-in is set"
        if sign_in is not None:
            at = settings.desk_oidc_issuer if isinstance(sign_in, OpenIdSignIn) else f"the proxy that sends {settings.desk_proxy_header}"
            how = f"after a sign-in at {one_line(str(at))} (`known_by: {sign_in.known_by}`)"
        is_missing = sign_in is not None and settings.desk_url is None
        hint = "set PLAN_ADAPTER_DESK_URL to the address that people use, unless all of them use this machine" if is_missing else ""
        found.append(Finding(ok=True, what=f"people answer at `plan desk` {how}", hint=hint))
    except UsageError as error:
        found.append(Finding(ok=False, what=str(error)))
    try:
        for channel in channels_of(settings):
            what = f"`plan desk` sends what waits to {channel.label}"
            if isinstance(channel, Slack):
                what += f", with buttons for {listed(sorted(channel.users.values()), 5)}" if channel.users else ", without buttons"
            found.append(Finding(ok=True, what=what))
    except UsageError as error:
        found.append(Finding(ok=False, what=str(error)))
    return found


def _how_to_answer(gate: Gate) -> str:
    return f"answer it {ways_to_answer(gate, gate.gate_policy.known_by)}"


def _check_tools(imports: list[str]) -> Finding:
    try:
        return Finding(ok=True, what=f"{len(tools_of(imports))} tools")
    except ToolDefinitionError as error:
        return Finding(ok=False, what=str(error))


def _check_model(settings: Settings, *, ask: bool) -> Finding:
    """Return whether a language model is configured, and with `ask` how it answers."""
    try:
        model = model_of(settings)
    except UsageError as error:
        is_unset = not settings.model
        what = "no language model is configured: `plan draft` needs one" if is_unset else str(error)
        return Finding(ok=is_unset and not ask, what=what, hint=str(error) if is_unset else "")
    label = f"language model {model.label}"
    if not ask:
        return Finding(ok=True, what=f"{label} is configured", hint="`plan doctor --model` asks it")

    async def probe() -> "Probe":
        try:
            return await model.probe()
        finally:
            await model.aclose()

    try:
        found = asyncio.run(probe())
    except ModelError as error:
        return Finding(ok=False, what=str(error))
    took = f"{duration(found.seconds * 1000)}, {counted(found.requests, 'request')}"
    what = f"{label} answers as `{one_line(found.model)}` on the rung {found.rung} ({took})"
    return Finding(ok=True, what=what, hint=f"refuses {', '.join(found.refuses)}" if found.refuses else "")


def _check_plan(plan: str, imports: list[str], settings: Settings) -> list[Finding]:
    """Return whether each secret of a plan can be found, and which of its approvers and operators are no group."""
    try:
        validated = validate(asyncio.run(plan_of(plan)), tools_of(imports))
    except InvalidPlanError as error:
        what = f"{plan} has {counted(len(error.problems), 'problem')}, so its secrets were not checked"
        return [Finding(ok=False, what=what, hint=f"`plan validate {plan}` lists them")]
    policy, _ = _read_policy(settings)
    where = "PLAN_ADAPTER_GROUPS" if policy.number is None else "the store's policy"
    hint = f"if it is meant as a group, {where} must list its members; until then only a person with that name may answer"
    findings = [
        Finding(
            ok=True,
            what=f"`{one_line(name)}`, an approver or operator, counts as a person: no group has that name",
            hint=hint,
        )
        for name in names_without_group(validated.plan, policy)
    ]
    named = [
        Finding(
            ok=True,
            what=f"the input `{name}` names a secret, which each run gives",
            hint=f"`plan preview {plan} --input {name}=NAME` says where it would come from",
        )
        for name in secret_inputs(validated.plan.inputs)
        if validated.plan.inputs[name].default is None
    ]
    if not (validated.secrets or named):
        return [*findings, Finding(ok=True, what=f"{plan} uses no secrets")]
    hint = "put it in one of these places"
    return [*findings, *named] + [
        Finding(ok=ok, what=location_line(location, validated), hint="" if ok else hint)
        for location in secret_locations(validated.secrets, settings)
        for ok in [is_ready(location, validated)]
    ]


def _read_policy(settings: Settings) -> tuple[EffectivePolicy, StoreError | None]:
    """Return the policy of the settings and the store combined; with an error, that of the settings alone."""
    try:
        return asyncio.run(policy_of_store(settings)), None
    except StoreError as error:
        return effective_policy(settings), error


def _check_policy(settings: Settings) -> Finding:
    """Return which policy applies to every plan."""
    policy, error = _read_policy(settings)
    if error is not None:
        return Finding(ok=False, what=f"the store's policy cannot be read: {error}")
    if policy.number is None:
        what = "the store has no policy: the environment of each process decides who may do what"
        if settings.groups:
            what += "; PLAN_ADAPTER_GROUPS of the process that runs a plan says who is in a group, not that of whoever answers"
        return Finding(ok=True, what=what, hint="`plan policy set FILE` stores one that the environment cannot loosen")
    hint = "`plan policy show` prints it; the environment can only be stricter"
    return Finding(ok=True, what=f"version {policy.number} of the store's policy applies to every plan", hint=hint)


def _check_signatures(policy: EffectivePolicy) -> Finding:
    """Return whether signed answers can be verified here."""
    can_sign, signers = shutil.which("ssh-keygen") is not None, policy.allowed_signers
    if signers is None:
        is_required = policy.known_by == ("ssh_signature",)
        cause = "PLAN_ADAPTER_ALLOWED_SIGNERS names no file" if policy.number is None else "the store's policy has no `allowed_signers`"
        what = f"{cause}: signed answers (`plan approve --sign`) are refused"
        return Finding(ok=not is_required, what=what, hint="the policy accepts no other answer" if is_required else "")
    if not can_sign:
        return Finding(ok=False, what="there is no `ssh-keygen`: no signature can be verified", hint="apt install openssh-client")
    if isinstance(signers, str):
        where, text = STORES_SIGNERS, signers
    else:
        file = signers.expanduser()
        where = f"file of allowed signers {file}"
        try:
            text = file.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            what = f"the file of allowed signers {file} cannot be read: {error.strerror or error}"
            return Finding(ok=False, what=what, hint="PLAN_ADAPTER_ALLOWED_SIGNERS names it; write a line per key: `ana ssh-ed25519 AAAA…`")
    keys = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    hint = "" if keys else "write a line for each key: `ana ssh-ed25519 AAAA…`"
    return Finding(ok=bool(keys), what=f"{where}: {counted(len(keys), 'key')}", hint=hint)
