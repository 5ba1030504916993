"""Prefect block types for the drafting model and the plan store, registered under the entry point group `prefect.collections`."""

from prefect.blocks.core import Block
from pydantic import Field, HttpUrl, SecretStr

from plan_adapter.agent.openai_model import OpenAIModel
from plan_adapter.store.store import PlanStore


class LanguageModel(Block):
    """The model that drafts plans, at OpenAI or any server with an OpenAI-compatible chat completions API.

    Example:
        Load the model that a deployment drafts with:
        ```python
        from plan_adapter.blocks import LanguageModel

        model = LanguageModel.load("BLOCK_NAME").get_model()
        ```
    """

    _block_type_name = "Language Model"
    _block_type_slug = "language-model"
    _logo_url = HttpUrl("https://cdn.sanity.io/images/3ugk85nk/production/fb3f4debabcda1c5a3aeea4f5b3f94c28845e23e-250x250.png")
    _documentation_url = HttpUrl("https://docs.prefect.io/v3/concepts/blocks")
    _description = "The model that drafts plans, at OpenAI or any server with an OpenAI-compatible chat completions API."

    model: str = Field(description="The model's name, as its server knows it.")
    base_url: str | None = Field(default=None, description="The server's base URL, which usually ends in /v1. Empty means OpenAI.")
    api_key: SecretStr | None = Field(default=None, description="The server's API key. A self-hosted server usually needs none.")
    timeout_seconds: float = Field(default=120.0, gt=0, description="How long the model may take for one answer.")
    stream: bool = Field(default=False, description="Whether to stream the answers, for gateways that cut idle connections.")

    def get_model(self) -> OpenAIModel:
        """Return the model. Nothing is sent to it yet. Close it with `aclose`."""
        key = self.api_key.get_secret_value() if self.api_key is not None else None
        timeout, stream = self.timeout_seconds, self.stream
        return OpenAIModel(self.model, base_url=self.base_url, api_key=key, timeout_seconds=timeout, stream=stream)


class PlanStoreDatabase(Block):
    """The database that stores plans, runs, approvals and receipts.

    Example:
        Load the store that a deployment uses:
        ```python
        from plan_adapter.blocks import PlanStoreDatabase

        database = PlanStoreDatabase.load("BLOCK_NAME")
        store = database.get_store()
        ```
    """

    _block_type_name = "Plan Store Database"
    _block_type_slug = "plan-store-database"
    _logo_url = HttpUrl("https://cdn.sanity.io/images/3ugk85nk/production/fb3f4debabcda1c5a3aeea4f5b3f94c28845e23e-250x250.png")
    _documentation_url = HttpUrl("https://docs.prefect.io/v3/concepts/blocks")
    _description = "The database that stores plans, runs, approvals and receipts."

    url: SecretStr = Field(description="The SQLAlchemy URL of a PostgreSQL or SQLite database, including the password.")
    tenant_id: str | None = Field(default=None, description="The only tenant whose rows can be read and written. Empty means all tenants.")

    def get_store(self) -> PlanStore:
        """Return the store, not yet connected. Use it as an async context manager, or close it with `aclose`."""
        return PlanStore(self.url.get_secret_value(), tenant_id=self.tenant_id)
