"""The examples of the guide's page on tools that are run as they stand."""

import re
from pathlib import Path

import plan_adapter

PAGE = Path(plan_adapter.__file__).parent / "guide" / "tools.md"


def example(name: str) -> str:
    """Return the Python example of this name: its block begins with ```python NAME."""
    found = re.search(rf"^```python {name}\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert found is not None, f"the page has no example {name}"
    return found[1]
