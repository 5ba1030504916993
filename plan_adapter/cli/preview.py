"""`plan preview`."""

import asyncio
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from plan_adapter.cli import output
from plan_adapter.cli.codes import ExitCode, UsageError
from plan_adapter.cli.going_on import asked_for, preview_resume
from plan_adapter.cli.secrets import seen, sight_line
from plan_adapter.cli.sources import input_texts, plan_of, policy_of_store, tools_of
from plan_adapter.settings import Settings

if TYPE_CHECKING:
    from plan_adapter.preview import Preview
    from plan_adapter.validation import ValidatedPlan


def preview(
    plan: str | None = None,
    /,
    *,
    input: list[str] | None = None,
    inputs: Path | None = None,
    tools: list[str] | None = None,
    resume: str | None = None,
    from_: Annotated[str | None, Parameter(name="--from")] = None,
    only_failed: bool = False,
    skip: list[str] | None = None,
    because: str = "",
    json: bool = False,
) -> int:
    """Show what a run would do, without doing it: order, waves, resolved parameters, retries, effects, the longest it may take.

    Of each secret it says where it would come from, or that it is missing.

    Expressions that depend on results are shown as they are written, and so are those that use inputs that are still missing.

    Args:
        plan: A plan document, `-` for stdin, or a stored plan: its digest or `store:name@version`.
        input: `name=value`, an input of the run; may be repeated.
        inputs: A JSON or YAML file of inputs; `--input` goes before it.
        tools: `package.module:name` of a tool or registry that the plan uses; may be repeated.
        resume: The id of a run, in place of a plan: what `plan resume` would do with each of its steps.
        from_: With `--resume`: only this step and what depends on it.
        only_failed: With `--resume`: only the steps that failed and what depends on them.
        skip: With `--resume`: a step that is left out for good; may be repeated.
        because: With `--skip`: why.
        json: Print one JSON object.
    """
    asked = asked_for(from_, only_failed=only_failed, skip=skip or [], because=because)
    if resume is not None:
        if plan is not None or input or inputs is not None:
            raise UsageError("give a plan with its inputs, or --resume with the id of a run")
        return asyncio.run(preview_resume(resume, asked, tools=tools or [], as_json=json))
    if plan is None or asked is not None:
        raise UsageError("give a plan, or --resume with the id of a run")
    from plan_adapter.preview_text import preview_text
    from plan_adapter.validation import validate

    given = input_texts(input or [], inputs)
    validated = validate(asyncio.run(plan_of(plan)), tools_of(tools or []))
    shown, sights = _preview(validated, given), seen(validated.secrets, Settings())
    if json:
        output.json_line(shown.as_json() | {"secret_places": [asdict(sight) for sight in sights]})
    else:
        output.line(preview_text(shown).rstrip("\n"))
        if sights:
            output.line("\n".join(["", "## Secrets", "", *(f"- {sight_line(sight, validated)}" for sight in sights)]))
    return ExitCode.DONE


def _preview(validated: "ValidatedPlan", texts: dict[str, str]) -> "Preview":
    """Return the preview with these inputs; required ones may be missing. Raises InvalidPlanError for those that do not fit."""
    from plan_adapter.approval import requires_approval
    from plan_adapter.errors import InvalidPlanError
    from plan_adapter.preview import preview_plan
    from plan_adapter.validation import bind_inputs

    policy = asyncio.run(policy_of_store(Settings()))
    show = partial(preview_plan, validated, requires_approval=requires_approval(validated.plan, policy), gate_effects=policy.gate_effects)
    try:
        bound = bind_inputs(validated, texts, from_text=True)
    except InvalidPlanError as error:
        if any(problem.code != "missing-input" for problem in error.problems):
            raise
        missing = tuple(name for name, spec in validated.plan.inputs.items() if spec.is_required and name not in texts)
        return show(inputs=None, approval_digest=None, missing=missing)
    return show(inputs=bound.inputs, approval_digest=bound.approval_digest)
