"""`plan approve`."""

from plan_adapter.cli.answering import Place, Words, answer_here, refuse_item, show_gate
from plan_adapter.cli.codes import UsageError
from plan_adapter.cli.sources import open_store
from plan_adapter.settings import Settings


async def approve(
    run: str | None = None,
    /,
    *,
    step: list[str] | None = None,
    item: str | None = None,
    digest: str | None = None,
    note: str = "",
    sign: bool = False,
    code: str | None = None,
    by: str | None = None,
    show: bool = False,
    api: bool = False,
    standing: str | None = None,
    schedule: list[str] | None = None,
    until: str | None = None,
    runs: int | None = None,
    input: list[str] | None = None,
    tools: list[str] | None = None,
    file: bool = False,
    enroll: str | None = None,
    force: bool = False,
    json: bool = False,
) -> int:
    """Approve what a run waits for: its plan, or one of its steps. What is approved is shown first.

    With `--standing PLAN` it approves all runs of a plan that the schedules named start, until a date or for a number of runs.

    Args:
        run: The id of a run or its beginning, or of a flow run.
        step: The step whose gate is answered; without it that of the plan, or, confirmed at a terminal, of the only step that asks.
            With `--standing`, one that is approved, too (may be repeated).
        item: The item of the step's `for_each`: its label (`web-2`) or its number from 1.
        digest: The approval digest of what you read, or its first characters, at least 8: other content is not approved.
            Without it you are asked at a terminal; elsewhere content that changed after the run was created is not approved.
        note: What is recorded with the answer.
        sign: Sign the answer with your SSH key.
        code: Your one-time code.
        by: Whose answer it is, with `--sign` or `--code`; the operating system's user if it is not given.
        show: Print all of what is asked about, and answer nothing.
        api: Answer through Prefect's API alone: for a machine that does not reach the store.
        standing: A plan, as `plan run` takes it: approve its scheduled runs.
        schedule: With `--standing`: `flow/deployment` whose scheduled runs are approved; may be repeated.
        until: With `--standing`: the last day (`2026-12-31`), or a time.
        runs: With `--standing`: for how many runs.
        input: With `--standing`: `name=pattern`, a regular expression that the whole value of the input must fit; may be repeated.
        tools: With `--standing`: `package.module:name` of a tool or registry that the plan uses; may be repeated.
        file: With `--standing`: write it beside the plan as NAME.approval.yaml, signed, instead of into the store.
        enroll: Make one-time codes for this person: keep their seed in the store, encrypted, and print its otpauth URI once.
        force: With `--enroll`: replace the codes that the person has, without asking.
        json: Print one JSON object.
    """
    settings = Settings()
    if enroll is not None:
        from plan_adapter.cli.enrolling import enroll_person

        return await enroll_person(enroll, settings, force=force, as_json=json)
    if force:
        raise UsageError("--force goes with --enroll")
    words = Words("approve", note=note, sign=sign, code=code, by=by)
    if standing is not None:
        from plan_adapter.cli.standings import Wish, approve_standing

        if digest is not None:
            raise UsageError("--digest goes with a run: a standing approval is of the plan and tools that it was given for")

        if run is not None:
            raise UsageError("give a run, or --standing with a plan")
        wish = Wish(standing, tuple(schedule or ()), tuple(step or ()), until, runs, tuple(input or ()), tuple(tools or ()), in_file=file)
        return await approve_standing(wish, words, settings, as_json=json)
    if schedule or until or runs is not None or input or tools or file:
        raise UsageError("--schedule, --until, --runs, --input, --tools and --file go with --standing PLAN")
    return await answer_gate(place_of(run, step or [], item, digest), words, settings, api=api, show=show, as_json=json)


async def answer_gate(place: Place, words: Words, settings: Settings, *, api: bool, show: bool = False, as_json: bool) -> int:
    """Answer at a gate of the store, or with `api` in its form through Prefect; `show`: print what is asked, and answer nothing."""
    if api:
        from plan_adapter.cli.remote import answer_remotely

        return await answer_remotely(place, words, settings, show=show, as_json=as_json)
    async with open_store(settings) as store:
        if show:
            return await show_gate(place, store, as_json=as_json)
        return await answer_here(place, words, store, settings, as_json=as_json)


def place_of(run: str | None, steps: list[str], item: str | None, digest: str | None) -> Place:
    """Return which gate is meant; raises UsageError where that is not said."""
    if run is None:
        raise UsageError("say which run: `plan gates` lists what waits")
    if len(steps) > 1:
        raise UsageError("one answer is for one gate: give --step once")
    refuse_item(item)
    return Place(run, steps[0] if steps else None, item, digest)
