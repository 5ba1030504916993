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

options:
  require_approval: false         # true (the default): somebody approves exactly this content before anything runs
  allow_parallel: true            # steps that do not depend on each other run side by side
  step_timeout_ms: 30000          # for each attempt; 0 is no limit
  total_timeout_ms: 120000        # for the whole run; `plan preview` shows the worst case

steps:
  - id: greet
    tool_name: run_command
    description: Say hello
    parameters: {argv: [printf, "Hello, %s!", "${{ inputs.who }}"]}
    timeout_ms: 5000              # overrides step_timeout_ms
    # effect: read                # only for a command that changes nothing: a command counts as a write, which is never repeated by
                                  # itself (`plan validate` warns about the line, because nothing checks that it is true)

  - id: clock
    tool_name: run_command
    description: Read the clock, beside the greeting
    parameters: {argv: [date, "+%H:%M"]}
    # max_retries: 2              # a failed attempt is followed by up to two more
    # retry_delay_ms: 500

  - id: report
    tool_name: run_command
    description: Put both together
    depends_on: [clock]           # using `steps.greet.result` makes a dependency by itself
    parameters:
      argv: [printf, "%s It is %s", "${{ steps.greet.result.stdout }}", "${{ steps.clock.result.stdout }}"]

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
        raise UsageError(f"{path} already exists; give another name: `plan init NAME.yaml`") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}") from error
    if json:
        output.json_line({"path": str(path)})
    else:
        output.line(f"wrote {path}; try `plan run {shlex.quote(str(path))} --offline`")
    return ExitCode.DONE
