"""Evaluates expressions that may need much memory in a separate, limited process. CEL itself limits items, not bytes."""

import atexit
import json
import os
import re
import select
import subprocess
import sys
import threading
from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Any, Literal, TypeAlias

MEGABYTE = 1024 * 1024

MAX_VALUE_BYTES = 64 * MEGABYTE
"""The limit for all values that one expression uses together, and for its result."""

MAX_MEMORY_BYTES = 128 * MEGABYTE
"""The limit for the memory that evaluating an expression takes on top of that."""

ORDINARY_BYTES = 4 * MEGABYTE
"""An expression that cannot produce more than this is evaluated in this process, as nearly all are."""

MAX_SECONDS = 10.0
START_SECONDS = 60.0

TOO_MUCH_MEMORY = f"it needs more than {MAX_MEMORY_BYTES // MEGABYTE} MB of memory; let a tool do that"
TOO_LARGE = f"the values have more than {MAX_VALUE_BYTES // MEGABYTE} MB; let a tool do that"
TOO_SLOW = f"it takes longer than {MAX_SECONDS:g} s; let a tool do that"

MAX_FORMAT_PADDING = 700
"""The most characters that `format` may produce for each character: `%.1000f` of 1e308."""

_SEARCHING_CALLS = frozenset({"all", "exists", "exists_one", "existsOne", "filter"})
_MULTIPLYING_CALLS = frozenset({"join", "map", "replace", "split"})
_CREATING_CALLS = frozenset({"bytes", "charAt", "format", "lowerAscii", "quote", "reverse", "string", "substring", "trim", "upperAscii"})
_INHERITED_VARIABLES = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "HOME")

Kind: TypeAlias = Literal["value", "cel", "type", "depth"]
"""The kind of an evaluation's outcome: a value, a CEL error, something that is not JSON, or a value nested too deeply."""


def may_grow(code: str, size: int) -> bool:
    """Return whether `code` may produce more than ORDINARY_BYTES from values of `size` bytes."""
    factors, exponent = _growth(code)
    largest = (size + len(code)) * factors
    return largest > ORDINARY_BYTES or exponent > 8 or largest**exponent > ORDINARY_BYTES


@lru_cache(maxsize=2048)
def _growth(code: str) -> tuple[int, int]:
    """Return the factor and the power by which an expression may grow its values. Words inside its strings count as well.

    Each `+` may copy everything joined before it. A loop may use all values for each of their members, and so may join and replace. A loop
    that only searches makes nothing, unless it creates new values to search.
    """
    words = re.findall(r"\w+", code)
    additions, multiplications = code.count("+"), sum(word in _MULTIPLYING_CALLS for word in words)
    creates_values = additions or multiplications or "[" in code or "{" in code or not _CREATING_CALLS.isdisjoint(words)
    searches = sum(word in _SEARCHING_CALLS for word in words) if creates_values else 0
    uses = max(1, words.count("item"), words.count("result"))  # every other value has a separate variable for each use
    padding = MAX_FORMAT_PADDING if "format" in words else 1
    return (additions + 1) * uses * padding, 2 ** min(multiplications + searches, 5)


@cache
def evaluator() -> "Evaluator":
    """Return the evaluator of this process."""
    return Evaluator()


class Evaluator:
    """A process that evaluates expressions. It starts with the first expression and ends with this process."""

    def __init__(self) -> None:
        """Prepare the evaluator without starting its process."""
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._lock = threading.Lock()
        atexit.register(self.close)

    def evaluate(self, code: str, variables: object, values: Mapping[str, Any]) -> tuple[Kind, Any]:
        """Return the value of `code` for `values` as JSON, or a message that says what is wrong."""
        request = json.dumps([code, variables, values]).encode() + b"\n"
        with self._lock:
            try:
                answer = self._exchange(self._ensure_process(), request, MAX_SECONDS)
            except (BrokenPipeError, EOFError):  # C++ aborts its process when memory runs out
                self.close()
                return "cel", TOO_MUCH_MEMORY
            except TimeoutError:
                self.close()
                return "cel", TOO_SLOW
            except RuntimeError as error:
                self.close()
                return "cel", str(error)
            except BaseException:
                self.close()
                raise
        kind, value = json.loads(answer)
        return kind, value

    def _ensure_process(self) -> "subprocess.Popen[bytes]":
        """Return the process, ready to evaluate. Raises RuntimeError if it cannot be started."""
        if self._process is None or self._process.poll() is not None or self._owner != os.getpid():
            command = [sys.executable, "-P", "-c", "from plan_adapter.expressions.evaluating import serve; serve()"]
            environment = {name: os.environ[name] for name in _INHERITED_VARIABLES if name in os.environ}
            self._process = subprocess.Popen(  # noqa: S603  # fixed arguments
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,  # Ctrl-C is for the run, which stops cleanly
            )
            self._owner = os.getpid()
            try:
                self._exchange(self._process, b'["true", [], {}]\n', START_SECONDS)
            except (OSError, EOFError):  # OSError includes TimeoutError
                raise RuntimeError(f"`{sys.executable}` cannot be started to evaluate expressions that need much memory") from None
        return self._process

    def _exchange(self, process: "subprocess.Popen[bytes]", request: bytes, seconds: float) -> bytes:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(request)
        process.stdin.flush()
        chunks = list[bytes]()
        poller = select.poll()
        poller.register(process.stdout, select.POLLIN)
        while not chunks or not chunks[-1].endswith(b"\n"):
            if not poller.poll(seconds * 1000):
                raise TimeoutError
            chunk = os.read(process.stdout.fileno(), MEGABYTE)
            if not chunk:
                raise EOFError
            chunks.append(chunk)
        return b"".join(chunks)

    def close(self) -> None:
        """End the evaluation process, if this process started it."""
        process, self._process = self._process, None
        if process is None or self._owner != os.getpid():
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:  # flushing unsent input
                    continue
