"""The checks before a goal may end that need neither a model nor a person. What is judged or computed is up to `Pursuit`."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from plan_adapter.errors import error_text
from plan_adapter.execution.calling import work_of
from plan_adapter.goals import Check, Evidence, ExecuteDecision, cited_evidence
from plan_adapter.readable import counted
from plan_adapter.tools.tool import Tool, ToolContext


def passed(reason: str) -> Check:
    """Return a check that passed."""
    return Check(passed=True, reason=reason)


def failed(reason: str) -> Check:
    """Return a check that failed. `reason` is what the model is sent, and says what to do instead."""
    return Check(passed=False, reason=reason)


def flow_check(decision: ExecuteDecision, *, is_last: bool) -> Check:
    """Return whether `decision`, which ends the step, is right at this place of the plan.

    A question or a confirmation keeps its round open until it is answered, so the only call that can be open is the decision's own.
    """
    if decision.tool_call is not None:
        call = decision.tool_call.name
        return failed(
            f"`{decision.action}` calls nothing, and nobody confirmed `{call}`: make the call first, with `confirm` or `continue`"
        )
    if decision.action == "done" and not is_last:
        return failed("`done` ends the plan, and other steps of it are left: use `next_plan`")
    return passed("this is the last step" if is_last else "other steps of the plan are left")


def citation_fault(decision: ExecuteDecision, evidence: Sequence[Evidence]) -> str:
    """Return what is wrong with the evidence that `goal_check` cites, in words that the model is sent, or nothing."""
    known, cited = [one.id for one in evidence], cited_evidence(decision.goal_check)
    if not known:
        return "there is no evidence yet: call a tool first, with `continue` for a read and `confirm` for a write"
    if not cited:
        return f"`goal_check` has to cite evidence by its id: {_among(known)}"
    if unknown := [one for one in cited if one not in known]:
        return f"`goal_check` cites {_among(unknown)}, which does not exist: the evidence is {_among(known)}"
    return ""


def safety_check(evidence: Sequence[Evidence], *, is_judged: bool, guarded: Sequence[str] = ()) -> Check:
    """Return whether the step may end without a risk. `is_judged`: `done_when` was judged not met, and nothing new was found since.

    Without new evidence it is not judged again: a model must not ask until the verifier, or a tired person, says yes. `guarded` is what
    the guards of the tools say.
    """
    reasons = [*guarded]
    if is_judged:
        reasons.append("done_when was judged with this evidence, and is not met: find new evidence, or use `abort`")
    if reasons:
        return failed("; ".join(reasons))
    writes = sum(one.source == "write_receipt" for one in evidence)
    return passed(f"{counted(writes, 'write')}, each confirmed or in `always_execute`" if writes else "nothing was written")


async def guard_reasons(tools: Mapping[str, Tool[..., Any]], evidence: Sequence[Evidence], context: ToolContext) -> list[str]:
    """Return why the guards of the `tools` that were called for a write do not let the step end, or how they failed."""
    called = dict.fromkeys(one.name for one in evidence if one.source == "write_receipt")
    reasons = list[str]()
    for guard in {id(guard): guard for name in called if (guard := tools[name].guard) is not None}.values():
        try:
            said = await work_of(guard, guard.bind({}, context), isolation="thread")
        except Exception as error:
            said = error_text(error, context.redact)
        if said:
            reasons.append(f"`{guard.name}`: {said}")
    return reasons


def _among(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
