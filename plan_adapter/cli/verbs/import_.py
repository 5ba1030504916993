"""`plan import`."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from plan_adapter.cli import output
from plan_adapter.cli.drafting import Destination
from plan_adapter.cli.exit_codes import ExitCode, UsageError
from plan_adapter.cli.records import version_json
from plan_adapter.cli.sources import open_store, read_source_text, tools_of
from plan_adapter.documents import read_documents, read_mapping_text
from plan_adapter.gates.approval import os_user
from plan_adapter.local.settings import Settings
from plan_adapter.model.readable import counted
from plan_adapter.validation import lint

if TYPE_CHECKING:
    from plan_adapter.documents.recorded_runs import ImportedPlan
    from plan_adapter.model.plan import ExecutionPlan
    from plan_adapter.model.problems import Problem
    from plan_adapter.tools.registry import ToolRegistry

_FILE_NAME_CHARACTERS = 60
_LOOKS_FOREIGN = re.compile(r"[\"']?\b(?:jobs|mainSteps)\b[\"']?\s*:")
"""Keys that no plan of ours has at the top. This is only a hint: `is_convertible` decides on the parsed document."""


@dataclass(frozen=True, slots=True)
class _ImportOptions:
    """How to convert the plans."""

    name: str | None
    save: bool
    results: bool
    leave_out_unknown: bool


async def import_plans(
    file: str,
    /,
    *,
    name: str | None = None,
    out: Annotated[Path | None, Parameter(name=("--output", "-o"))] = None,
    save: bool = False,
    results: bool = False,
    leave_out_unknown: bool = False,
    force: bool = False,
    tools: list[str] | None = None,
    json: bool = False,
) -> int:
    """Convert what other programs wrote: Aster's JSON, workflows of GitHub Actions, Automation documents of AWS Systems Manager.

    Any plan document is accepted as well, in PascalCase, camelCase or snake_case. The kind of file is recognized by its content. For a
    workflow or an Automation document, notes say what was kept, changed and left out. Where something that does real work cannot be
    converted, it becomes a step that fails, so that a run stops there, and says what to write.

    Ids stay. What a file says about an earlier execution (approved, status, times) is kept as history under `metadata.history`; it is
    neither an approval nor a receipt, so the plan waits for an approval like any other. A field that plans do not have is reported and
    refused, unless you leave it out. Anything else that keeps the plan from running, such as a missing tool, is reported too, and can be
    fixed in the document that is written.

    Args:
        file: A file, or `-` for stdin: a plan, a workflow, an Automation document, an array of plans, or one plan per line (JSON Lines).
        name: The name of the plan; default: its own. Only for one plan.
        out: The file to write, or for several plans the folder, with one file each; default: stdout, unless they are stored.
        save: Store each as the next version of its name, with you as its author.
        results: Keep the results and errors of steps in the history; they may contain secrets.
        leave_out_unknown: Leave out fields that plans do not have.
        force: Overwrite files.
        tools: `package.module:name` of a tool or registry that the plans use; may be repeated.
        json: Print one JSON object per plan: plan, notes, and the stored version; or one per problem.
    """
    text, registry = read_source_text(file, "the plans"), tools_of(tools or [])
    options = _ImportOptions(name, save, results, leave_out_unknown)
    imported = _convert_foreign(text, file, options, registry, as_json=json)
    if imported is None:
        imported = _import_documents(read_documents(text, file=file), file, options, registry, as_json=json)
    if imported is None:
        return ExitCode.USAGE
    destinations = _destinations(imported, out, force=force, tools=tuple(tools or ()), is_needed=not (save or json))
    versions = [None] * len(imported)
    if save:
        async with open_store(Settings()) as store:
            versions = [await store.save(each.plan, author=os_user()) for each in imported]
    for converted, destination, version in zip(imported, destinations, versions, strict=True):
        if json:
            output.json_line(
                "imported_plan", {"plan": converted.plan.to_document(), "notes": [*converted.notes], "saved": version_json(version)}
            )
        if destination is not None and (destination.path is not None or not (json or save)):
            destination.write_plan(converted.plan)
        for text in converted.notes:
            output.note(f"note: {converted.plan.name}: {text}")
        if version is not None:
            output.note(f"saved version {version.version} of {version.name}, by {version.author}")
    return ExitCode.DONE


def _convert_foreign(text: str, file: str, options: _ImportOptions, tools: "ToolRegistry", *, as_json: bool) -> "list[ImportedPlan] | None":
    """Return the plan converted from another program's document, and print its problems; None for any other text.

    Raises UsageError if nothing in the document can be converted.
    """
    if not _LOOKS_FOREIGN.search(text):
        return None
    from plan_adapter.importers.importing import NotConvertibleError, convert_document, is_convertible

    document, problems = read_mapping_text(text, file=file, aliases=True)
    if document is None and any(problem.code in ("anchor", "too-large") for problem in problems):
        output.problems(problems, as_json=as_json, to_stdout=False)
        raise UsageError(f"{file} cannot be imported: it cannot be read")
    if document is None or not is_convertible(document):
        return None
    try:
        imported = convert_document(document, source=Path(file).name, name=options.name)
    except NotConvertibleError as error:
        for text in error.notes:
            output.note(f"note: {text}")
        raise UsageError(f"{file} cannot be imported: {error}") from None
    problems += lint(imported.plan, tools)
    output.problems(problems, as_json=as_json, to_stdout=False)
    if errors := [problem for problem in problems if problem.severity == "error"]:
        output.note(f"converted, but fix {counted(len(errors), 'error')} above before it can run")
        if options.save:
            raise UsageError(f"{file}: a plan with errors is not saved")
    return [imported]


def _import_documents(
    read: "list[tuple[ExecutionPlan | None, list[Problem]]]", file: str, options: _ImportOptions, tools: "ToolRegistry", *, as_json: bool
) -> "list[ImportedPlan] | None":
    """Return the imported plans, and print every problem; None if a plan cannot be imported."""
    from plan_adapter.documents.recorded_runs import import_plan

    all_problems = [problem for plan, problems in read for problem in (problems if plan is None else lint(plan, tools))]
    all_problems = [problem for problem in all_problems if not _has_note(problem)]
    output.problems(all_problems, as_json=as_json, to_stdout=False)
    read_problems = [problem for _, problems in read for problem in problems]
    unknown = [problem for problem in read_problems if problem.code == "unknown-field"]
    to_fix = [problem for problem in all_problems if problem.severity == "error" and problem not in read_problems]
    blocking = [problem for problem in read_problems if not (options.leave_out_unknown and problem in unknown)]
    blocking += [problem for problem in to_fix if options.save and problem.code != "unknown-tool"]
    if blocking:
        hint = f"; `--leave-out-unknown` leaves out {counted(len(unknown), 'unknown field')}" if unknown else ""
        output.note(f"nothing was converted: fix the problems above{hint}")
        return None
    if to_fix:
        output.note(f"converted as written; fix {counted(len(to_fix), 'error')} above before it can run")
    if not read:
        raise UsageError(f"{file} holds no plan")
    if options.name is not None and len(read) > 1:
        raise UsageError(f"{file} holds {len(read)} plans, but --name fits only one")
    return [import_plan(plan, source=Path(file).name, name=options.name, results=options.results) for plan, _ in read if plan is not None]


def _has_note(problem: "Problem") -> bool:
    """Return whether a note of the import says what a problem says: both options about approvals are kept as they are."""
    return problem.code == "contradicting-policies" and problem.at.endswith("options.auto_approve")


def _destinations(
    plans: "list[ImportedPlan]", out: Path | None, *, force: bool, tools: tuple[str, ...], is_needed: bool
) -> list[Destination | None]:
    """Return where each plan goes. Raises UsageError, before anything is written, if a plan cannot go there."""
    names = [plan.plan.name for plan in plans]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise UsageError(f"several plans are called {', '.join(repeated[:5])}: give each its own `name`")
    if len(plans) == 1:
        destinations = [Destination(out, force=force, tools=tools)]
    elif out is None:
        if is_needed:
            raise UsageError(f"there are {len(plans)} plans: give --output FOLDER, --save or --json")
        return [None] * len(plans)
    else:
        if not out.is_dir():
            raise UsageError(f"there are {len(plans)} plans, and {out} is not a folder")
        destinations = [Destination(out / file_name, force=force, tools=tools) for file_name in _file_names(names)]
    if faults := [fault for destination in destinations for fault in destination.faults()]:
        raise UsageError("; ".join(faults))
    return [*destinations]


def _file_names(names: list[str]) -> list[str]:
    """Return a file name for each plan, unique even where the file system ignores case."""
    found, used = list[str](), set[str]()
    for name in names:
        stem = re.sub(r"[^\w.-]+", "-", name).strip("-.")[:_FILE_NAME_CHARACTERS] or "plan"
        candidate, number = stem, 2
        while candidate.casefold() in used:
            candidate, number = f"{stem}-{number}", number + 1
        used.add(candidate.casefold())
        found.append(f"{candidate}.yaml")
    return found
