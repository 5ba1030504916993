"""The checks before a goal may end that need neither a model nor a person. `Pursuit` judges or computes `done_when`."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from plan_adapter.errors import error_text
from plan_adapter.execution.calling import prepare_call
from plan_adapter.goals import Check, Evidence, ExecuteDecision, cited_evidence
from plan_adapter.readable import counted
from plan_adapter.tools.tool import Tool, ToolContext


def passed(reason: str) -> Check:
    """Return a check that passed."""
    return Check(passed=True, reason=reason)


def failed(reason: str) -> Check:
    """Return a check that failed. The model is sent `reason`, which says what to do instead."""
    return Check(passed=False, reason=reason)


def flow_check(decision: ExecuteDecision, *, is_last: bool) -> Check:
    """Return whether `decision`, which ends the step, fits this place in the plan.

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
    """Return what is wrong with the evidence that `goal_check` cites, or an empty text. The model is sent the answer."""
    known, cited = [item.id for item in evidence], cited_evidence(decision.goal_check)
    if not known:
        return "there is no evidence yet: call a tool first, with `continue` for a read and `confirm` for a write"
    if not cited:
        return f"`goal_check` has to cite evidence by its id: {_quoted(known)}"
    if unknown := [evidence_id for evidence_id in cited if evidence_id not in known]:
        return f"`goal_check` cites {_quoted(unknown)}, which does not exist: the evidence is {_quoted(known)}"
    return ""


def safety_check(evidence: Sequence[Evidence], *, is_judged: bool, objections: Sequence[str] = ()) -> Check:
    """Return whether the step may end safely. `is_judged`: `done_when` was judged not met, and nothing new was found since.

    Without new evidence it is not judged again: a model must not ask until the verifier, or a tired person, says yes. `objections` come
    from the guards of the tools.
    """
    reasons = [*objections]
    if is_judged:
        reasons.append("done_when was judged with this evidence, and is not met: find new evidence, or use `abort`")
    if reasons:
        return failed("; ".join(reasons))
    writes = sum(item.source == "write_receipt" for item in evidence)
    return passed(f"{counted(writes, 'write')}, each confirmed or in `always_execute`" if writes else "nothing was written")


async def guard_reasons(tools: Mapping[str, Tool[..., Any]], evidence: Sequence[Evidence], context: ToolContext) -> list[str]:
    """Return why the guards of the tools that wrote do not let the step end. A guard that fails does not let it end either."""
    called = dict.fromkeys(item.name for item in evidence if item.source == "write_receipt")
    reasons = list[str]()
    for guard in {id(guard): guard for name in called if (guard := tools[name].guard) is not None}.values():
        try:
            objection = await prepare_call(guard, guard.bind({}, context), isolation="thread")
        except Exception as error:
            objection = error_text(error, context.redact)
        if objection:
            reasons.append(f"`{guard.name}`: {objection}")
    return reasons


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
