"""Our tools for agents of other libraries: one module for each library, which is imported only there."""


def missing_extra(library: str, extra: str) -> ImportError:
    """Return the error that says how to install `library`, which this package needs for its `extra`."""
    return ImportError(f"{library} is not installed: `pip install 'prefect-plan-adapter[{extra}]'`")
