"""Public names of errors."""

from plan_adapter.model.errors import ApprovalRequiredError as ApprovalRequiredError
from plan_adapter.model.errors import ContentChangedError as ContentChangedError
from plan_adapter.model.errors import DraftError as DraftError
from plan_adapter.model.errors import ExpressionError as ExpressionError
from plan_adapter.model.errors import InvalidAnswerError as InvalidAnswerError
from plan_adapter.model.errors import InvalidPlanError as InvalidPlanError
from plan_adapter.model.errors import ModelError as ModelError
from plan_adapter.model.errors import NoServerError as NoServerError
from plan_adapter.model.errors import NotApprovedError as NotApprovedError
from plan_adapter.model.errors import NotStoredError as NotStoredError
from plan_adapter.model.errors import NotVerifiedError as NotVerifiedError
from plan_adapter.model.errors import RunConflictError as RunConflictError
from plan_adapter.model.errors import RunFailedError as RunFailedError
from plan_adapter.model.errors import RunNotFoundError as RunNotFoundError
from plan_adapter.model.errors import StoreError as StoreError
from plan_adapter.model.errors import ToolError as ToolError
from plan_adapter.model.errors import UnknownOutcomeError as UnknownOutcomeError
