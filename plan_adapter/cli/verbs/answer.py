"""`plan answer`."""

from plan_adapter.cli.answering import AnswerOptions
from plan_adapter.cli.verbs.approve import answer_gate, gate_selector
from plan_adapter.local.settings import Settings


async def answer(
    run: str,
    step: str,
    /,
    *fields: str,
    digest: str | None = None,
    note: str = "",
    sign: bool = False,
    code: str | None = None,
    by: str | None = None,
    show: bool = False,
    api: bool = False,
    json: bool = False,
) -> int:
    """Answer the question of a step. At a terminal, without fields, you are asked for them.

    A process that waits for the answer continues now; otherwise type `plan resume`. `plan reject RUN STEP` rejects the question.

    Args:
        run: The id of a run, its beginning or end, `last`, or the id of a flow run; `plan gates` lists what waits.
        step: The step that asks.
        fields: `field=value`, one for each field of the question. Fields with a default may be left out.
        digest: The digest of what you read, or at least its first 8 characters: the answer applies only to that question.
            Without it you confirm at the terminal; a script can then answer only a question that has not changed.
        note: A note to record with the answer.
        sign: Sign the answer with your SSH key.
        code: Your one-time code.
        by: Who is answering (with `--sign` or `--code`); default: your account.
        show: Print the question, and answer nothing.
        api: Answer through Prefect's API: for a machine that cannot reach the store.
        json: Print one JSON object.
    """
    options = AnswerOptions("approve", note=note, sign=sign, code=code, by=by, fields=fields)
    return await answer_gate(gate_selector(run, step, None, digest), options, Settings(), api=api, show=show, as_json=json)
