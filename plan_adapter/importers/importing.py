"""Recognizes documents of other programs and converts them to plans: workflows of GitHub Actions, Automation documents of AWS."""

from collections.abc import Mapping
from typing import Any

from pydantic import JsonValue

from plan_adapter.documents.recorded_runs import ImportedPlan, written_secrets
from plan_adapter.importers.conversion import NotConvertibleError, Report
from plan_adapter.importers.github import convert_workflow, is_workflow
from plan_adapter.importers.ssm import convert_automation, is_automation
from plan_adapter.model.plan import ExecutionPlan

__all__ = ["NotConvertibleError", "convert_document", "is_convertible"]


def is_convertible(document: Mapping[str, JsonValue]) -> bool:
    """Return whether `convert_document` reads this kind of document, by its content."""
    return is_workflow(document) or is_automation(document)


def convert_document(document: Mapping[str, Any], *, source: str, name: str | None = None) -> ImportedPlan:
    """Return the plan of a document that was read from a file called `source`. Its notes say what was kept, changed and left out.

    Raises NotConvertibleError if nothing of the document can be converted.
    """
    report = Report()
    convert = convert_workflow if is_workflow(document) else convert_automation
    try:
        plan = ExecutionPlan.model_validate(convert(document, report, source="imported" if source.startswith("<") else source))
    except NotConvertibleError as error:
        error.notes = report.lines()
        raise
    if name is not None:
        plan.name = name
    return ImportedPlan(plan, (*report.lines(), *written_secrets(plan)))
