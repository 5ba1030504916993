"""Reads the examples on the guide's page about tools, so that tests can run them."""

import re
from pathlib import Path

import plan_adapter

PAGE = Path(plan_adapter.__file__).parent / "guide" / "tools.md"


def example(name: str) -> str:
    """Return the Python example called `name`. Its block begins with ```python NAME."""
    found = re.search(rf"^```python {name}\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert found is not None, f"the page has no example {name}"
    return found[1]
