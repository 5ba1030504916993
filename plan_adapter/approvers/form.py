"""`PrefectApprover`: whoever answers the form on the run's page in the Prefect UI."""

from plan_adapter.errors import NotApprovedError
from plan_adapter.record import Approval, ApprovalRequest


class PrefectApprover:
    """Asks in the Prefect UI: the flow run pauses with a form; a step's gate is a subflow run with a form of its own.

    It is given to `run_plan` and its kin, which open the form themselves; flows of `compile_plan` and deployments do so anyway.
    """

    async def ask(self, request: ApprovalRequest) -> Approval:
        """Refuse: without a flow run there is no form."""
        raise NotApprovedError(
            f"`{request.name}` needs an approval, and there is no flow run whose form could be answered: run it with a Prefect server"
        )
