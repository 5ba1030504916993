"""`plan erase`."""

from dataclasses import asdict
from typing import TYPE_CHECKING

from plan_adapter.cli import output
from plan_adapter.cli.asking import ask_to_confirm, is_at_terminal
from plan_adapter.cli.exit_codes import ExitCode, UsageError
from plan_adapter.cli.sources import open_store
from plan_adapter.gates.approval import os_user
from plan_adapter.local.settings import Settings
from plan_adapter.model.readable import counted, one_line

if TYPE_CHECKING:
    from plan_adapter.store.proof.erasing import Erasure


async def erase(run: str, /, *, fields: list[str], dry_run: bool = False, yes: bool = False, json: bool = False) -> int:
    """Erase personal data in the record and the result files of a run that has ended. `[erased]` takes its place.

    A text of at least four characters is also erased wherever else it occurs in the record of the run: in parameters, results, errors,
    gates, notes and the audit log, also where it is cut, folded over lines, or a key. The record still verifies: an erased word leaves its
    digest, and a tombstone names the rows, the fields, who erased them and when. The run cannot be resumed any more. Prefect's own copy of
    parameters, forms and logs stays. If a policy or plan names operators, only they can erase.

    Args:
        run: The id of a run, its beginning or end, or `last`.
        fields: What to erase, separated by commas: inputs.NAME, outputs.NAME, steps.ID.parameters.NAME, steps.ID.result, steps.ID.error,
            steps.ID.gate, gate, message or notes. A path can continue: `steps.fetch.result.rows[].name`.
        dry_run: Print how many values would be erased, and erase nothing.
        yes: Do not ask first.
        json: Print one JSON object.
    """
    from plan_adapter.runs.erase import erase_values, preview_erasure  # imports SQLAlchemy

    settings, caller = Settings(), os_user()
    selected = [field.strip() for text in fields for field in text.split(",") if field.strip()]
    if not selected:
        raise UsageError("erase what? `plan erase RUN --fields inputs.email`")
    if not (yes or dry_run or (is_at_terminal() and not json)):
        raise UsageError("`plan erase` cannot be undone: add --yes, or --dry-run to see what it would erase")
    async with open_store(settings) as store:
        erasure = await preview_erasure(run, selected, store=store, settings=settings, by=caller)
        is_erased = not dry_run and (yes or await ask_to_confirm(f"Erase {_describe(erasure)}? This cannot be undone."))
        if is_erased:
            erasure = await erase_values(erasure.run_id, selected, store=store, settings=settings, by=caller)
    _print_erasure(erasure, is_erased=is_erased, as_json=json)
    return ExitCode.DONE


def _print_erasure(erasure: "Erasure", *, is_erased: bool, as_json: bool) -> None:
    if as_json:
        fields = asdict(erasure)
        output.json_line("erasure", {"run": fields["run_id"], **fields, "files": sorted(erasure.files), "erased": is_erased})
    else:
        output.line(f"{'erased' if is_erased else 'would erase'} {_describe(erasure)}")
    if erasure.short:
        output.note(f"{counted(erasure.short, 'value')} shorter than 4 characters or without text: erased only in the named fields")
    for path in erasure.elsewhere:
        output.note(f"the result file {path} is not on this machine: repeat the command where it is")
    if is_erased:
        output.note("Prefect keeps its own copy of parameters, forms and logs: delete the flow run there")


def _describe(erasure: "Erasure") -> str:
    rows = ", ".join(f"{count} in {table}" for table, count in erasure.rows.items())
    files = f" and {counted(len(erasure.files), 'result file')}" if erasure.files else ""
    return (
        f"{', '.join(map(one_line, erasure.fields))} of run {erasure.run_id}: {counted(sum(erasure.rows.values()), 'row')} ({rows}){files}"
    )
