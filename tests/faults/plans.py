"""Random plans, and people's actions during their runs. A seed decides everything."""

import random
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import JsonValue

from plan_adapter import ExecutionPlan
from plan_adapter.model.options import ApprovalPolicy, Effect, Question
from plan_adapter.model.plan import Rollback, Step
from plan_adapter.plans import Input
from tests.faults.goals import ALWAYS, NOT_EXPANDED, RoundKind, goal_text, verdicts
from tests.faults.world import COMMAND_TOOL, FINAL

TOOL_NAMES: dict[Effect, str] = {"read": "look", "idempotent_write": "put", "write": "write"}
SECRET = NOT_EXPANDED  # steps expand it
SCHEDULE = "nightly/faults"
ANSWERS: dict[str, JsonValue] = {"choice": "chosen", "answer": "chosen", "met": True}
"""People's answers to all questions, by field."""

ApprovedBy = Literal["nobody", "approver", "beforehand", "standing", "elsewhere"]
"""Who approves the plan: nobody, because it needs no approval; the approver of the run's process; a person before the start; a standing
approval; or a person while no process waits."""


@dataclass(frozen=True)
class Scenario:
    """A plan, and people's actions while it runs."""

    plan: ExecutionPlan
    approved_by: ApprovedBy
    revokes: bool  # the standing approval, after the first fault
    revises: Literal["nothing", "approved", "anything"]  # which steps that have not started: those with an approved call, or any
    answers: float  # the probability that a gate is answered between two processes
    resumes_first: bool  # resumes the run once before unknown outcomes are resolved


EVERYTHING = -1
"""The seed of a run that reaches every target, one step at a time: it is approved, its last step fails, and it is rolled back."""


REVISED = -2
"""The seed of a run of two steps, whose second step is revised after the first one has started."""


SUB_PLAN = -3
"""The seed of a run whose only step runs the plan of EVERYTHING."""


GOAL = -4
"""The seed of a run whose only step is a goal with one round of each kind."""

COMMANDS = -7
"""The seed of a run of three steps, one of each effect, each of which starts a command."""

FINALLY_AGAIN = -5
"""The seed of a run that is resumed before its write is resolved, so that its `finally` steps, one of each effect, run twice."""

GOAL_SCRIPT: tuple[RoundKind, ...] = ("look", "broken", "write", "unwanted", "ask", "end", "look", "end")


ITEMS = -6
"""The seed of a run with a group that rolls back the failed one of its three items by itself."""


def scenario_of(seed: int) -> Scenario:
    """Return the scenario of `seed`."""
    if seed == ITEMS:
        return Scenario(_items(), "approver", revokes=False, revises="nothing", answers=0.0, resumes_first=False)
    if seed == GOAL:
        return Scenario(_goal(), "approver", revokes=False, revises="nothing", answers=0.0, resumes_first=False)
    if seed == SUB_PLAN:
        outer = ExecutionPlan(id="inside", name="inside", description="A plan with a sub-plan that reaches every target")
        inner = _everything()
        outer.finally_, inner.finally_ = inner.finally_, []
        outer.steps = [Step(id="p", plan="store:everything@1", pinned=inner)]
        outer.number_steps()
        return Scenario(outer, "approver", revokes=False, revises="nothing", answers=0.0, resumes_first=False)
    if seed == COMMANDS:
        return Scenario(_commands(), "nobody", revokes=False, revises="nothing", answers=0.0, resumes_first=True)
    if seed == FINALLY_AGAIN:
        return Scenario(_finally_again(), "nobody", revokes=False, revises="nothing", answers=0.0, resumes_first=True)
    if seed == REVISED:
        return Scenario(_revised(), "nobody", revokes=False, revises="anything", answers=0.0, resumes_first=False)
    if seed == EVERYTHING:
        return Scenario(_everything(), "approver", revokes=False, revises="nothing", answers=0.0, resumes_first=False)
    chance = random.Random(seed)
    approved_by: ApprovedBy = chance.choice(("nobody", "approver", "beforehand", "standing", "elsewhere"))
    plan = plan_of(chance, name=f"plan-{seed}")
    plan.options.require_approval = approved_by != "nobody"
    return Scenario(
        plan,
        approved_by,
        revokes=approved_by == "standing" and chance.random() < 0.4,
        revises=chance.choices(("nothing", "approved", "anything"), (3, 6, 1))[0],
        answers=1.0 if approved_by == "elsewhere" else 0.5,
        resumes_first=chance.random() < 0.5,
    )


def _everything() -> ExecutionPlan:
    plan = ExecutionPlan(id="everything", name="everything", description="A plan that reaches every target")
    for index, effect in enumerate(TOOL_NAMES):
        undo: dict[str, JsonValue] = {"body": f"undo s{index} ${{{{ result.token }}}}", "secret": SECRET}
        rollback = None if effect == "read" else Rollback(tool_name=TOOL_NAMES[effect], parameters=undo)
        upstream = [step.id for step in plan.steps]
        body: dict[str, JsonValue] = {"body": body_of(plan, index, upstream), "secret": SECRET}
        plan.add_step(TOOL_NAMES[effect], f"Step {index}", body, id=f"s{index}", depends_on=upstream, rollback=rollback)
    plan.add_step("write", "Fail", {"body": "s3", "secret": SECRET, "fails": ALWAYS}, id="s3", depends_on=[plan.steps[-1].id])
    plan.finally_ = _one_final_of_each_effect()
    return plan


def _one_final_of_each_effect() -> list[Step]:
    return [_final(index, effect) for index, effect in enumerate(TOOL_NAMES)]


def _finally_again() -> ExecutionPlan:
    plan = ExecutionPlan(id="finally-again", name="finally-again", description="A plan whose `finally` steps run twice")
    plan.options.require_approval = False
    plan.add_step("write", "Write", {"body": "s0", "secret": SECRET}, id="s0")
    plan.finally_ = _one_final_of_each_effect()
    return plan


def _items() -> ExecutionPlan:
    plan = ExecutionPlan(id="items", name="items", description="A plan whose group rolls back a failed item")
    plan.add_step("write", "First", {"body": "s0", "secret": SECRET}, id="s0", rollback=_undo("s0", "write"))
    effects: tuple[Effect, ...] = ("write", "idempotent_write")
    inner = [_group_step(index, effect, effect) for index, effect in enumerate(effects)]
    inner.append(_group_step(2, "read", None))
    inner[-1].parameters["fails"] = f"${{{{ item == 1 ? {ALWAYS} : 0 }}}}"
    group = Step(id="g", description="Group", for_each="${{ [0, 1, 2] }}", steps=inner, depends_on=["s0"], max_failures=1)
    group.on_error, group.rollback_failed = "continue", True
    plan.steps.append(group)
    plan.number_steps()
    return plan


def _undo(name: str, effect: Effect) -> Rollback:
    return Rollback(tool_name=TOOL_NAMES[effect], parameters={"body": f"undo {name} ${{{{ result.token }}}}", "secret": SECRET})


def _group_step(index: int, effect: Effect, undo: Effect | None) -> Step:
    """Return the step number `index` of a group, which uses the token of the step before it."""
    name, tokens = f"g{index}", [f"${{{{ steps.g{index - 1}.result.token }}}}"] if index else []
    parameters: dict[str, JsonValue] = {"body": " ".join((name, *tokens)), "secret": SECRET, "item": "${{ item }}"}
    rollback = None if undo is None else _undo(name, undo)
    if rollback is not None:
        rollback.parameters["item"] = "${{ item }}"
    return Step(id=name, tool_name=TOOL_NAMES[effect], description=f"Step {name}", parameters=parameters, rollback=rollback)


def _commands() -> ExecutionPlan:
    plan = ExecutionPlan(id="commands", name="commands", description="A plan whose steps start commands")
    plan.options.require_approval = False
    for index, effect in enumerate(TOOL_NAMES):
        plan.add_step(TOOL_NAMES[effect], f"Step {index}", {"body": f"s{index}", "secret": SECRET}, id=f"s{index}")
        _start_command(plan.steps[-1], effect)
    plan.options.allow_parallel = False
    return plan


def _start_command(step: Step, effect: Effect) -> None:
    """Let a command perform the effect of `step`."""
    step.tool_name, step.effect = COMMAND_TOOL, effect
    step.parameters["effect"] = effect


def _goal() -> ExecutionPlan:
    plan = ExecutionPlan(id="goal", name="goal", description="A plan with a goal")
    done_when = verdicts("not_met", "cannot_tell")
    plan.steps = [Step(id="k0", goal=goal_text(GOAL_SCRIPT), tools=[*TOOL_NAMES.values()], done_when=done_when)]
    plan.number_steps()
    return plan


def _revised() -> ExecutionPlan:
    plan = ExecutionPlan(id="revised", name="revised", description="A plan that gets a new version")
    plan.options.require_approval = False
    plan.add_step("put", "Put", {"body": "s0", "secret": SECRET}, id="s0")
    plan.add_step("write", "Write", {"body": "s1", "secret": SECRET}, id="s1", depends_on=["s0"])
    return plan


def has_commands(plan: ExecutionPlan) -> bool:
    """Return whether a step of `plan`, or of a plan inside it, starts a command."""
    return any(step.tool_name == COMMAND_TOOL for step in plan.all_steps)


def has_goals(plan: ExecutionPlan) -> bool:
    """Return whether a step of `plan`, or of a plan inside it, is a goal."""
    return any(step.goal is not None for step in plan.all_steps)


def plan_of(chance: random.Random, *, name: str) -> ExecutionPlan:
    """Return a plan of 3 to 9 steps."""
    plan = ExecutionPlan(id=name, name=name, description="A plan of the fault tests 计划")
    plan.options.allow_parallel = chance.random() < 0.7
    plan.options.max_parallel_steps = chance.randint(2, 4)
    count = chance.randint(3, 9)
    fails_at = count - 1 if chance.random() < 0.4 else None
    for index in range(count):
        _add_step(plan, chance, index, always_fails=index == fails_at)
    if chance.random() < 0.4:
        _add_group(plan, chance)
    _add_sub_plan(plan, random.Random(f"sub-plan of {name}"))  # its own source of randomness, so that the rest of the plan does not change
    _add_goals(plan, random.Random(f"goals of {name}"))
    _add_commands(plan, random.Random(f"commands of {name}"))
    if chance.random() < 0.5:
        plan.finally_ = [_random_final(chance, index) for index in range(chance.randint(1, 2))]
    return plan


def _add_group(plan: ExecutionPlan, chance: random.Random) -> None:
    """Add a group of 2 or 3 steps, which may fail for one item. Its items run one or two at a time."""
    items = list(range(chance.randint(2, 3)))
    after = [step.id for step in plan.steps if chance.random() < 0.3][-2:]
    inner = list[Step]()
    fails_at = chance.choice(("", "g0", "g1")) if chance.random() < 0.3 else ""
    for index in range(chance.randint(2, 3)):
        effect: Effect = chance.choice(("read", "idempotent_write", "write"))
        step = _group_step(index, effect, effect if effect != "read" and chance.random() < 0.6 else None)
        step.parameters |= {"fails": ALWAYS} if step.id == fails_at else {}
        step.requires_approval = chance.random() < 0.1
        inner.append(step)
    plan.steps.append(
        Step(
            id="g",
            description="Group",
            for_each=f"${{{{ {items} }}}}",
            steps=inner,
            depends_on=after,
            batch=chance.choice((None, 1, 2)),
            max_failures=chance.choice((0, 0, 1)),
            rollback_failed=chance.random() < 0.5,
            requires_approval=chance.choices((False, True, "each"), (8, 1, 1))[0],
        )
    )
    _let_items_fail(plan.steps[-1], random.Random(f"items of {plan.name}"))  # its own source, so that the rest does not change
    plan.number_steps()


def _let_items_fail(group: Step, chance: random.Random) -> None:
    """Let half of the groups continue after a failure; half of these also fail for some items and roll them back."""
    if chance.random() < 0.5:
        return
    group.on_error = "continue"
    if chance.random() < 0.5:
        group.rollback_failed, group.max_failures = True, chance.choice((0, 1))
        group.steps[-1].parameters["fails"] = f"${{{{ item == {chance.choice((0, 1))} ? {ALWAYS} : 0 }}}}"


def _add_sub_plan(plan: ExecutionPlan, chance: random.Random) -> None:
    """Add a sub-plan of 2 or 3 steps, perhaps with a gate, a failing step, or another sub-plan."""
    if chance.random() < 0.5:
        return
    after = [step.id for step in plan.steps if chance.random() < 0.3 and step.ask is None and step.for_each is None][-1:]
    given = {"word": f"${{{{ steps.{after[0]}.result.token }}}}" if after else ""}
    inner = _sub_plan(chance, "p")
    if chance.random() < 0.3:
        deeper = Step(
            id="q", plan="store:deeper@1", pinned=_sub_plan(chance, "q"), inputs={"word": "${{ inputs.word }}"}, depends_on=["p0"]
        )
        inner.steps.append(deeper)
        inner.number_steps()
    plan.steps.append(
        Step(
            id="p",
            plan="store:inner@1",
            pinned=inner,
            inputs={**given},
            depends_on=after,
            requires_approval=chance.random() < 0.1,
            on_error=chance.choice((None, None, "continue")),
        )
    )
    plan.number_steps()


def _add_commands(plan: ExecutionPlan, chance: random.Random) -> None:
    """Let commands perform the effects of some steps that do not fail."""
    if chance.random() < 0.7:
        return
    effects: dict[str, Effect] = {name: effect for effect, name in TOOL_NAMES.items()}
    outer = [inner for step in plan.steps for inner in (step, *step.steps)]
    for step in [*outer, *plan.finally_]:
        if step.tool_name in effects and not step.parameters.get("fails") and chance.random() < 0.5:
            _start_command(step, effects[step.tool_name])


def _add_goals(plan: ExecutionPlan, chance: random.Random) -> None:
    """Add one or two goals, a step that depends on them, and perhaps a goal in the sub-plan."""
    if chance.random() < 0.5:
        return
    inner = next((step.pinned for step in plan.steps if step.pinned is not None), None)
    if inner is not None and chance.random() < 0.4:
        inner.steps.append(_goal_step(chance, "pk", [inner.steps[0].id], ["${{ inputs.word }}"]))
        inner.number_steps()
    plain = [step.id for step in plan.steps if not step.inner]
    for index in range(chance.choice((1, 1, 2))):
        before = [step_id for step_id in plain if chance.random() < 1.5 / len(plain)][-2:]
        plan.steps.append(_goal_step(chance, f"k{index}", before, _tokens(plan, before)))
        plain.append(f"k{index}")
    if chance.random() < 0.5:
        body = body_of(plan, len(plan.steps), plain[-1:])
        plan.steps.append(Step(id="t", tool_name="put", parameters={"body": body, "secret": SECRET}, depends_on=plain[-1:]))
    if chance.random() < 0.3:
        plan.approval = ApprovalPolicy(always_execute=["put"])
    plan.number_steps()


def _goal_step(chance: random.Random, name: str, before: list[str], tokens: list[str]) -> Step:
    kinds: tuple[RoundKind, ...] = ("look", "failing", "broken", "put", "write", "unwanted", "ask")
    ends: tuple[RoundKind, RoundKind] = ("end", "abort")
    script: list[RoundKind] = ["look"]
    script += chance.choices(kinds, (3, 1, 2, 3, 4, 2, 2), k=chance.randint(1, 4))
    script.append(ends[chance.choice((0,) * 9 + (1,))])
    done_when = chance.choice((None, verdicts("met"), verdicts("not_met", "met"), verdicts("cannot_tell")))
    if done_when == verdicts("not_met", "met"):
        script.extend(("look", "end"))  # a second check needs new evidence
    return Step(
        id=name,
        goal=goal_text(script, tokens),
        description=f"Goal {name}",
        tools=[*TOOL_NAMES.values()],
        done_when=done_when,
        max_rounds=chance.randint(2, len(script)) if chance.random() < 0.15 else None,
        requires_approval=chance.random() < 0.1,
        depends_on=before,
    )


def _sub_plan(chance: random.Random, letter: str) -> ExecutionPlan:
    inner = ExecutionPlan(description="A plan inside", inputs={"word": Input(default="")})
    fails_at = chance.choice(("", f"{letter}1")) if chance.random() < 0.3 else ""
    for index in range(chance.randint(2, 3)):
        effect: Effect = chance.choice(("read", "idempotent_write", "write"))
        name, tokens = f"{letter}{index}", f"${{{{ steps.{letter}{index - 1}.result.token }}}}" if index else "${{ inputs.word }}"
        parameters: dict[str, Any] = {"body": f"{name} {tokens}", "secret": SECRET} | ({"fails": ALWAYS} if name == fails_at else {})
        undo: dict[str, JsonValue] = {"body": f"undo {name} ${{{{ result.token }}}} ${{{{ inputs.word }}}}", "secret": SECRET}
        is_undone = effect != "read" and chance.random() < 0.6
        rollback = Rollback(tool_name=TOOL_NAMES[effect], parameters=undo) if is_undone else None
        inner.add_step(TOOL_NAMES[effect], name, parameters, id=name, rollback=rollback, requires_approval=chance.random() < 0.1)
    return inner


def _random_final(chance: random.Random, index: int) -> Step:
    effect: Effect = chance.choice(("read", "idempotent_write", "write"))
    step = _final(index, effect, fails=int(chance.random() < 0.2))
    step.requires_approval = chance.random() < 0.1
    return step


def _final(index: int, effect: Effect, *, fails: int = 0) -> Step:
    body = f"{FINAL}{index}" + (f" ${{{{ steps.{FINAL}{index - 1}.result.token }}}}" if index else "")
    return Step(
        id=f"{FINAL}{index}",
        tool_name=TOOL_NAMES[effect],
        description=f"Final step {index}",
        parameters={"body": body, "secret": SECRET, "fails": fails},
        max_retries=fails,
    )


def _add_step(plan: ExecutionPlan, chance: random.Random, index: int, *, always_fails: bool) -> None:
    upstream = [step.id for step in plan.steps if chance.random() < 1.5 / max(1, len(plan.steps))][-3:]
    if always_fails and not upstream:
        upstream = [step.id for step in plan.steps[-1:]]
    effect: Effect = chance.choices(("read", "idempotent_write", "write"), (2, 3, 4))[0]
    is_list = chance.random() < 0.2
    fails = ALWAYS if always_fails else int(chance.random() < 0.2)
    fields: dict[str, Any] = {"for_each": f"${{{{ {list(range(chance.randint(2, 3)))} }}}}"} if is_list else {}
    if effect != "read" and chance.random() < 0.6:
        undo: Effect = chance.choice(("idempotent_write", "write"))
        body: dict[str, JsonValue] = {"body": f"undo s{index} ${{{{ result.token }}}}", "secret": SECRET}
        body |= {"item": "${{ item }}"} if is_list else {}
        fields["rollback"] = Rollback(tool_name=TOOL_NAMES[undo], parameters=body)
    if always_fails and chance.random() < 0.2:
        fields["on_error"] = "continue"
    # Its own source of randomness, so that the rest of a seed's plan stays the same without questions.
    if effect == "read" and not is_list and not fails and random.Random(f"{plan.name} {index}").random() < 0.5:
        question = Question(question=body_of(plan, index, upstream), fields={"choice": Input()})
        plan.steps.append(Step(id=f"s{index}", ask=question, description=f"Step {index}", depends_on=upstream))
        return
    parameters: dict[str, JsonValue] = {"body": body_of(plan, index, upstream), "secret": SECRET}
    parameters |= {"item": "${{ item }}"} if is_list else {}
    parameters |= {"fails": fails} if fails else {}
    plan.add_step(
        TOOL_NAMES[effect],
        f"Step {index}",
        parameters,
        id=f"s{index}",
        depends_on=upstream,
        max_retries=1 if fails == 1 else 0,
        requires_approval=chance.random() < 0.2,
        **fields,
    )


def body_of(plan: ExecutionPlan, index: int, upstream: list[str]) -> str:
    """Return the body of a step's call: its name, and the tokens of its upstream steps."""
    return " ".join((f"s{index}", *_tokens(plan, upstream)))


def _tokens(plan: ExecutionPlan, upstream: list[str]) -> list[str]:
    steps = {step.id: step for step in plan.steps}
    return [f"${{{{ steps.{step_id}.{_token_path(steps[step_id])} }}}}" for step_id in upstream]


def _token_path(step: Step) -> str:
    """Return the path of the token in a step's result, which later steps repeat."""
    if step.goal is not None:
        return "result.summary"
    return "result[0].token" if step.for_each else "result.token" if step.ask is None else "result.choice"
