"""`plan reject`."""

from plan_adapter.cli.answering import Words
from plan_adapter.cli.approve import answer_gate, place_of
from plan_adapter.cli.codes import UsageError
from plan_adapter.settings import Settings


async def reject(
    run: str | None = None,
    /,
    *,
    step: str | None = None,
    item: str | None = None,
    digest: str | None = None,
    note: str = "",
    changes: bool = False,
    sign: bool = False,
    code: str | None = None,
    by: str | None = None,
    api: bool = False,
    standing: str | None = None,
    json: bool = False,
) -> int:
    """Reject what a run waits for, or ask for changes; with `--standing`, revoke a standing approval at once.

    Args:
        run: The id of a run or its beginning, or of a flow run.
        step: The step whose gate is answered; without it that of the plan, or, confirmed at a terminal, of the only step that asks.
        item: The item of the step's `for_each`: its label (`web-2`) or its number from 1.
        digest: The approval digest of what you read, or its first characters, at least 8: other content is not answered.
        note: Why; it is recorded with the answer.
        changes: Ask for changes instead of ending the run; `--note` says which.
        sign: Sign the answer with your SSH key.
        code: Your one-time code.
        by: Whose answer it is, with `--sign` or `--code`; the operating system's user if it is not given.
        api: Answer through Prefect's API alone: for a machine that does not reach the store.
        standing: The id of a standing approval, or its beginning.
        json: Print one JSON object.
    """
    settings = Settings()
    if standing is not None:
        from plan_adapter.cli.standings import revoke_standing

        if run is not None:
            raise UsageError("give a run, or --standing with the id of a standing approval")
        return await revoke_standing(standing, settings, as_json=json)
    words = Words("request_changes" if changes else "reject", note=note, sign=sign, code=code, by=by)
    return await answer_gate(place_of(run, [] if step is None else [step], item, digest), words, settings, api=api, as_json=json)
