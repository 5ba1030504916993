"""An approver for tests that look at what a gate shows."""

from plan_adapter.gates.approval import answer_to
from plan_adapter.model.approvals import Approval, ApprovalRequest


class RecordingApprover:
    """Approves every request and records the text that it was shown."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    async def ask(self, request: ApprovalRequest) -> Approval:
        self.texts.append(request.text)
        return answer_to(request, decision="approve", by="ana", known_by="os_user")
