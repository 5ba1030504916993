"""A runbook as a Prefect deployment: its form, its description, and what a worker needs to run it."""

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import packages_distributions, version
from pathlib import Path
from typing import cast

from pydantic import JsonValue

from plan_adapter.engine.deployments import DeploymentOptions, PlannedDeployment, RunbookDeployment
from plan_adapter.gates.approval import gate_policy_of, gated_steps, requires_approval
from plan_adapter.gates.policy import EffectivePolicy
from plan_adapter.local.secrets import SECRETS_DIR, SecretLocation, variable_name
from plan_adapter.local.settings import Settings
from plan_adapter.model.errors import InvalidPlanError
from plan_adapter.model.plan import ExecutionPlan, Step
from plan_adapter.model.problems import Problem
from plan_adapter.model.readable import code, duration, listed, prose, safe_name, words
from plan_adapter.model.triggers import EVENT_PARAMETER
from plan_adapter.runs.secret_lookup import locate_secrets
from plan_adapter.text.plan_graph import FINAL_LABEL
from plan_adapter.text.plan_text import order_section
from plan_adapter.text.preview import preview_plan
from plan_adapter.validation import ValidatedPlan
from plan_adapter.validation.inputs import form_schema, read_values
from plan_adapter.validation.named_secrets import name_secrets

ENTRYPOINT = "plan_adapter.deployed.plan_"
"""The beginning of the entrypoint of every deployed runbook; the digest of the plan follows."""
SSH_CONFIG = "PLAN_ADAPTER_SSH_CONFIG"
MAX_STEPS = 50
"""How many steps the description of a deployment lists."""


def runbook_deployment(
    validated: ValidatedPlan, policy: EffectivePolicy, *, inputs: Mapping[str, str], options: DeploymentOptions
) -> RunbookDeployment:
    """Return `validated` as a deployment. Save the plan in the store before you deploy it: runs load it from there.

    `inputs` are texts: the values of every run that gives no others. Raises InvalidPlanError for values that do not fit, and for a schedule
    that leaves a required input without a value.
    """
    plan = validated.plan
    values, problems = read_values(plan.inputs, inputs, from_text=True)
    problems = [_mention_schedule(problem) for problem in problems if options.schedule is not None or problem.code != "missing-input"]
    if problems:
        raise InvalidPlanError(problems)
    return RunbookDeployment(
        name=safe_name(plan.name),
        digest=validated.digest,
        entrypoint=f"{ENTRYPOINT}{validated.digest}",
        description=_description(validated, policy),
        form=_form(plan),
        tags=tuple(plan.tags),
        tool_packages=_tool_packages(validated),
        inputs={name: values[name] for name in inputs} if inputs else None,
        options=options,
        triggers=tuple(plan.triggers),
    )


def _form(plan: ExecutionPlan) -> dict[str, JsonValue]:
    """Return the schema of the deployment's form. With triggers, a flow run that an event starts needs none of the inputs.

    The event is no property, so that no form asks for it. Prefect then asks for the required inputs all the same. It checks a flow run that
    an automation starts by the same schema, so `required` cannot name them, and its form labels them as optional: their descriptions say
    that they are required.
    """
    form = form_schema(plan.inputs)
    names = [name for name, declared in plan.inputs.items() if declared.is_required]
    if not plan.triggers or not names:
        return form
    properties = cast("dict[str, dict[str, JsonValue]]", form["properties"])
    never_null: dict[str, JsonValue] = {name: {"type": properties[name]["type"]} for name in names if "type" in properties[name]}
    by_people: dict[str, JsonValue] = {"required": list[JsonValue](names), "properties": never_null}
    for name in names:
        properties[name] = {**properties[name], "description": f"Required. {properties[name].get('description', '')}".rstrip()}
    return {**form, "required": [], "if": {"not": {"required": [EVENT_PARAMETER]}}, "then": by_people}


def relative_paths(plan: ExecutionPlan) -> list[str]:
    """Return, as Markdown, each path in `plan` that depends on the folder in which a run works: under a worker, a new empty one."""
    found = list[str]()
    for at, step in plan.places.items():
        calls = {at: (step.tool_name, step.parameters)}
        if step.rollback is not None:
            calls[f"{at}.rollback"] = (step.rollback.tool_name, step.rollback.parameters)
        for place, (tool_name, parameters) in calls.items():
            found += [
                f"{code(path)} ({place}.parameters.{name})" for name, path in _paths(tool_name or "", parameters) if _is_relative(path)
            ]
    return found


def _paths(tool_name: str, parameters: Mapping[str, JsonValue]) -> Iterator[tuple[str, str]]:
    """Yield the parameters of a built-in tool that are paths, by name."""
    argv, url = parameters.get("argv"), parameters.get("url")
    if tool_name == "run_command" and isinstance(argv, list) and argv and "/" in str(argv[0]):
        yield "argv[0]", str(argv[0])
    if tool_name in ("run_command", "bash"):
        yield "cwd", str(parameters.get("cwd") or "/")
    if tool_name in ("sql_query", "sql_execute") and isinstance(url, str) and url.startswith("sqlite:///"):
        yield "url", url.removeprefix("sqlite:///")
    if local := _FILE_PARAMETERS.get(tool_name):
        yield local, str(parameters.get(local) or "/")


_FILE_PARAMETERS = {"read_file": "path", "write_file": "path", "copy_to": "path", "copy_from": "to"}
"""The parameter of each tool that is a path in the files folder."""


@dataclass(frozen=True, slots=True)
class ShellNeeds:
    """What the runs of a deployment need from the shell that their worker, or `plan serve`, starts in."""

    secrets: tuple[str, ...] = ()  # as phrases that name them
    missing: tuple[str, ...] = ()  # those of them that this process does not have
    variables: tuple[str, ...] = ()  # settings of this process, as `NAME=PATH`, or only `NAME` for one that is a secret


async def shell_needs(validated: ValidatedPlan, planned: PlannedDeployment, settings: Settings) -> ShellNeeds:
    """Return the needs of a deployment's runs from the shell of their worker. Secrets are looked up here, and their values are not kept.

    Secrets of Prefect's blocks and of entry points do not depend on a shell, so they are left out. So are secrets that a step creates, and
    what the deployment itself sets in the environment of its runs.
    """
    env: Mapping[str, object] = planned.create.job_variables.get("env", {})
    bound = name_secrets(validated, planned.create.parameters)
    names = bound.secrets - validated.created_secrets.creators.keys()
    found = [each for each in await locate_secrets(names, settings) if each.problem is not None or each.variable is not None]
    found = [each for each in found if variable_name(each.name) not in env]
    texts = {each.name: _secret_text(each, validated, bound) for each in found}
    paths = {SECRETS_DIR: settings.secrets_dir, SSH_CONFIG: settings.ssh_config if _connects(validated) else None}
    variables = dict.fromkeys(each.variable for each in found if each.variable is not None)
    if paths[SSH_CONFIG] is not None:
        variables[SSH_CONFIG] = None
    return ShellNeeds(
        secrets=tuple(texts.values()),
        missing=tuple(texts[each.name] for each in found if each.problem is not None and each.is_known),
        variables=tuple(_assignment(name, paths.get(name)) for name in variables if name not in env),
    )


def _secret_text(location: SecretLocation, validated: ValidatedPlan, bound: ValidatedPlan) -> str:
    """Return a phrase that names a secret, as Markdown. A missing one that only the deployment names is not shown: it may be the value."""
    if location.problem is None or location.name in validated.secrets:
        return f"the secret {code(location.name)}"
    given = [name for name, secret in bound.named_secrets.get("", {}).items() if secret == location.name]
    return f"the secret that the input {code(given[0])} names" if given else f"the secret {code(location.name)}"


def _connects(validated: ValidatedPlan) -> bool:
    """Return whether a built-in tool of the plan connects to hosts with OpenSSH."""
    return any(definition["name"] in ("ssh", "copy_to", "copy_from") for definition in validated.definitions)


def _assignment(name: str, path: Path | None) -> str:
    """Return a setting as in a shell. A relative path would not be found from the folder of a run."""
    return name if path is None else f"{name}={shlex.quote(str(path.expanduser().absolute()))}"


def _is_relative(path: str) -> bool:
    return not path.startswith(("/", "~", "${{"))


def _mention_schedule(problem: Problem) -> Problem:
    if problem.code != "missing-input":
        return problem
    message = f"{problem.message}, and a scheduled run cannot ask for it"
    return Problem(problem.code, at=problem.at, message=message, hint=f"{problem.hint}, or a default in the plan")


def _description(validated: ValidatedPlan, policy: EffectivePolicy) -> str:
    """Return Markdown: what the plan does, who approves, what cannot be undone, what it needs, how long it may take, and its steps."""
    plan = validated.plan
    preview = preview_plan(validated, inputs=None, approval_digest=None, requires_approval=False, gate_effects=policy.gate_effects)
    final = [code(step.step.id) for step in preview.irreversible if not step.step.inner]
    facts = [f"**Approval**: {_describe_approval(validated, policy)}"]
    events = list(dict.fromkeys(code(trigger.event) for trigger in plan.triggers))
    facts += [f"**Started by**: {listed(events, 20)}"] if events else []
    facts += [f"**Cannot be undone**: {listed(final, 20)}"] if final else []
    facts += [f"**Secrets**: {listed([code(name) for name in preview.secrets], 20)}"] if preview.secrets else []
    facts += [f"**Takes at most**: {duration(preview.worst_case_ms)}, without waits"] if preview.worst_case_ms is not None else []
    lines, finals = list[str](), {step.id for step in plan.finally_}
    for step in plan.all_steps[:MAX_STEPS]:
        if step.id in finals and FINAL_LABEL not in lines:
            lines += ["", FINAL_LABEL, ""]
        indent = "  " * _depth(step, validated)
        text = f": {prose(step.description)}" if step.description else ""
        lines.append(f"{indent}- {code(step.local_id)} ({_describe_call(step, validated)}){text}")
    if len(plan.all_steps) > MAX_STEPS:
        lines += ["", f"… and {len(plan.all_steps) - MAX_STEPS} more steps"]
    order = order_section(validated, preview, gated_steps(validated, policy))
    return "\n".join([prose(plan.description), "", *(line for fact in facts for line in (fact, "")), "**Steps**", "", *lines, "", *order])


def _depth(step: Step, validated: ValidatedPlan) -> int:
    return 0 if step.outer is None else 1 + _depth(validated.steps[step.outer], validated)


def _describe_call(step: Step, validated: ValidatedPlan) -> str:
    if step.ask is not None:
        return "question"
    if step.is_group:
        return "for each item"
    if step.tool_name is None:
        return f"plan {code(step.plan)}" if step.plan is not None else step.called
    return f"{words(step.tool_name)}, {validated.effect_of(step.id)}"


def _describe_approval(validated: ValidatedPlan, policy: EffectivePolicy) -> str:
    gate_policy = gate_policy_of(validated.plan, policy, requested_by="")
    who = "anyone" if gate_policy.approvers is None else listed([words(name) for name in gate_policy.approvers], 20) or "nobody"
    if gate_policy.quorum > 1:
        who = f"{gate_policy.quorum} of {who}"
    gated = [code(step_id) for step_id in gated_steps(validated, policy)]
    if requires_approval(validated.plan, policy):
        return f"each run waits for an approval by {who}" + (f" and asks again before {listed(gated, 20)}" if gated else "")
    return f"a run asks before {listed(gated, 20)}; {who} may answer" if gated else "a run needs none"


def _tool_packages(validated: ValidatedPlan) -> dict[str, str]:
    """Return the package, with its version, that defines each tool that this package does not define itself."""
    modules = {name: tool.source.__module__.partition(".")[0] for name, tool in validated.used_tools.items()}
    foreign = {name: module for name, module in modules.items() if module != "plan_adapter"}
    if not foreign:
        return {}
    distributions = _distributions()
    return {name: _package(module, distributions) for name, module in sorted(foreign.items())}


@cache
def _distributions() -> Mapping[str, list[str]]:
    return packages_distributions()  # reads files of every installed package


def _package(module: str, distributions: Mapping[str, list[str]]) -> str:
    if module not in distributions:
        return f"the module `{module}`"
    package = distributions[module][0]
    return f"the package `{package}` {version(package)}"
