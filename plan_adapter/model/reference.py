"""`Reference`: an expression for a value of a run, which Python code puts into the parameters of a step."""

import re

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Reference(str):
    """The text `${{ … }}` of a value, such as `step.result` or `plan.input("host")`. A step that uses it waits for the step it is of.

    `reference["path"]` and `reference[0]` are references to a part of the value. Inside a longer text, it becomes a part of that text.
    """

    __slots__ = ()

    @classmethod
    def to(cls, first: str, *parts: str | int) -> "Reference":
        """Return the reference to `first`, such as `steps`, and the members under it."""
        return cls(f"${{{{ {first}{''.join(map(_member, parts))} }}}}")

    def __getitem__(self, part: object) -> "Reference":  # pyright: ignore[reportIncompatibleMethodOverride]  # of the value, not of the text
        """Return the reference to a member of the value. Raises TypeError for anything but a name or an index."""
        if not isinstance(part, str | int) or isinstance(part, bool):
            raise TypeError(f"a part of a reference is a name or an index, not {part!r}")
        return type(self)(f"{self.removesuffix(' }}')}{_member(part)} }}}}")

    def __getattr__(self, name: str) -> "Reference":
        """Raise AttributeError, which says how to write the reference to a member."""
        raise AttributeError(f'a reference has no attribute `{name}`: the member of its value is `["{name}"]`')


def _member(part: str | int) -> str:
    if isinstance(part, int):
        return f"[{part}]"
    if _NAME.fullmatch(part):
        return f".{part}"
    escaped = part.replace("\\", "\\\\").replace('"', '\\"')
    return f'["{escaped}"]'
