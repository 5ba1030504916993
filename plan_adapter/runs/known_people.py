"""`why_unknown`: warns about the name of a person that nothing here mentions, such as a misspelt one."""

import asyncio
import pwd
from fnmatch import fnmatchcase

from plan_adapter.gates.policy import EffectivePolicy
from plan_adapter.gates.signatures import signer_patterns
from plan_adapter.local.settings import Settings
from plan_adapter.model.approvals import Gate
from plan_adapter.model.plan import ExecutionPlan
from plan_adapter.model.problems import did_you_mean
from plan_adapter.model.readable import one_line
from plan_adapter.store.store import PlanStore


async def why_unknown(name: str, gate: Gate, store: PlanStore, settings: Settings) -> str | None:
    """Return a warning if nothing here names the person who is to answer at `gate`, or None.

    It is only a warning, because people who sign in need not be named anywhere. `gate` is as it was before it named them.
    """
    policy = await store.policy.effective(settings)
    plan = await store.get((await store.run(gate.run_id, with_steps=False)).digest)
    known = _named_people(plan, policy, gate, settings)
    if name in known or await store.codes.seed(name) is not None or await asyncio.to_thread(_is_signer_or_account, name, policy):
        return None
    near = did_you_mean(name, known)
    hint = f" ({near})" if near.startswith("did") else ""
    return f"nobody called {one_line(name)} is among the approvers, operators, groups, signers, Slack users and one-time codes here{hint}"


def _named_people(plan: ExecutionPlan, policy: EffectivePolicy, gate: Gate, settings: Settings) -> frozenset[str]:
    """Return the people whom the plan, the policy, the gate and the settings name."""
    own = [each.approval for each in plan.plans.values() if each.approval is not None]
    named = [name for each in own for name in (*each.approvers, *each.operators, *(each.escalate.to if each.escalate else ()))]
    in_policy = (*policy.stored.approvers, *policy.stored.operators, *settings.approvers, *settings.operators)
    people = {*(policy.members([*named, *plan.approvers_of_questions, *in_policy]) or ())}
    people |= {member for members in policy.groups.values() for member in members}
    at_gate = gate.gate_policy
    people |= {*(at_gate.approvers or ()), *at_gate.escalate_to, at_gate.requested_by, at_gate.revised_by, *at_gate.authors}
    return frozenset(people | {*settings.desk_slack_users.values()})


def _is_signer_or_account(name: str, policy: EffectivePolicy) -> bool:
    if any(fnmatchcase(name, pattern) for pattern in signer_patterns(policy)):
        return True
    try:
        pwd.getpwnam(name)
    except (KeyError, ValueError):  # ValueError: a name with a null byte
        return False
    return True
