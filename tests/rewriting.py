"""Rewrites the assertions of all test files once, before the processes of pytest-xdist start."""

import sys
from pathlib import Path

import pytest
from _pytest.assertion import rewrite

ROOT = Path(__file__).parents[1]


def rewrite_assertions(config: pytest.Config) -> None:
    """Write the cached bytecode of each file whose assertions pytest rewrites, if it has none.

    Otherwise, after a fresh checkout, each process would rewrite every file, because all of them import the files in the same order.
    """
    state = config.stash.get(rewrite.assertstate_key, None)
    if sys.dont_write_bytecode or state is None or state.hook is None:
        return
    for file in (path for folder in ("tests", "plan_adapter") for path in sorted((ROOT / folder).rglob("*.py"))):
        bytecode = rewrite.get_cache_dir(file) / f"{file.stem}{rewrite.PYC_TAIL}"
        name = ".".join(file.relative_to(ROOT).with_suffix("").parts)
        if not bytecode.exists() and state.hook.find_spec(name, [str(file.parent)]) is not None:
            bytecode.parent.mkdir(exist_ok=True)
            source, code = rewrite._rewrite_test(file, config)
            rewrite._write_pyc(state, code, source, bytecode)
