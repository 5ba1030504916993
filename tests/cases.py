"""Many cases in one test. For short text checks, pytest's overhead for each parametrized test would exceed the check itself."""

import functools
import inspect
import itertools
from collections.abc import Callable, Iterable
from typing import Any


def for_each(**tables: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Like `pytest.mark.parametrize`, but in one test: it runs every combination and reports all failures together."""

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def all_cases(**fixtures: Any) -> None:
            failed = list[Exception]()
            for values in itertools.product(*tables.values()):
                case = dict(zip(tables, values, strict=True))
                try:
                    test(**fixtures, **case)
                except Exception as error:
                    error.add_note(f"with {case}")
                    failed.append(error)
            if failed:
                raise ExceptionGroup(f"{len(failed)} cases of {test.__name__}", failed)

        signature = inspect.signature(test)
        kept = [parameter for name, parameter in signature.parameters.items() if name not in tables]
        all_cases.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
        return all_cases

    return decorate
