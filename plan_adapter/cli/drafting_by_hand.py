"""`plan draft` without a model: what any chat can be asked, and what it answered."""

from typing import TYPE_CHECKING

from plan_adapter.cli import output as streams
from plan_adapter.cli.codes import ExitCode
from plan_adapter.cli.drafting import Wish, draft_json, report
from plan_adapter.cli.sources import open_store, text_of
from plan_adapter.settings import Settings

if TYPE_CHECKING:
    from plan_adapter.execution.secrets import Scrubber


async def draft_by_hand(wish: Wish, answer: str | None) -> int:
    """Print what to ask a chat, or take what it answered: `answer` is a file, `-` for stdin."""
    from plan_adapter.runs.secrets import hidden_from_models

    hide = await hidden_from_models(Settings(), wish.request.available_secrets)
    return _print_prompt(wish, hide) if answer is None else await _judge(wish, text_of(answer, "the answer"), hide)


def _print_prompt(wish: Wish, hide: "Scrubber") -> int:
    from plan_adapter.agent.by_hand import prompt_for_chat
    from plan_adapter.agent.hiding import hidden_note, shown_request

    messages = prompt_for_chat(wish.request, wish.tools, hide=hide)
    if wish.as_json:
        streams.json_line({"messages": [{"role": message.role, "content": message.content} for message in messages]})
    if hidden := shown_request(wish.request, hide)[1]:
        streams.note(f"note: {hidden_note(hidden)}")
    if not wish.as_json or wish.destination.path is not None:
        wish.destination.write("\n\n".join(message.content for message in messages) + "\n")
        streams.note("ask any chat this, and give what it answers to the same command with --answer FILE in place of --print-prompt")
    return ExitCode.DONE


async def _judge(wish: Wish, text: str, hide: "Scrubber") -> int:
    """Take what a chat answered through the checks, keep the draft, and tell what is wrong with it as text for the chat."""
    from plan_adapter.agent.by_hand import judged_answer

    judged = judged_answer(wish.request, wish.tools, text, hide=hide)
    async with open_store(Settings()) as store:
        await store.drafts.keep(judged.draft, judged.draft.calls[0])
        await store.drafts.end(judged.draft)
    if wish.as_json:
        streams.json_line({**draft_json(judged.draft, question=judged.question), "reply": judged.reply})
    if judged.question is not None:
        streams.note(f"the model asks: {judged.question}\nanswer it in the chat, and give what comes back with --answer")
        return ExitCode.USAGE
    if judged.reply is not None:
        if not wish.as_json:
            streams.document(judged.reply + "\n")
        streams.note(f"{judged.draft.failure}: say to the chat what is printed on stdout, and give what comes back with --answer")
        return ExitCode.FAILED
    return report(judged.draft, wish.destination, as_json=wish.as_json)
