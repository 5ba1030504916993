"""`gate_summary`: what a gate asks, short enough for a terminal; its whole text is one key away."""

from collections.abc import Iterator

from plan_adapter.gate_text import without_picture
from plan_adapter.readable import call_name, moment, one_line, visible
from plan_adapter.record import ApprovalRequest

SHOWN_LINES = 50
ALWAYS_SHOWN = "cannot be undone"
"""Words of lines that are shown wherever they stand."""
DIGESTS = "\n### Digests\n"


def gate_summary(request: ApprovalRequest) -> str:
    """Return the beginning of the text, all that cannot be undone, the approval digest and the time limit."""
    text = without_picture(request.text).rpartition(DIGESTS)[0] or request.text
    lines, is_approval = list(_compact(text)), request.kind == "approval"
    shown, rest = lines[:SHOWN_LINES], lines[SHOWN_LINES:]
    if rest:
        shown += [line for line in rest if ALWAYS_SHOWN in line.casefold()]
        shown.append(f"… {len(rest)} more lines; all of it: v" + (f", or `plan approve {request.run_id} --show`" if is_approval else ""))
    if not lines:
        call = f", step {call_name(request.step_id, request.item, request.label)}" if request.step_id else ""
        shown.append(one_line(f"{request.name}{call}: {request.description}"))
    shown += ["", f"approval digest: `{request.approval_digest}`"] if is_approval else []
    if request.expires_at is not None:
        shown.append(f"an answer is waited for until {moment(request.expires_at)}")
    return visible("\n".join(shown))


def _compact(text: str) -> Iterator[str]:
    """Yield the lines of `text` without empty ones but before a heading."""
    for line in text.splitlines():
        if line.startswith(("## ", "### ")):
            yield ""
        if line.strip():
            yield line
