"""Public names for approving: what a gate asks, who answers it, and what was answered."""

from plan_adapter.checks import reject as reject
from plan_adapter.gates.approval import answer_to as answer_to
from plan_adapter.gates.approvers import CallbackApprover as CallbackApprover
from plan_adapter.gates.approvers import PolicyApprover as PolicyApprover
from plan_adapter.gates.approvers import PrefectApprover as PrefectApprover
from plan_adapter.gates.approvers import Rule as Rule
from plan_adapter.gates.terminal import TerminalApprover as TerminalApprover
from plan_adapter.model.approvals import Approval as Approval
from plan_adapter.model.approvals import ApprovalRequest as ApprovalRequest
from plan_adapter.model.approvals import Gate as Gate
from plan_adapter.model.approvals import StandingApproval as StandingApproval
from plan_adapter.model.options import ApprovalPolicy as ApprovalPolicy
from plan_adapter.model.options import Escalation as Escalation
