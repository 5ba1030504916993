"""`plan approve`."""

from plan_adapter.cli.answering import AnswerOptions, GateSelector, Instead, answer_in_store, delegate_in_store, refuse_item, show_gate
from plan_adapter.cli.exit_codes import UsageError
from plan_adapter.cli.remote import answer_remotely
from plan_adapter.cli.sources import open_store
from plan_adapter.local.settings import Settings
from plan_adapter.model.approvals import TAKE_BACK


async def approve(
    run: str | None = None,
    /,
    step: str | None = None,
    *,
    item: str | None = None,
    digest: str | None = None,
    yes: bool = False,
    note: str = "",
    sign: bool = False,
    code: str | None = None,
    by: str | None = None,
    delegate_to: str | None = None,
    take_back: str | None = None,
    show: bool = False,
    api: bool = False,
    json: bool = False,
) -> int:
    """Approve a waiting run or step. You are shown what waits and asked to confirm it; a script needs `--digest` or `--yes`.

    Args:
        run: The id of a run, its beginning or end, `last`, or the id of a flow run; `plan gates` lists the runs that wait.
        step: The step to approve. Without it the plan is approved; if only one step waits, you are asked whether you mean that one.
        item: The item of the step's `for_each`: its label (`web-2`) or its number from 1.
        digest: The approval digest of what you read, or at least its first 8 characters: nothing else is approved.
            Without it you confirm at the terminal.
        yes: Approve what waits without being asked and without `--digest`. It does not approve content that has changed since the run was
            created, or the call of a model, and nothing with `--api`: these need `--digest`.
        note: A note to record with the answer.
        sign: Sign the answer with your SSH key.
        code: Your one-time code.
        by: Who is answering (with `--sign` or `--code`); default: your account.
        delegate_to: Let this person answer instead of you, and approve nothing. The plan must allow it (`approval: {delegate: true}`).
        take_back: Take back that you let this person answer, and approve nothing. It is too late once they have approved.
        show: Print everything that the gate asks about, and approve nothing.
        api: Answer through Prefect's API: for a machine that cannot reach the store.
        json: Print one JSON object.
    """
    options = AnswerOptions("approve", note=note, sign=sign, code=code, by=by)
    selector, settings = gate_selector(run, step, item, digest, yes=yes), Settings()
    instead = Instead(delegate_to) if delegate_to is not None else None if take_back is None else Instead(take_back, TAKE_BACK)
    if instead is None:
        return await answer_gate(selector, options, settings, api=api, show=show, as_json=json)
    given = {"--delegate-to": delegate_to is not None, "--take-back": take_back is not None, "--api": api, "--show": show}
    if len(several := [option for option, is_given in given.items() if is_given]) > 1:
        raise UsageError(f"{several[0]} and {several[1]} exclude each other")
    async with open_store(settings) as store:
        return await delegate_in_store(selector, options, instead, store, settings, as_json=json)


async def answer_gate(
    selector: GateSelector, options: AnswerOptions, settings: Settings, *, api: bool, show: bool = False, as_json: bool
) -> int:
    """Answer at a gate: in the store, or with `api` in its form in Prefect. `show`: only print what the gate asks about."""
    if api:
        return await answer_remotely(selector, options, settings, show=show, as_json=as_json)
    async with open_store(settings) as store:
        if show:
            return await show_gate(selector, store, as_json=as_json)
        return await answer_in_store(selector, options, store, settings, as_json=as_json)


def gate_selector(run: str | None, step: str | None, item: str | None, digest: str | None, *, yes: bool = False) -> GateSelector:
    """Return the selector of the gate to answer. Raises UsageError if no run is given."""
    if run is None:
        raise UsageError("which run? `plan gates` lists the runs that wait")
    refuse_item(item)
    return GateSelector(run, step, item, digest, yes=yes)
