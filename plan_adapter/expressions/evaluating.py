"""The process behind an Evaluator: it evaluates expressions that may need much memory, each within a limit."""

import json
import os
import resource
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plan_adapter.expressions import cel
from plan_adapter.expressions.bounded import MAX_MEMORY_BYTES, MAX_VALUE_BYTES, TOO_LARGE, TOO_MUCH_MEMORY, Kind
from plan_adapter.expressions.expression import to_plain_json


def serve() -> None:
    """Evaluate the expressions on stdin, one per line, each with a memory limit. Runs in an Evaluator's process."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    cel.evaluate("1 + 1", (), {})  # loads the library, whose own memory does not count
    for line in sys.stdin.buffer:
        code, variables, values = json.loads(line)
        limit = _mapped_bytes() + MAX_MEMORY_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))
        answer = _evaluate_to_json(code, tuple((name, kind) for name, kind in variables), values)
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
        sys.stdout.buffer.write(answer.encode() + b"\n")
        sys.stdout.buffer.flush()


def _evaluate_to_json(code: str, variables: tuple[tuple[str, str], ...], values: Mapping[str, Any]) -> str:
    """Return the outcome of an expression as JSON."""
    kind: Kind
    try:
        text = json.dumps(["value", to_plain_json(cel.evaluate(code, variables, values), in_order=True)])
        if len(text) <= MAX_VALUE_BYTES:
            return text
        kind, message = "cel", TOO_LARGE
    except cel.CelValueError as error:
        kind, message = "cel", str(error)
    except TypeError as error:
        kind, message = "type", str(error)
    except RecursionError:
        kind, message = "depth", ""
    except MemoryError:
        kind, message = "cel", TOO_MUCH_MEMORY
    return json.dumps([kind, message])


def _mapped_bytes() -> int:
    """Return how many bytes this process has mapped. Systems without /proc do not enforce RLIMIT_AS either."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 2**62
