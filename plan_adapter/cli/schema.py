"""`plan schema`."""

from pathlib import Path

from plan_adapter.cli import output
from plan_adapter.cli.codes import ExitCode


def schema(file: Path | None = None, /, *, json: bool = False) -> int:
    """Print the JSON Schema of plan documents, or write it to a file, so that editors complete and check plans.

    A plan names the file in its first line: # yaml-language-server: $schema=plan.schema.json

    Args:
        file: Where to write it; without one it is printed.
        json: Print it in one line.
    """
    import json as json_format

    from plan_adapter.documents import plan_schema

    if json:
        output.json_line(plan_schema())
        return ExitCode.DONE
    text = json_format.dumps(plan_schema(), indent=2, ensure_ascii=file is None) + "\n"
    if file is None:
        output.line(text.rstrip("\n"))
        return ExitCode.DONE
    output.write_file(file, text)
    output.note(f"wrote {file}")
    return ExitCode.DONE
