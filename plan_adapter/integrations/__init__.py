"""Our tools for agents of other libraries: one module for each library, which is imported only there."""

import json

from pydantic import JsonValue


def result_text(result: JsonValue) -> str:
    """Return the result of a tool as the model reads it: a text as it is, any other value as JSON."""
    return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)


def missing_extra(library: str, extra: str) -> ImportError:
    """Return the error that says how to install `library`, which this package needs for its `extra`."""
    return ImportError(f"{library} is not installed: `pip install 'prefect-plan-adapter[{extra}]'`")
