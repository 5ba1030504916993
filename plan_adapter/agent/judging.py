"""Check a model's plan: constraints on order against the plan's edges, secrets against the allowed ones, and dependencies across rounds."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from plan_adapter.agent.answer_text import Reading
from plan_adapter.agent.decision import ConstraintStatement, DraftDecision, Edges, read_decision
from plan_adapter.agent.remaining_plan import RemainingPlan
from plan_adapter.model.drafts import ConstraintCheck, Draft, PlanRequest
from plan_adapter.model.errors import InvalidPlanError
from plan_adapter.model.graph import ancestors_of
from plan_adapter.model.options import ExecutionOptions
from plan_adapter.model.problems import Problem
from plan_adapter.model.readable import code
from plan_adapter.tools.registry import ToolRegistry
from plan_adapter.validation import ValidatedPlan, validate
from plan_adapter.validation.named_secrets import name_secrets


def check_constraints(
    texts: Sequence[str], statements: Sequence[ConstraintStatement], ancestors: Mapping[str, frozenset[str]]
) -> tuple[list[ConstraintCheck], list[Problem]]:
    """Return how the plan keeps each constraint, and a problem for each statement that it breaks.

    `ancestors` maps each step to all steps that must complete before it starts.
    """
    kept, problems = list[ConstraintCheck](), list[Problem]()
    for number, text in enumerate(texts, 1):
        own = [statement for statement in statements if statement.number == number]
        broken = [problem for statement in own for problem in _find_violations(statement, text, ancestors)]
        problems += broken
        pairs = [(first, then) for statement in own for first in statement.steps for then in statement.before]
        named = sorted({step for statement in own for step in statement.steps})
        if pairs and not broken:
            how = ", ".join(f"`{first}` completes before `{then}` starts" for first, then in pairs)
            kept.append(ConstraintCheck(number, text, checked=True, how=how))
        elif named:
            how = f"according to the model, {', '.join(f'`{name}`' for name in named)} ensures it"
            kept.append(ConstraintCheck(number, text, checked=False, how=how))
        else:
            kept.append(ConstraintCheck(number, text, checked=False, how="the plan does not say how it is kept"))
    return kept, problems


def _find_violations(statement: ConstraintStatement, text: str, ancestors: Mapping[str, frozenset[str]]) -> list[Problem]:
    at = f"constraints[{statement.number - 1}]"
    unknown = [name for name in dict.fromkeys((*statement.steps, *statement.before)) if name not in ancestors]
    if unknown:
        names = ", ".join(f"`{name[:64]}`" for name in unknown)
        return [Problem("unknown-step", at=at, message=f"no step is called {names}", hint="name steps of the plan")]
    return [
        Problem(
            "broken-constraint",
            at=at,
            message=f"`{then}` can start before `{first}` has completed, against the constraint {code(text[:200])}",
            hint=f"let `{then}` depend on `{first}`",
        )
        for first in statement.steps
        for then in statement.before
        if first not in ancestors[then]
    ]


def allowed_tools(request: PlanRequest, tools: ToolRegistry) -> ToolRegistry:
    """Return the `tools` that the request allows. Raises ToolDefinitionError for an unknown tool."""
    return tools if request.available_tools is None else tools.subset(*request.available_tools)


def find_request_problem(request: PlanRequest, tools: ToolRegistry) -> str | None:
    """Return why the request cannot lead to a plan, or None if it can."""
    if not request.task.strip():
        return "the task is empty: describe what to do"
    if not len(tools):
        return "there are no tools to plan with: name at least one"
    if request.max_steps is not None and request.max_steps < 1:
        return "max_steps is less than 1: a plan has at least one step"
    if any(not name.strip() for name in request.permissions):
        return "a permission is empty: write its name as the tool declares it"
    return None


def find_unnamed_secrets(validated: ValidatedPlan, allowed: Collection[str], remaining: RemainingPlan | None = None) -> list[Problem]:
    """Return a problem for each call in a model's plan that uses a secret whose name is not in `allowed`.

    A secret that an input names counts as well: by its default, or by what the run gives it. With `remaining`, a secret may also go to the
    tools that the run's plan already passes it to.
    """
    validated = validated if validated.named_secrets else name_secrets(validated, {} if remaining is None else remaining.named)
    named = ", ".join(f"`{name}`" for name in allowed) or "none"
    already_passed: Mapping[str, frozenset[str]] = {} if remaining is None else remaining.secrets
    problems = list[Problem]()
    for place, step in validated.plan.places.items():
        if step.inner or (remaining is not None and step.id in remaining.kept):
            continue
        calls = [("parameters", validated.tools[step.id].name, validated.parameters[step.id])]
        if (undo := validated.rollbacks.get(step.id)) is not None:
            calls.append(("rollback.parameters", undo.tool.name, undo.parameters))
        for field_name, tool, template in calls:
            unnamed = set(template.secrets) - set(allowed)
            if unnamed := sorted(name for name in unnamed if tool not in already_passed.get(name, ())):
                at = f"{place}.{field_name}"
                message = f"the plan may not use the secret {', '.join(f'`{name}`' for name in unnamed)}"
                hint = "".join(
                    f"; `{name}` with {', '.join(f'`{tool_name}`' for tool_name in sorted(tools))}"
                    for name, tools in already_passed.items()
                )
                problems.append(Problem("unnamed-secret", at=at, message=message, hint=f"it may use: {named}{hint}"))
    return problems


@dataclass(slots=True)
class Judge:
    """Reads the answers to one request and finds their problems."""

    draft: Draft
    tools: ToolRegistry
    remaining: RemainingPlan | None = None  # the part of a run's plan that is replaced, unless a whole plan is drafted
    dropped: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])  # removed dependencies that were already reported

    def check(self, reading: Reading, before: DraftDecision | None = None) -> tuple[DraftDecision | None, list[Problem]]:
        """Return the decision in an answer and its problems. `before` is the last decision that had a plan, which this one must correct."""
        if reading.value is None:
            return None, [Problem("syntax", message=reading.problem, hint="answer with one JSON object")]
        request = self.draft.request
        decision = read_decision(
            reading.value,
            self.tools,
            task=request.task,
            max_steps=request.max_steps,
            permissions=request.permissions,
            constraints=len(request.constraints),
            remaining=self.remaining,
        )
        problems = list(decision.problems)
        if decision.plan is not None and not problems:
            validated = validate(decision.plan, self.tools)
            ancestors = ancestors_of(validated.dependencies)
            problems += find_unnamed_secrets(validated, request.available_secrets, self.remaining)
            problems += check_constraints(request.constraints, decision.statements, ancestors)[1]
            if before is not None:
                problems += self._find_dropped_dependencies(before, decision, {(a, b) for b, names in ancestors.items() for a in names})
        return decision, problems

    def accept(self, decision: DraftDecision) -> None:
        """Make the plan of `decision` the draft's plan. The decision must have no problems."""
        draft, plan, request = self.draft, decision.plan, self.draft.request
        assert plan is not None
        if self.remaining is None:
            options = (request.options or ExecutionOptions()).model_copy(deep=True)
            options.require_approval, options.auto_approve = True, False
            plan.options = options
            plan.metadata = {**request.metadata}
        else:
            plan = self.remaining.finalize(plan)
        try:
            validated = validate(plan, self.tools)
        except InvalidPlanError as error:  # caused by the request's own options and metadata
            draft.problems, draft.failure = error.problems, "the options or metadata of the request are not valid for the plan"
            return
        draft.plan = validated.plan
        ancestors = ancestors_of(validated.dependencies)
        draft.constraints, _ = check_constraints(request.constraints, decision.statements, ancestors)
        draft.complexity, draft.speak = decision.complexity, decision.speak
        removed = sorted((a, b) for a, b in self.dropped if a not in ancestors.get(b, frozenset((a,))))
        draft.notes += [f"the model removed the dependency of `{then}` on `{first}`" for first, then in removed]
        draft.notes += [f"ignored in the answer, because a model may not decide it: `{name}`" for name in decision.left_out]

    def _find_dropped_dependencies(self, before: DraftDecision, now: DraftDecision, edges: "set[tuple[str, str]] | Edges") -> list[Problem]:
        """Return a problem for each dependency that had no problem and was removed. Each is reported once."""
        plan, old = now.plan, before.plan
        assert plan is not None
        assert old is not None
        present = {step.id for step in plan.steps}
        faulty = {step.id for step in old.steps for problem in before.problems if problem.at.startswith(f"steps[{step.index}].depends_on")}
        has_cycle = any(problem.code == "cycle" for problem in before.problems)
        lost = sorted((a, b) for a, b in before.edges - edges if {a, b} <= present and b not in faulty and not has_cycle)
        problems = list[Problem]()
        for first, then in lost:
            if (first, then) in self.dropped:
                continue
            self.dropped.add((first, then))
            message = f"`{then}` no longer depends on `{first}`, although that dependency was correct"
            hint = "put it back, or leave it out again if it is not needed"
            problems.append(Problem("dropped-dependency", at=f"steps[{plan.step(then).index}].depends_on", message=message, hint=hint))
        return problems
