"""Compare values as strictly as their digests do."""

import json
from typing import Any


def exact(value: Any) -> str:
    """Return a text of `value` in which 1, 1.0, True and "1" differ and the order of keys does not matter."""
    return json.dumps(value, sort_keys=True) + str(type(value))
