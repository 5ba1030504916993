"""Names that verbs and options had before. They still work for one minor version, with a line that says what to write now."""

from collections.abc import Mapping, Sequence

VERBS: Mapping[tuple[str, ...], tuple[str, ...]] = {
    ("runs", "list"): ("runs",),
    ("runs", "verify"): ("verify",),
    ("store", "verify"): ("verify",),
    ("versions",): ("show", "--versions"),
    ("undeploy",): ("deploy", "--delete"),
}
"""The first words of a command before, and now."""

OPTIONS: Mapping[str, Mapping[str, str]] = {
    "cancel": {"--reason": "--note"},
    "rollback": {"--reason": "--note"},
    "resume": {"--because": "--note"},
    "preview": {"--because": "--note"},
    "promote": {"--out": "--output"},
    "import": {"--out": "--output"},
    "draft": {"--tool": "--allow-tool"},
    "pursue": {"--tool": "--allow-tool"},
    "revise": {"--tool": "--allow-tool"},
    "mcp": {"--tool": "--allow-tool"},
    "serve": {"--limit": "--concurrency-limit"},
}
"""The options of a verb before, and now."""


def current_names(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the arguments with today's names, and a line about each name that is no longer used."""
    words, notes = [*arguments], list[str]()
    for before, now in VERBS.items():
        if tuple(words[: len(before)]) == before:
            words[: len(before)] = now
            notes.append(_note(" ".join(("plan", *before)), " ".join(("plan", *now))))
            break
    end = words.index("--") if "--" in words else len(words)
    if words[:1] == ["cancel"] and "--rollback" in words[:end]:
        words.remove("--rollback")
        words[0] = "rollback"
        notes.append(_note("plan cancel --rollback", "plan rollback"))
        end -= 1
    options: Mapping[str, str] = OPTIONS.get(words[0], {}) if words else {}
    for index, word in enumerate(words[:end]):
        name, equals, value = word.partition("=")
        if name in options:
            words[index] = f"{options[name]}{equals}{value}"
            notes.append(_note(name, options[name]))
    return words, list(dict.fromkeys(notes))


def _note(before: str, now: str) -> str:
    return f"`{before}` is called `{now}` now; the old name works until the next minor version"
