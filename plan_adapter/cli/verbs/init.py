"""`plan init`."""

import shlex
from json import dumps as quoted
from pathlib import Path

from plan_adapter.cli import output
from plan_adapter.cli.exit_codes import ExitCode, UsageError
from plan_adapter.model.readable import one_line

STARTER = """\
# A plan: steps that call tools. Next: plan validate @PATH@, plan preview @PATH@, plan run @PATH@
# `plan tools` lists the tools. `plan schema plan.schema.json` writes a schema, so that editors can complete and check this file:
# make `# yaml-language-server: $schema=plan.schema.json` its first line.
name: @NAME@
description: Greet somebody, and say what time it is

inputs:                           # what a run is given: plan run @PATH@ --input who=you
  who: {type: string, default: world, description: Whom to greet}

approval: {required: false}       # required: true (the default): somebody approves exactly this content before anything runs
max_parallel: 3                   # steps that do not depend on each other run side by side
timeout: 2m                       # of the whole run; `plan preview` shows the worst case
defaults: {timeout: 30s}          # of each attempt of a step

steps:
  - id: greet
    description: Say hello
    run_command: [printf, "Hello, %s!", "${{ inputs.who }}"]
    timeout: 5s                   # overrides the default
    # effect: read                # only for a command that changes nothing: a command counts as a write, which is never repeated by
                                  # itself (`plan validate` warns about the line, because nothing checks that it is true)

  - id: clock
    description: Read the clock, beside the greeting
    run_command: [date, "+%H:%M"]
    # retry: {times: 2, delay: 500ms}   # a failed attempt is followed by up to two more

  - id: report
    description: Put both together
    run_command: [printf, "%s It is %s", "${{ steps.greet.result.stdout }}", "${{ steps.clock.result.stdout }}"]
    needs: clock                  # using `steps.greet.result` makes a dependency by itself

outputs:
  report: "${{ steps.report.result.stdout }}"
"""


def init(path: Path = Path("plan.yaml"), /, *, json: bool = False) -> int:
    """Write a starter plan, with comments, that validates and runs; an existing file is never overwritten.

    Args:
        path: The file to write.
        json: Print the path as JSON.
    """
    text = STARTER.replace("@PATH@", one_line(shlex.quote(str(path)))).replace("@NAME@", quoted(one_line(path.stem)))
    try:
        with path.open("x", encoding="utf-8", newline="\n") as file:
            file.write(text)
    except FileExistsError:
        raise UsageError(f"{path} already exists", hint="give another name: `plan init NAME.yaml`") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}") from error
    if json:
        output.json_line("file", {"path": str(path)})
    else:
        output.line(f"wrote {path}; try `plan run {shlex.quote(str(path))} --offline`")
    return ExitCode.DONE
