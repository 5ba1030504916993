"""`plan reject`."""

from plan_adapter.cli.answering import AnswerOptions
from plan_adapter.cli.verbs.approve import answer_gate, gate_selector
from plan_adapter.local.settings import Settings


async def reject(
    run: str | None = None,
    /,
    step: str | None = None,
    *,
    item: str | None = None,
    digest: str | None = None,
    note: str = "",
    changes: bool = False,
    yes: bool = False,
    sign: bool = False,
    code: str | None = None,
    by: str | None = None,
    api: bool = False,
    json: bool = False,
) -> int:
    """Reject a waiting run or step, or ask for changes.

    Args:
        run: The id of a run, its beginning or end, `last`, or the id of a flow run; `plan gates` lists the runs that wait.
        step: The step to reject. Without it the plan is rejected; if only one step waits, you are asked whether you mean that one.
        item: The item of the step's `for_each`: its label (`web-2`) or its number from 1.
        digest: The approval digest of what you read, or at least its first 8 characters: nothing else is rejected.
        note: Why; it is recorded with the answer.
        changes: Ask for changes instead of ending the run; say which with `--note`.
        yes: Reject without being asked.
        sign: Sign the answer with your SSH key.
        code: Your one-time code.
        by: Who is answering (with `--sign` or `--code`); default: your account.
        api: Answer through Prefect's API: for a machine that cannot reach the store.
        json: Print one JSON object.
    """
    options = AnswerOptions("request_changes" if changes else "reject", note=note, sign=sign, code=code, by=by)
    return await answer_gate(gate_selector(run, step, item, digest, yes=yes), options, Settings(), api=api, as_json=json)
