"""Cut the thinking out of a model's answer, in the forms that models write it and servers leave it in the text."""

import json
import re

_NAME = r"(?:\w+[:_])?(?:think(?:ing)?|thoughts?|reasoning|reflection|analysis|scratchpad)"

_OPEN = rf"<{_NAME}(?:\s[^<>]*)?>|\[THINK(?:ING)?\]|◁think▷|<\|(?:begin_of_thought|start_thinking)\|>|<\|channel>(?:thought|analysis)"
_CLOSE = rf"</{_NAME}\s*>|\[/THINK(?:ING)?\]|◁/think▷|<\|end_(?:of_thought|thinking)\|>|<channel\|>|assistantfinal(?=\s*[{{`])"

# In the harmony format, an answer is a sequence of messages, each in a channel: analysis, commentary or final. A call names its function.
_BEGIN = r"(?:<\|constrain\|>[^<]*)?<\|message\|>"
_FINAL = rf"<\|channel\|>\s*final\b[^<]*{_BEGIN}"
_CALL = rf"(?:<\|channel\|>[^<]*\bto=[^<]*|<\|start\|>\w*\s+to=[^<]*<\|channel\|>[^<]*){_BEGIN}"
_OTHER = rf"<\|channel\|>[^<]*{_BEGIN}"
_END = r"<\|(?:end|return|call)\|>|<\|start\|>\w*"

_MARK = re.compile(
    rf"(?P<open>{_OPEN})|(?P<close>{_CLOSE})|(?P<final>{_FINAL})|(?P<call>{_CALL})|(?P<other>{_OTHER})|(?P<end>{_END})|(?P<object>\{{)",
    re.IGNORECASE,
)

_DECODER = json.JSONDecoder()


def cut_thoughts(text: str) -> list[str]:
    """Return the parts of an answer that are not thinking, in order and without blank ones.

    Everything before the end of a thought without a beginning is thinking, too: some servers cut the beginning off. So is everything after
    a beginning without an end. A mark inside a JSON object of the answer is text of that object.
    """
    parts, begin, at, thought = list[str](), 0, 0, ""
    while (mark := _MARK.search(text, at)) is not None:
        kind, at = str(mark.lastgroup), mark.end()
        if kind == "object":
            at = at if thought else _end_of_object(text, mark.start())
            continue
        if (thought == "open" and kind != "close") or (thought == "other" and kind in ("open", "close")):
            continue
        if kind in ("final", "close") and not (kind == "close" and thought):
            parts.clear()
        elif not thought:
            parts.append(text[begin : mark.start()])
        thought, begin = kind if kind in ("open", "other") else "", at
    if not thought:
        parts.append(text[begin:])
    return [part for part in parts if part.strip()]


def _end_of_object(text: str, start: int) -> int:
    """Return where the JSON object at `start` ends, or the next place if it is none."""
    try:
        return _DECODER.raw_decode(text, start)[1]
    except (ValueError, RecursionError):
        return start + 1
