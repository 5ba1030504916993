"""No field of a plan, at any depth, weakens a gate of a plan around it or inside it. A new field needs a value here.

A plan is put around or into another plan that demands as much as it can, and its fields take the values that ask for the least.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest

from plan_adapter.gates.approval import gate_policy_of, policy_in_force
from plan_adapter.gates.policy import EffectivePolicy
from plan_adapter.model.approvals import GatePolicy
from plan_adapter.model.options import ApprovalPolicy, ExecutionOptions
from plan_adapter.model.plan import ExecutionPlan
from plan_adapter.tools.registry import ToolRegistry
from plan_adapter.tools.tool import tool
from plan_adapter.validation import bind_inputs, lint, validate

LOOSE: Mapping[str, Any] = {
    "version": 1,
    "id": "other",
    "name": "Another name",
    "description": "Another description",
    "inputs": {"x": {"type": "string", "default": "a"}},
    "outputs": {"x": "y"},
    "isolation": "process",
    "triggers": [{"event": "alert.firing"}],
    "metadata": {"approval": {"approvers": ["intern"]}},
    "tags": ["reviewed"],
    "run_name": "approved",
    "language": "zh",
    "permissions": ["reorder"],
    "hosts": {"web": {"hosts": {"web-1": {}}}},
    "approval.approvers": ["intern"],
    "approval.operators": ["intern"],
    "approval.quorum": 1,
    "approval.self_approval": True,
    "approval.author_approval": True,
    "approval.escalate": {"after_ms": 1000, "to": ["intern"]},
    "approval.delegate": True,
    "approval.known_by": ["unverified"],
    "approval.effects": [],
    "approval.always_execute": ["drop", "arrange"],
    "approval.expires": "skip",
    "approval.remind_after_ms": 1,
    "approval.release": True,
    "options.require_approval": False,
    "options.auto_approve": True,
    "options.approval_timeout_ms": 1,
    "options.allow_parallel": True,
    "options.max_parallel_steps": 9,
    "options.stop_on_error": False,
    "options.continue_on_error": True,
    "options.step_timeout_ms": 1,
    "options.finally_timeout_ms": 1,
}
"""The value of a field that asks for the least."""

REFUSED: Mapping[str, Any] = {
    "finally": [{"id": "last", "tool_name": "drop"}],
    "concurrency": {"key": "k", "when_busy": "cancel_older"},
    "on_failure": "replan",
    "options.run_window": {"cron": "* * * * *", "duration_ms": 60_000},
    "options.total_timeout_ms": 1,
}
"""The value of a field that no plan inside another may have."""

CONTENT = {"steps", "approval", "options"}
"""What the plans here consist of."""

PEOPLE = ("sre", "intern")
ALL_FIELDS = {
    *(field.alias or name for name, field in ExecutionPlan.model_fields.items()),
    *(f"approval.{name}" for name in ApprovalPolicy.model_fields),
    *(f"options.{name}" for name in ExecutionOptions.model_fields),
}


@tool(effect="write")
def drop(name: str = "") -> None:
    """Drop a table."""


@tool(effect="write", permissions=["reorder"])
def arrange(name: str = "") -> None:
    """Arrange everything."""


@tool(effect="read")
def look(name: str = "") -> str:
    """Look."""
    return name


TOOLS = ToolRegistry([drop, arrange, look])
STEPS = [
    {"id": "read", "tool_name": "look"},
    {"id": "write", "tool_name": "drop"},
    {"id": "undone", "tool_name": "look", "rollback": {"tool_name": "drop"}},
    {"id": "group", "for_each": "${{ ['a', 'b'] }}", "steps": [{"id": "each", "tool_name": "drop"}]},
    {"id": "model", "goal": "Tidy up", "tools": ["drop", "arrange", "look"]},
]
STRICT: dict[str, Any] = {
    "description": "Demands all it can",
    "approval": {
        "approvers": ["sre"],
        "operators": ["sre"],
        "known_by": ["totp"],
        "quorum": 2,
        "self_approval": False,
        "author_approval": False,
        "effects": ["write"],
    },
}
PLAIN: dict[str, Any] = {"description": "Says nothing", "options": {"require_approval": False}}


def with_field(document: dict[str, Any], field: str, value: Any) -> dict[str, Any]:
    """Return `document` with another value of a field, such as `approval.expires`."""
    part, _, name = field.rpartition(".")
    if not part:
        return {**document, name: value}
    return {**document, part: {**document.get(part, {}), name: value}}


def nested(*documents: dict[str, Any]) -> ExecutionPlan:
    """Return the first plan with the next inside it, and so on. The last one has the steps."""
    *around, inner = documents
    document = {"name": f"level {len(around)}", **inner, "steps": STEPS}
    for level, outer in reversed([*enumerate(around)]):
        document = {"name": f"level {level}", **outer, "steps": [{"id": "part", "plan": "inner.yaml", "pinned": document}]}
    return ExecutionPlan.model_validate(document)


class GateRules(NamedTuple):
    """Who may answer at a gate, at once and after an escalation, with which proofs, and who may not approve."""

    approvers: Collection[str]
    proofs: Collection[str]
    quorum: int
    self_approval: bool
    author_approval: bool
    delegate: bool
    escalated: Collection[str]

    @classmethod
    def of(cls, gate: GatePolicy) -> "GateRules":
        """Return the rules of a gate policy, with everybody where it names nobody."""
        later = policy_in_force(gate, is_escalated=True)
        return cls(
            _known(gate.approvers, PEOPLE),
            _known(gate.known_by, PROOFS),
            gate.quorum,
            gate.self_approval,
            not gate.authors,
            gate.delegate,
            _known(later.approvers, PEOPLE),
        )

    def accepts_no_more_than(self, other: "GateRules") -> bool:
        """Return whether each answer that is accepted here is accepted by `other`, too."""
        return (
            {*self.approvers} <= {*other.approvers}
            and {*self.escalated} <= {*other.escalated}
            and {*self.proofs} <= {*other.proofs}
            and self.quorum >= other.quorum
            and self.self_approval <= other.self_approval
            and self.author_approval <= other.author_approval
            and self.delegate <= other.delegate
        )


@dataclass(frozen=True)
class Rules:
    """What must happen before a step, or a call of its model: the people and proofs that each gate accepts, and what it may do."""

    gates: tuple[GateRules, ...]
    confirmed: Collection[str]
    permissions: Collection[str]
    operators: Collection[str]

    def is_as_strict_as(self, other: "Rules") -> bool:
        """Return whether every gate of `other` is here as well, and accepts no more, and nothing else is allowed."""
        return (
            all(any(gate.accepts_no_more_than(demanded) for gate in self.gates) for demanded in other.gates)
            and {*self.confirmed} >= {*other.confirmed}
            and {*self.permissions} <= {*other.permissions}
            and {*self.operators} <= {*other.operators}
        )


def _known(accepted: Collection[str] | None, everything: Collection[str]) -> Collection[str]:
    return everything if accepted is None else accepted


PROOFS = ("ssh_signature", "totp", "os_user", "form", "unverified")


def rules_of(plan: ExecutionPlan) -> dict[str, Rules]:
    """Return the rules of each step that has no steps inside it, by its id in its own document."""
    validated = bind_inputs(validate(plan, TOOLS)).validated
    plan = validated.plan
    found = dict[str, Rules]()
    operators = set(PEOPLE)
    for each in plan.plans.values():
        operators &= set((each.approval or ApprovalPolicy()).operators or PEOPLE)
    for step in plan.all_steps:
        if step.inner:
            continue
        places = [None] if plan.options.asks else []
        outer = step
        while outer is not None:
            places += [outer.id] if validated.has_gate(outer) else []
            outer = next((known for known in plan.all_steps if known.id == outer.outer), None)
        gates = [gate_policy_of(plan, EffectivePolicy(), requested_by="sre", authors=("cy",), step_id=place) for place in places]
        found[step.local_id] = Rules(
            gates=tuple(map(GateRules.of, gates)),
            confirmed=[name for name, effect in validated.goal_effects(step.id).items() if effect != "read"],
            permissions=validated.permissions_at(step).names,
            operators=operators,
        )
    return found


def assert_as_strict(plan: ExecutionPlan, demanded: ExecutionPlan) -> None:
    rules, before = rules_of(plan), rules_of(demanded)
    weaker = [name for name, rule in before.items() if not rules[name].is_as_strict_as(rule)]
    assert weaker == [], {name: (before[name], rules[name]) for name in weaker}


def test_every_field_is_classified() -> None:
    assert {*LOOSE, *REFUSED, *CONTENT} == ALL_FIELDS
    assert not LOOSE.keys() & REFUSED.keys()


def test_the_strict_plan_demands_all_it_can() -> None:
    written = {f"approval.{name}" for name in STRICT["approval"]}
    rules = rules_of(nested(STRICT))
    demanded = GateRules(("sre",), ("totp",), 2, self_approval=False, author_approval=False, delegate=False, escalated=("sre",))
    assert rules["write"].gates == rules["undone"].gates == rules["each"].gates == rules["model"].gates == (demanded, demanded)
    assert (rules["read"].gates, rules["model"].confirmed, rules["model"].permissions) == ((demanded,), ["drop", "arrange"], [])
    for field in LOOSE:  # what else a policy or a list of permissions says only loosens, or says how a gate behaves
        is_rule = field.startswith("approval.") or field == "permissions"
        assert (
            not is_rule
            or field in written
            or field.split(".")[-1] in ("always_execute", "expires", "remind_after_ms", "release", "permissions", "escalate", "delegate")
        )


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("field", LOOSE)
def test_an_inner_plan_cannot_weaken_the_rules_of_one_around_it(field: str, depth: int) -> None:
    middle = [PLAIN] * (depth - 1)
    assert_as_strict(nested(STRICT, *middle, with_field(PLAIN, field, LOOSE[field])), nested(STRICT))


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("field", LOOSE)
def test_an_outer_plan_cannot_weaken_the_rules_of_one_inside_it(field: str, depth: int) -> None:
    middle = [PLAIN] * (depth - 1)
    assert_as_strict(nested(with_field(PLAIN, field, LOOSE[field]), *middle, STRICT), nested(STRICT))


@pytest.mark.parametrize("field", LOOSE)
def test_a_plan_in_the_middle_cannot_weaken_the_rules_of_the_others(field: str) -> None:
    loose = with_field(PLAIN, field, LOOSE[field])
    assert_as_strict(nested(STRICT, loose, PLAIN), nested(STRICT))
    assert_as_strict(nested(PLAIN, loose, STRICT), nested(STRICT))


def test_all_fields_together_weaken_nothing() -> None:
    loose = PLAIN
    for field, value in LOOSE.items():
        loose = with_field(loose, field, value)
    loose["options"] = {**loose["options"], "stop_on_error": False, "continue_on_error": True}
    del loose["options"]["auto_approve"]
    assert_as_strict(nested(STRICT, loose, loose), nested(STRICT))
    assert_as_strict(nested(loose, loose, STRICT), nested(STRICT))


EXPRESSION = "${{ inputs.x == 'a' ? ['reorder'] : [] }}"
"""Permissions that the inputs of a run decide. By default they give `reorder`."""


@pytest.mark.parametrize("depth", [1, 2])
def test_permissions_that_the_inputs_decide_weaken_no_other_plan(depth: int) -> None:
    decides = {**PLAIN, "inputs": LOOSE["inputs"], "permissions": EXPRESSION}
    middle = [PLAIN] * (depth - 1)
    assert_as_strict(nested(STRICT, *middle, decides), nested(STRICT))
    assert_as_strict(nested(decides, *middle, STRICT), nested(STRICT))
    given = {**PLAIN, "permissions": ["reorder"]}
    for plans, names in (
        ((decides, decides), ["reorder"]),
        ((given, decides), ["reorder"]),
        ((decides, PLAIN), []),
        ((PLAIN, decides), []),
    ):
        assert rules_of(nested(*plans))["model"].permissions == names


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("field", REFUSED)
def test_a_field_that_only_the_outermost_plan_may_have_is_refused(field: str, depth: int) -> None:
    plan = nested(*[PLAIN] * depth, with_field(PLAIN, field, REFUSED[field]))
    errors = [problem for problem in lint(plan, TOOLS) if problem.severity == "error"]
    assert [(problem.code, problem.at) for problem in errors] == [("not-yet", f"{'steps[0].pinned.' * depth}{field}")]


def test_what_loosens_counts_if_all_plans_say_it() -> None:
    loose = {**PLAIN, "permissions": ["reorder"], "approval": {"always_execute": ["drop"]}}
    rules = rules_of(nested(loose, loose, loose))["model"]
    assert (rules.permissions, rules.confirmed) == (["reorder"], ["arrange"])
    for silent in range(3):
        plans = [PLAIN if level == silent else loose for level in range(3)]
        rules = rules_of(nested(*plans))["model"]
        assert (rules.permissions, rules.confirmed) == ([], ["drop", "arrange"])
