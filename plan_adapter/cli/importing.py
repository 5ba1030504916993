"""`plan import`."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from plan_adapter.cli import output
from plan_adapter.cli.codes import ExitCode, UsageError
from plan_adapter.cli.drafting import Destination
from plan_adapter.cli.records import saved_json
from plan_adapter.cli.sources import open_store, text_of, tools_of
from plan_adapter.documents import read_documents, read_mapping_text
from plan_adapter.gates.approval import os_user
from plan_adapter.readable import counted
from plan_adapter.settings import Settings
from plan_adapter.validation import lint

if TYPE_CHECKING:
    from plan_adapter.plan import ExecutionPlan
    from plan_adapter.plan_import import ImportedPlan
    from plan_adapter.problems import Problem
    from plan_adapter.tools.registry import ToolRegistry

_FILE_NAME_CHARACTERS = 60
_LOOKS_FOREIGN = re.compile(r"[\"']?\b(?:jobs|mainSteps)\b[\"']?\s*:")
"""What no plan of our own contains at its top: the reader decides."""


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
    out: Annotated[Path | None, Parameter(name=("--out", "--output", "-o"))] = None,
    save: bool = False,
    results: bool = False,
    leave_out_unknown: bool = False,
    force: bool = False,
    tools: list[str] | None = None,
    json: bool = False,
) -> int:
    """Convert what other programs wrote: Aster's JSON, workflows of GitHub Actions, Automation documents of AWS Systems Manager.

    Any plan document is taken as well, in PascalCase, camelCase or snake_case. The kind of file is recognized by its content. For a
    workflow or an Automation document, notes say what was kept, changed and left out. Where something that does real work cannot be
    converted, it becomes a step that fails, so that a run stops there, and that says what to write.

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
    text, registry = text_of(file, "the plans"), tools_of(tools or [])
    wanted = _ImportOptions(name, save, results, leave_out_unknown)
    taken = _converted(text, file, wanted, registry, as_json=json)
    if taken is None:
        taken = _taken(read_documents(text, file=file), file, wanted, registry, as_json=json)
    if taken is None:
        return ExitCode.USAGE
    targets = _targets(taken, out, force=force, tools=tuple(tools or ()), is_needed=not (save or json))
    versions = [None] * len(taken)
    if save:
        async with open_store(Settings()) as store:
            versions = [await store.save(one.plan, author=os_user()) for one in taken]
    for one, target, version in zip(taken, targets, versions, strict=True):
        if json:
            output.json_line({"plan": one.plan.to_document(), "notes": [*one.notes], "saved": saved_json(version)})
        if target is not None and (target.path is not None or not (json or save)):
            target.write_plan(one.plan)
        for text in one.notes:
            output.note(f"note: {one.plan.name}: {text}")
        if version is not None:
            output.note(f"saved version {version.version} of {version.name}, by {version.author}")
    return ExitCode.DONE


def _converted(text: str, file: str, wanted: _ImportOptions, tools: "ToolRegistry", *, as_json: bool) -> "list[ImportedPlan] | None":
    """Return the plan of another program's document, and print its problems; None if the text is no such document.

    Raises UsageError if nothing of the document can be converted.
    """
    if not _LOOKS_FOREIGN.search(text):
        return None
    from plan_adapter.runbooks.importing import NotConvertibleError, convert_document, is_convertible

    document, problems = read_mapping_text(text, file=file)
    if document is None or not is_convertible(document):
        return None
    try:
        imported = convert_document(document, source=Path(file).name, name=wanted.name)
    except NotConvertibleError as error:
        for text in error.notes:
            output.note(f"note: {text}")
        raise UsageError(f"{file} cannot be imported: {error}") from None
    problems += lint(imported.plan, tools)
    output.problems(problems, as_json=as_json, to_stdout=False)
    if errors := [problem for problem in problems if problem.severity == "error"]:
        output.note(f"converted, but fix {counted(len(errors), 'error')} above before it can run")
        if wanted.save:
            raise UsageError(f"{file}: a plan with errors is not saved")
    return [imported]


def _taken(
    read: "list[tuple[ExecutionPlan | None, list[Problem]]]", file: str, wanted: _ImportOptions, tools: "ToolRegistry", *, as_json: bool
) -> "list[ImportedPlan] | None":
    """Return the converted plans, and print every problem; None if a plan cannot be converted."""
    from plan_adapter.plan_import import import_plan

    found = [problem for plan, problems in read for problem in (problems if plan is None else lint(plan, tools))]
    output.problems(found, as_json=as_json, to_stdout=False)
    unread = [problem for _, problems in read for problem in problems]
    unknown = [problem for problem in unread if problem.code == "unknown-field"]
    to_fix = [problem for problem in found if problem.severity == "error" and problem not in unread]
    stops = [problem for problem in unread if not (wanted.leave_out_unknown and problem in unknown)]
    stops += [problem for problem in to_fix if wanted.save and problem.code != "unknown-tool"]
    if stops:
        hint = f"; `--leave-out-unknown` leaves out {counted(len(unknown), 'unknown field')}" if unknown else ""
        output.note(f"nothing was converted: fix the problems above{hint}")
        return None
    if to_fix:
        output.note(f"converted as written; fix {counted(len(to_fix), 'error')} above before it can run")
    if not read:
        raise UsageError(f"{file} holds no plan")
    if wanted.name is not None and len(read) > 1:
        raise UsageError(f"{file} holds {len(read)} plans: --name is for one")
    return [import_plan(plan, source=Path(file).name, name=wanted.name, results=wanted.results) for plan, _ in read if plan is not None]


def _targets(
    plans: "list[ImportedPlan]", out: Path | None, *, force: bool, tools: tuple[str, ...], is_needed: bool
) -> list[Destination | None]:
    """Return where each plan goes. Raises UsageError, before anything is written, if a plan cannot go there."""
    names = [one.plan.name for one in plans]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise UsageError(f"several plans are called {', '.join(repeated[:5])}: give each its own `name`")
    if len(plans) == 1:
        targets = [Destination(out, force=force, tools=tools)]
    elif out is None:
        if is_needed:
            raise UsageError(f"there are {len(plans)} plans: give --out FOLDER, --save or --json")
        return [None] * len(plans)
    else:
        if not out.is_dir():
            raise UsageError(f"there are {len(plans)} plans, and {out} is not a folder")
        targets = [Destination(out / file_name, force=force, tools=tools) for file_name in _file_names(names)]
    if faults := [fault for target in targets for fault in target.faults()]:
        raise UsageError("; ".join(faults))
    return [*targets]


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
