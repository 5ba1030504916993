"""`plan explain`."""

from plan_adapter.cli import output
from plan_adapter.cli.exit_codes import ExitCode, UsageError
from plan_adapter.model.problems import CATALOGUE, did_you_mean


def explain(code: str | None = None, /, *, json: bool = False) -> int:
    """Explain the code of a problem: what it means and how to fix it.

    Args:
        code: The code in brackets on the line of a problem; without one, all codes are listed.
        json: Print JSON Lines.
    """
    wanted = list(CATALOGUE) if code is None else [code.strip().strip("[]")]
    if code is not None and wanted[0] not in CATALOGUE:
        raise UsageError(f"no problem has the code `{wanted[0]}`; {did_you_mean(wanted[0], list(CATALOGUE))}")
    for name in wanted:
        if json:
            output.json_line("explanation", {"code": name, "explanation": CATALOGUE[name]})
        else:
            output.line(f"{name}: {CATALOGUE[name]}")
    return ExitCode.DONE
