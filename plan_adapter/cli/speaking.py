"""Whose word it is what a command asks for of a run, and how they prove it: `--sign`, `--code` and `--by`."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from plan_adapter.cli.answering import Words, proofs
from plan_adapter.settings import Settings

if TYPE_CHECKING:
    from plan_adapter.record import ApprovalRequest
    from plan_adapter.store.store import PlanStore


@dataclass(slots=True)
class Person:
    """Whoever types a command, with the proof that `words` hold. Implements `runs.occasion.Speaker`."""

    words: Words
    settings: Settings

    @property
    def by(self) -> str:
        """Their name; the operating system's user if they give none."""
        from plan_adapter.approval import os_user

        return self.words.by or os_user()

    @property
    def channel(self) -> Literal["os_user", "unverified"]:
        """How the name is known without a proof."""
        from plan_adapter.approval import os_user

        return "os_user" if self.by == os_user() else "unverified"

    @property
    def has_proof(self) -> bool:
        """Whether they come with a proof of it."""
        return self.words.sign or self.words.code is not None

    async def proved(self, because: str, request: "ApprovalRequest", store: "PlanStore", /) -> tuple[str, str | None]:
        """Return how they are known, and their signature if they sign; raises NotApprovedError where that does not fit the rules."""
        from plan_adapter.identity.known import Means, proved

        answer = proofs(replace(self.words, decision="approve", note=because), request, self.settings)
        means = Means(await store.policy_in_force(self.settings), self.settings, store)
        return await proved(answer, request, means), answer.signature
