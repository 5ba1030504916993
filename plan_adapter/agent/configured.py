"""`model_of`: build the language model that the settings or a command line name."""

import os
from typing import TYPE_CHECKING

from plan_adapter.local.settings import Settings
from plan_adapter.model.errors import ModelError

if TYPE_CHECKING:
    from plan_adapter.agent.openai_model import OpenAIModel

NO_KEY = (
    "set PLAN_ADAPTER_MODEL_KEY or OPENAI_API_KEY, or PLAN_ADAPTER_MODEL_URL (or --model-url) to the base URL of a server that needs none"
)
NO_MODEL = f"no model is configured: set PLAN_ADAPTER_MODEL (or give --model) to its name, and {NO_KEY}"


def model_of(settings: Settings, name: str | None = None, url: str | None = None) -> "OpenAIModel":
    """Return the model `name` at `url`; each defaults to the settings. No request is sent.

    Raises ModelError that says which setting is missing.
    """
    name, url = name or settings.model or None, url or settings.model_url or None
    if name is None:
        raise ModelError(NO_MODEL)
    if url is not None and not url.startswith(("http://", "https://")):
        raise ModelError("PLAN_ADAPTER_MODEL_URL or --model-url is not a URL: write it as in http://127.0.0.1:8080/v1")
    key = settings.model_key.get_secret_value().strip() if settings.model_key is not None else ""
    if not (key.isascii() and key.isprintable()):
        raise ModelError("PLAN_ADAPTER_MODEL_KEY contains a character that a header cannot contain")
    if url is None and not key and not os.environ.get("OPENAI_API_KEY"):
        raise ModelError(f"there is no key for the model `{name}`: {NO_KEY}")
    from plan_adapter.agent.openai_model import OpenAIModel  # only where a model is configured

    timeout, stream = settings.model_timeout_seconds, settings.model_stream
    return OpenAIModel(name, base_url=url, api_key=key or None, timeout_seconds=timeout, stream=stream)
