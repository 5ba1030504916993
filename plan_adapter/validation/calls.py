"""Checks and compiles each step by itself: its fields, tool, parameters and expressions."""

import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product
from typing import Any

from pydantic import JsonValue

from plan_adapter.expressions import Declarations, Template, compile_template, has_expression
from plan_adapter.expressions.cel import words_of_kind
from plan_adapter.expressions.declarations import Expected
from plan_adapter.expressions.expression import Expression
from plan_adapter.expressions.shape import ANYTHING, Shape
from plan_adapter.expressions.template import NEAR_EXPRESSION
from plan_adapter.model.options import Effect, is_lower
from plan_adapter.model.plan import MAX_FAILURES, MAX_TAG_CHARACTERS, RESERVED_IDS, STEP_ID, ExecutionPlan, Step
from plan_adapter.model.problems import did_you_mean
from plan_adapter.model.readable import visible
from plan_adapter.model.values import find_bad_values, join
from plan_adapter.tools.placeholders import goal_tool, question_tool
from plan_adapter.tools.registry import ToolRegistry
from plan_adapter.tools.tool import Tool
from plan_adapter.validation.findings import Findings
from plan_adapter.validation.inputs import NotJSONError, parse_json
from plan_adapter.validation.kinds import check_fields_of_kind, check_goal, check_question
from plan_adapter.validation.named_secrets import check_passed_secrets, passed_secrets, secret_inputs
from plan_adapter.validation.pinned_plans import check_inputs, check_runs_no_plan, check_sub_plan
from plan_adapter.validation.step_results import StepResults, shape_of_value


@dataclass(frozen=True, slots=True)
class Declared:
    """What expressions of some steps may use, and what is known of the results of all steps."""

    by_place: Mapping[tuple[bool, bool, bool], Declarations]  # by whether `item`, `result` and `secrets` exist there
    results: StepResults

    def at(self, *, item: bool = False, result: Step | None = None, secrets: bool = False, items: Template | None = None) -> Declarations:
        """Return what an expression may use. `result` is the step whose result it sees, and `items` the list that `item` is from."""
        names = self.by_place[item, result is not None, secrets]
        if item and items is not None:
            names = replace(names, own_item=_item_of(items))
        return names if result is None else replace(names, own_result=self.results.of_call(result))


@dataclass(frozen=True, slots=True)
class RollbackCall:
    """The call that rolls back a step, compiled."""

    tool: Tool[..., Any]
    parameters: Template


@dataclass(frozen=True, slots=True)
class Call:
    """A step, compiled. `tool` is None if no tool has that name."""

    step: Step
    at: str  # its path in the document
    is_finally_step: bool  # whether it is a `finally` step
    tool: Tool[..., Any] | None
    parameters: Template
    when: Template | None
    for_each: Template | None
    label: Template | None
    done_when: Template | None
    rollback_parameters: Template | None
    rollback_tool: Tool[..., Any] | None
    goal_tools: tuple[Tool[..., Any], ...] = ()  # the tools that the model of a goal may use

    @property
    def effect(self) -> Effect | None:
        """Return the effect of the call, or None if the step calls no known tool."""
        return None if self.tool is None else self.step.effect or self.tool.effect

    @property
    def templates(self) -> dict[str, Template]:
        """Return the templates by field, in document order."""
        fields = {"for_each": self.for_each, "label": self.label, "parameters": self.parameters}
        fields |= {"when": self.when, "done_when": self.done_when}
        fields["rollback.parameters"] = self.rollback_parameters
        return {name: template for name, template in fields.items() if template is not None}

    @property
    def rollback(self) -> RollbackCall | None:
        """Return the call that rolls back the step, or None if it has no rollback or the rollback's tool is unknown."""
        return (
            None
            if self.rollback_parameters is None or self.rollback_tool is None
            else RollbackCall(self.rollback_tool, self.rollback_parameters)
        )


def check_calls(plan: ExecutionPlan, tools: ToolRegistry, findings: Findings) -> list[Call]:
    """Return the compiled steps, and add every problem of a single step to `findings`."""
    places = {at: step for at, step in plan.places.items() if step.within is None}
    _check_ids(places, findings)
    _check_tools_exist(places, tools, findings)
    inner = {step.id: group.id for group in plan.steps for step in group.steps}
    outer, calls = [step.id for step in plan.steps], list[Call]()
    results = StepResults(plan, tools)
    declared = _declarations(outer, plan, inner, results)
    for index, step in enumerate(plan.steps):
        at = f"steps[{index}]"
        calls.append(_check_step(step, at, declared, tools, findings))
        if step.steps and step.plan is None:
            calls += _check_inner(step, calls[-1], outer, plan, inner, tools, findings)
    if not plan.finally_:
        return calls
    declared = _declarations([*outer, *(step.id for step in plan.finally_)], plan, inner, results, run=True)
    for index, step in enumerate(plan.finally_):
        at = f"finally[{index}]"
        _check_finally(step, at, findings)
        calls.append(replace(_check_call(step, at, declared, tools, findings), is_finally_step=True))
    return calls


def _check_step(step: Step, at: str, declared: Declared, tools: ToolRegistry, findings: Findings) -> Call:
    """Return a step of the plan's `steps`, compiled. A check of every step, also in groups and `finally`, belongs in `check_calls`."""
    if step.plan is not None or step.pinned is not None:
        check_fields_of_kind(step, "plan", at, findings)
        check_sub_plan(step, at, findings)
        return _check_sub_plan_call(step, at, declared, findings)
    return _check_group(step, at, declared, findings) if step.steps else _check_call(step, at, declared, tools, findings)


def _check_sub_plan_call(step: Step, at: str, declared: Declared, findings: Findings) -> Call:
    """Return a step that runs a plan, compiled. What it passes to inputs of type `secret` is a name, and no secret."""
    passed = passed_secrets(step, declared.at().inputs)
    given = {name: value for name, value in step.inputs.items() if name not in passed}
    call = _compile_call(step, (None, None), given, (at, f"{at}.inputs"), declared, findings)
    names = check_passed_secrets(step, at, passed, call.parameters, findings)
    check_inputs(step, at, call.parameters, findings, checked=names)
    if not passed:
        return call
    return replace(call, parameters=replace(call.parameters, source=step.inputs, inputs=call.parameters.inputs.union(passed.values())))


def _check_group(step: Step, at: str, declared: Declared, findings: Findings) -> Call:
    check_fields_of_kind(step, "group", at, findings)
    if step.for_each is None:
        findings.add("bad-group", f"{at}.steps", "the group has no `for_each`", "write the list of items that its steps run for")
    if isinstance(step.max_failures, str) and not re.fullmatch(MAX_FAILURES, step.max_failures):
        message = f"{step.max_failures[:40]!r} is neither a number of items nor a share of them"
        findings.add("bad-group", f"{at}.max_failures", message, 'write a number such as 1, or a share such as "20%"')
    elif isinstance(step.max_failures, int) and step.max_failures < 0:
        findings.add("bad-group", f"{at}.max_failures", "the number is below 0", "write 0 to stop at the first failed item")
    _check_label(step, at, findings)
    return _compile_call(step, (None, None), {}, (at, f"{at}.parameters"), declared, findings)


def _check_inner(
    group: Step, compiled: Call, outer: list[str], plan: ExecutionPlan, inner: Mapping[str, str], tools: ToolRegistry, findings: Findings
) -> list[Call]:
    """Return the compiled steps of `group`. Their expressions may use each other and the steps that the group's own may use."""
    siblings = [step.id for step in group.steps]
    elsewhere = {step_id: other for step_id, other in inner.items() if other != group.id}
    declared = _declarations([*outer, *siblings], plan, elsewhere, StepResults(plan, tools), item=_item_of(compiled.for_each))
    calls = list[Call]()
    for index, step in enumerate(group.steps):
        place = f"{compiled.at}.steps[{index}]"
        for name, what in (("for_each", "a list of its own"), ("steps", "steps of its own")):
            if getattr(step, name):
                hint = "move it out of the group, or give the group the longer list"
                findings.add("bad-group", f"{place}.{name}", f"a step of a group cannot have {what}", hint)
        plain_step = step.model_copy(update={"for_each": None, "label": None, "steps": []}) if step.for_each or step.steps else step
        check_runs_no_plan(plain_step, place, "a step of a group", findings)
        calls.append(_check_call(plain_step, place, declared, tools, findings, on_dask=group.runner == "dask"))
    return calls


def _check_finally(step: Step, at: str, findings: Findings) -> None:
    check_runs_no_plan(step, at, "a `finally` step", findings)
    if step.rollback is not None:
        message = "a `finally` step has no rollback, because nothing runs after it"
        findings.add("bad-rollback", f"{at}.rollback", message, "remove it")
    if step.steps:
        findings.add("not-yet", f"{at}.steps", "a `finally` step cannot be a group yet", "write a step with `for_each` and `tool_name`")
    if step.on_error == "stop":
        message = "a failed `finally` step skips only the steps that depend on it"
        findings.add("bad-finally", f"{at}.on_error", message, "remove it, and let other `finally` steps depend on this one")


def _declarations(
    steps: Iterable[str],
    plan: ExecutionPlan,
    elsewhere: Mapping[str, str],
    results: StepResults,
    *,
    item: Shape = ANYTHING,
    run: bool = False,
) -> Declared:
    """Return what expressions may use, keyed by whether `item`, `result` and `secrets` exist at their place."""
    plain = Declarations(frozenset(steps), plan.inputs, elsewhere, results, plan.inventory, own_item=item, run=run)
    either = (False, True)
    by_place = {
        (item, result, secrets): replace(plain, item=item, result=result, secrets=secrets)
        for item, result, secrets in product(either, either, either)
    }
    return Declared(by_place, results)


_ID_HINT = "use a letter from a to z or _, then at most 63 such letters, digits, _ or -; the `description` can be in any language"


def _check_ids(places: Mapping[str, Step], findings: Findings) -> None:
    first: dict[str, str] = {}
    for place, step in places.items():
        at = f"{place}.id"
        if not re.fullmatch(STEP_ID, step.id):
            findings.add("bad-id", at, f"{step.id[:80]!r} cannot be an id", _ID_HINT)
        elif step.id in RESERVED_IDS:
            findings.add("reserved-id", at, f"`{step.id}` is a reserved word of the expression language", f"call it `{step.id}_step`")
        if step.id in first:
            findings.add("duplicate-id", at, f"{first[step.id]} also has the id `{step.id}`", "give one of them another id")
        first.setdefault(step.id, place)


def _check_tools_exist(places: Mapping[str, Step], tools: ToolRegistry, findings: Findings) -> None:
    users: dict[str, list[str]] = {}
    for at, step in places.items():
        called = {f"{at}.tool_name": step.tool_name}
        called |= {f"{at}.tools[{index}]": name for index, name in enumerate(step.tools)}
        if step.rollback is not None:
            called[f"{at}.rollback.tool_name"] = step.rollback.tool_name
        for field, name in called.items():
            if name and name not in tools:
                users.setdefault(name, []).append(field)
    for name, fields in users.items():
        also = f" ({len(fields)} steps call it)" if len(fields) > 1 else ""
        findings.add("unknown-tool", fields[0], f"no tool is called `{name[:80]}`{also}", _tool_hint(name, tools))


@cache
def _builtin_names() -> frozenset[str]:
    return frozenset(ToolRegistry.with_builtins().names())


def _tool_hint(name: str, tools: ToolRegistry) -> str:
    if name in _builtin_names():
        return "it is a built-in tool: ToolRegistry.with_builtins([…]) adds the built-in tools to yours"
    return did_you_mean(name, tools.names())


def _check_call(step: Step, at: str, declared: Declared, tools: ToolRegistry, findings: Findings, *, on_dask: bool = False) -> Call:
    kind = "question" if step.ask is not None else "goal" if step.goal is not None else "call"
    check_fields_of_kind(step, kind, at, findings)
    if step.ask is not None:
        check_question(step, step.ask, at, findings)
        return _compile_call(step, (question_tool(), None), {"question": step.ask.question}, (at, f"{at}.ask"), declared, findings)
    if step.goal is not None:
        return _check_goal_step(step, at, declared, tools, findings)
    if not step.tool_name and step.plan is None and step.for_each is not None:  # with `steps: []`, it was to be a group
        message = "the step has neither a tool nor steps"
        findings.add("missing-field", f"{at}.tool_name", message, "write `tool_name`, or, for a group, at least one step in `steps`")
    elif not step.tool_name and step.plan is None:
        findings.add("missing-field", f"{at}.tool_name", "the step has no tool", "write `tool_name`")
    check_tags(step.tags, f"{at}.tags", findings)
    tool = tools.get(step.tool_name or "")
    parameters, place = _read_parameters(step, at, findings)
    if tool is not None:
        _check_effect(step, tool, at, findings)
        if parameters is not None:
            _check_parameters(tool, parameters, place, findings)
    _check_each(step, at, findings)
    _check_label(step, at, findings)
    rollback_tool = _check_rollback(step, at, tools, findings)
    _check_runner(step, at, on_dask or step.runner == "dask", (tool, rollback_tool), findings)
    return _compile_call(step, (tool, rollback_tool), parameters or {}, (at, place), declared, findings)


def _check_each(step: Step, at: str, findings: Findings) -> None:
    if step.requires_approval == "each":
        findings.add("bad-group", f"{at}.requires_approval", "`each` is for groups", "write true: each item then has its own gate")


def _check_runner(step: Step, at: str, on_dask: bool, tools: tuple[Tool[..., Any] | None, ...], findings: Findings) -> None:
    if not on_dask:
        return
    if step.isolation is not None:
        message = "a call on Dask runs in the process of a worker, so it has no `isolation`"
        findings.add("bad-runner", f"{at}.isolation", message, "remove it, or `runner`")
    for tool in tools:
        if tool is not None and tool.import_string is None:
            message = f"`{tool.name}` cannot run on Dask: no worker can import {tool.origin}"
            findings.add("bad-runner", f"{at}.runner", message, "define it at the top level of a module that is installed on the workers")


def _check_goal_step(step: Step, at: str, declared: Declared, tools: ToolRegistry, findings: Findings) -> Call:
    """Return a step with a goal, compiled. Its parameters are what the model is told: the goal, and a `done_when` in words."""
    check_tags(step.tags, f"{at}.tags", findings)
    goal_tools = check_goal(step, at, tools, findings)
    _check_each(step, at, findings)
    prompt: dict[str, JsonValue] = {"goal": step.goal}
    if step.done_when is not None and not has_expression(step.done_when):
        prompt["done_when"] = step.done_when
    plain_step = step if step.for_each is None else step.model_copy(update={"for_each": None, "label": None})
    plain_step = plain_step if step.rollback is None else plain_step.model_copy(update={"rollback": None})
    return replace(_compile_call(plain_step, (goal_tool(), None), prompt, (at, at), declared, findings), goal_tools=goal_tools)


def _check_label(step: Step, at: str, findings: Findings) -> None:
    if step.label is not None and step.for_each is None:
        findings.add("bad-label", f"{at}.label", "the step has a label but no `for_each`, so there are no items to name", "remove it")
    elif step.label is not None and not step.label.strip():
        findings.add("bad-label", f"{at}.label", "the label is empty", "write `${{ item… }}`, or remove it")


def check_tags(tags: list[str], at: str, findings: Findings) -> None:
    """Add the problems of the tags of a plan or a step."""
    for index, tag in enumerate(tags):
        place = f"{at}[{index}]"
        if has_expression(tag):
            findings.add("bad-tag", place, "a tag is fixed text: `${{ }}` is not evaluated in it", "write the text, or remove the tag")
        elif not tag.strip():
            findings.add("bad-tag", place, "the tag is empty", "write a word, or remove the entry")
        elif len(tag) > MAX_TAG_CHARACTERS:
            message = f"the tag has {len(tag)} characters; the limit is {MAX_TAG_CHARACTERS}"
            findings.add("bad-tag", place, message, "shorten it")
        elif tag != tag.strip() or visible(tag) != tag or not tag.isprintable():
            findings.add("bad-tag", place, f"{tag!r} cannot be a tag", "remove line breaks, spaces around it and invisible characters")
        elif tag in tags[:index]:
            findings.warn("duplicate-entry", place, f"`{tag}` is written twice", "remove one of them")


def _check_rollback(step: Step, at: str, tools: ToolRegistry, findings: Findings) -> Tool[..., Any] | None:
    """Return the tool that rolls back `step`, and add the problems of its parameters."""
    if step.rollback is None:
        if step.rollback_failed:
            message = "the step has `rollback_failed` but no `rollback`"
            findings.add("bad-rollback", f"{at}.rollback_failed", message, "write a `rollback`, or remove it")
        return None
    if not step.rollback.tool_name:
        findings.add("missing-field", f"{at}.rollback.tool_name", "the rollback has no tool", "write `tool_name`")
    tool = tools.get(step.rollback.tool_name)
    if tool is not None:
        _check_parameters(tool, step.rollback.parameters, f"{at}.rollback.parameters", findings)
    return tool


def _read_parameters(step: Step, at: str, findings: Findings) -> tuple[dict[str, JsonValue] | None, str]:
    """Return the step's parameters, or None if they cannot be read, and their path.

    `input` is used only if `parameters` is empty.
    """
    if step.parameters or not step.input:
        if step.input:
            findings.warn("unused-input", f"{at}.input", "`input` is not used, because there are `parameters`", "remove one of them")
        return step.parameters, f"{at}.parameters"
    place, value = f"{at}.input", None
    try:
        value = parse_json(step.input)
    except NotJSONError as error:
        if error.code:
            findings.add(error.code, place, f"the text looks like JSON{error}", "fix it")
            return None, place
    if not isinstance(value, dict):
        return {"input": step.input}, place
    findings.extend(replace(problem, at=place) for problem in find_bad_values(value))
    return value, place


_LITERAL_HINTS = {
    "command": 'pass the value through `env`, and write "$NAME" in the script',
    "statement": "pass the value through `parameters`, and write :name in the statement",
    "function": "name the function here, and pass the value through `arguments`",
}


def _check_parameters(tool: Tool[..., Any], parameters: dict[str, JsonValue], place: str, findings: Findings) -> None:
    for path, message, hint in tool.check(parameters, _is_expression):
        findings.add("bad-parameters", _parameter_path(place, path), message, hint)
    for name in sorted(tool.literal_parameters & parameters.keys()):
        if any(has_expression(text) for _, text in _texts_in(parameters[name], name)):
            message = f"`{name}` is code, and `${{{{ }}}}` would put data into it"
            findings.add("expression-in-command", _parameter_path(place, name), message, _literal_hint(name))


def _parameter_path(place: str, path: str) -> str:
    # The text of `input` has no paths inside it.
    return f"{place}.{path}" if path and place.endswith(".parameters") else place


def _is_expression(value: JsonValue) -> bool:
    return isinstance(value, str) and has_expression(value)


def _check_effect(step: Step, tool: Tool[..., Any], at: str, findings: Findings) -> None:
    if step.effect is not None and is_lower(step.effect, tool.effect):
        message = f"`{tool.name}` counts as {tool.effect} and is declared as {step.effect}"
        findings.warn("lowered-effect", f"{at}.effect", message, "the gate says so: make sure that it does no more")
    if step.max_retries and (step.effect or tool.effect) == "write":
        message = f"`{tool.name}` writes, and is tried again after a failure"
        findings.warn("retried-write", f"{at}.max_retries", message, "remove it, or declare the effect if a second call does no harm")


def _compile_call(
    step: Step,
    tools: tuple[Tool[..., Any] | None, Tool[..., Any] | None],  # the step's tool and its rollback's tool
    parameters: dict[str, JsonValue],
    places: tuple[str, str],
    declared: Declared,
    findings: Findings,
) -> Call:
    at, place = places
    has_item, in_group = step.for_each is not None or step.group is not None, step.group is not None
    compiled, compile_parameters = partial(_compile_field, findings), partial(_compile_parameters, findings)
    for_each = None if step.for_each is None else compiled(step.for_each, f"{at}.for_each", declared.at(), "list")
    may_have_secrets = step.pinned is None and _may_have_secrets(tools[0])
    rollback_parameters = None if step.rollback is None or step.ask is not None else step.rollback.parameters
    done_when = None  # of a condition in words, which only a goal has
    if step.done_when is not None and has_expression(step.done_when):
        done_when = compiled(step.done_when, f"{at}.done_when", declared.at(item=has_item, result=step, items=for_each), "bool")
    elif step.done_when is not None and step.goal is None:
        message, hint = "only a goal has a condition in words", "write an expression: `${{ result.… }}`"
        findings.add("expression-needed", f"{at}.done_when", message, hint)
    label = step.label if step.for_each is not None else None
    return Call(
        step,
        at=at,
        is_finally_step=False,
        tool=tools[0],
        parameters=compile_parameters(tools[0], parameters, place, declared.at(item=has_item, secrets=may_have_secrets, items=for_each)),
        when=None if step.when is None else compiled(step.when, f"{at}.when", declared.at(item=in_group), "bool"),
        for_each=for_each,
        label=None if label is None else _compile_label(findings, label, f"{at}.label", declared.at(item=True, items=for_each)),
        done_when=done_when,
        rollback_parameters=None
        if rollback_parameters is None
        else compile_parameters(
            tools[1],
            rollback_parameters,
            f"{at}.rollback.parameters",
            declared.at(item=has_item, result=step, secrets=_may_have_secrets(tools[1]), items=for_each),
        ),
        rollback_tool=tools[1],
    )


def _item_of(for_each: Template | None) -> Shape:
    """Return what is known of the items of a list."""
    whole = ANYTHING if for_each is None else shape_of_value(for_each.source, for_each)
    return whole.items or ANYTHING


def _compile_field(findings: Findings, value: JsonValue, at: str, declared: Declarations, expect: Expected | None = None) -> Template:
    template, problems = compile_template(value, declared, at=at, expect=expect)
    findings.extend(problems)
    return template


def _compile_parameters(
    findings: Findings, tool: Tool[..., Any] | None, parameters: dict[str, JsonValue], place: str, declared: Declarations
) -> Template:
    template, problems = compile_template(parameters, declared, at=place)
    if tool is not None:
        _check_public_parameters(tool, template, place, secret_inputs(declared.inputs), findings)
    if problems and place.endswith(".input"):  # a text, which has no paths inside it
        findings.extend(replace(problem, at=place) for problem in problems)
        return template
    if tool is not None and template.texts:
        _check_types(tool, template, place, findings)
    hints = {join(place, name): _literal_hint(name) for name in (() if tool is None else tool.literal_parameters)}
    for problem in problems:
        near_in_code = problem.code == NEAR_EXPRESSION and hints.get(problem.at)
        findings.extend([replace(problem, hint=near_in_code) if near_in_code else problem])
    return template


def _check_public_parameters(tool: Tool[..., Any], template: Template, place: str, names: Collection[str], findings: Findings) -> None:
    """Add a problem for each text with a secret in a parameter that others can see during the call. `names` are the secret inputs."""
    parameters = template.source if isinstance(template.source, dict) else {}
    private = [f"`{name}`" for name in ("env", "stdin") if name in tool.parameter_names - tool.public_parameters]
    hint = f"pass it through {' or '.join(private)}" if private else "write it without a secret"
    for name in sorted(tool.public_parameters & parameters.keys()):
        for path, text in _texts_in(parameters[name], name):
            used = (part for part in template.texts.get(text, ()) if isinstance(part, Expression))
            if any(part.secrets or part.names_secrets(names) for part in used):
                message = f"others can see `{name}` of `{tool.name}` during the call, as in a list of processes, so no secret may be in it"
                findings.add("misplaced-secret", _parameter_path(place, path), message, hint)


def _texts_in(value: JsonValue, path: str) -> Iterator[tuple[str, str]]:
    """Yield each text in `value`, with its path."""
    if isinstance(value, str):
        yield path, value
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, member in members:
        yield from _texts_in(member, join(path, key))


_EXAMPLES: Mapping[str, tuple[JsonValue, str]] = {
    "string": ("", "a text"),
    "int": (0, "an integer"),
    "double": (0.5, "a number"),
    "bool": (True, "true or false"),
    "list": ([], "a list"),
    "map": ({}, "an object"),
}
"""By the type of an expression: a value, and what it is."""


def _check_types(tool: Tool[..., Any], template: Template, place: str, findings: Findings) -> None:
    """Add a problem for each expression whose type its parameter refuses."""
    examples = dict[tuple[str | int, ...], str]()

    def example(value: JsonValue, at: tuple[str | int, ...]) -> JsonValue:
        if isinstance(value, dict):
            return {key: example(member, (*at, key)) for key, member in value.items()}
        if isinstance(value, list):
            return [example(member, (*at, index)) for index, member in enumerate(value)]
        if not isinstance(value, str) or value not in template.texts:
            return value
        known = _EXAMPLES.get(shape_of_value(value, template).kind.partition("(")[0])
        if known is None:
            return value
        examples[at] = known[1]
        return known[0]

    parameters = example(template.source, ())
    if isinstance(parameters, dict) and examples:
        for path, message, hint in tool.check_types(parameters, _is_expression, examples):
            findings.add("bad-parameters", _parameter_path(place, path), message, hint)


def _literal_hint(parameter: str) -> str:
    return _LITERAL_HINTS.get(parameter, "pass the value as data, through another parameter")


def _compile_label(findings: Findings, text: str, at: str, declared: Declarations) -> Template:
    template = _compile_field(findings, text, at, declared)
    parts = template.texts.get(text, ())
    if len(parts) == 1 and isinstance(parts[0], Expression) and parts[0].kind.partition("(")[0] in ("bool", "list", "map", "null_type"):
        message = f"`label` is {words_of_kind(parts[0].kind)}, which cannot name an item"
        findings.add("expression-type", at, message, "write an expression for a text or a number")
    return template


def _may_have_secrets(tool: Tool[..., Any] | None) -> bool:
    """Return whether `tool` may receive secrets. Questions are shown, goals go to a model, and Prefect stores what run_deployment gets."""
    if tool is None:
        return True
    if tool is question_tool() or tool is goal_tool():
        return False
    deployment = sys.modules.get("plan_adapter.tools.deployment")  # if nobody has imported the module, no tool is from it
    return deployment is None or tool.source is not deployment.run_deployment.source
