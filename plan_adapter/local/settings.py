"""`Settings`: the configuration from environment variables with the prefix `PLAN_ADAPTER_`."""

import os
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, SecretStr, TypeAdapter, field_validator, model_validator

from plan_adapter.model.language import Language
from plan_adapter.model.options import Effect, KnownBy

Effort: TypeAlias = Literal["none", "minimal", "low", "medium", "high"]
"""How much a model thinks before it answers."""


_PREFIX = "plan_adapter_"


class Settings(BaseModel):
    """Read from the environment on creation. Nothing is read at import.

    Arguments override the environment, in which the case of names does not matter. pydantic-settings would do the same, but each creation
    would take thirty times longer, and a run creates several.

    Lists are separated by commas: `PLAN_ADAPTER_TOOLS=acme.tools:registry,acme.more:deploy`.
    """

    model_config = ConfigDict(extra="ignore", frozen=True, validate_default=True)

    home: Path = Field(default_factory=lambda: Path.home() / ".plan_adapter")
    """The folder of the default store, large results, keys and the local Prefect server."""

    database_url: str | None = None
    """SQLAlchemy URL of the store: sqlite or postgresql, with or without a driver. None: a SQLite file in `home`."""

    language: Language | None = None
    """The language of gates, forms, `plan show` and reports: en or zh. A plan can set its own. None: that of the locale, else English.

    `--json` is always in English.
    """

    tools: tuple[str, ...] = ()
    """Import strings `package.module:name` of tools or registries for the command line."""

    local_server: Literal["auto", "never"] = "auto"
    """Whether a local Prefect server may be started if Prefect's settings name none."""

    local_server_auth: Literal["auto", "on", "off"] = "auto"
    """Whether the local Prefect server requires a password, kept in a file that only this account can read.

    auto: required if other people can log in to this machine, or it is reached over SSH.
    """

    result_limit_bytes: int = Field(default=64 * 1024, ge=1024)
    """A result with more bytes of JSON goes to a file. The receipt keeps its path, size and digest."""

    python_prefixes: tuple[str, ...] = ()
    """Module prefixes from which the tool `python` may import. None by default."""

    files_root: Path | None = None
    """The folder that `read_file` and `write_file` cannot leave. None: the current folder."""

    ssh_config: Path | None = None
    """The configuration file of OpenSSH that the tool `ssh` uses. None: that of the account, ~/.ssh/config."""

    secrets_dir: Path | None = None
    """A folder of mounted files, each named after a secret and containing its value. `${{ secrets.name }}` looks here first."""

    allow_local_store: bool = False
    """Whether a store on a local path may be used under a Prefect worker, whose disk may not persist."""

    store_host: str = ""
    """The machine on which the store's file is. Workers on other machines then refuse it. `plan deploy` sets it for the runs it deploys."""

    allow_unapproved: bool = True
    """Whether the plan's `require_approval: false` and `auto_approve: true` are honored."""

    lease_seconds: float = Field(default=20.0, ge=1.0)
    """How long the owner of a run may be silent. 15 s later, another process can take over the run."""

    store_patience_seconds: float = Field(default=120.0, ge=0.0)
    """How long an active run waits for a database that is unavailable, locked or full before it stops; it can be resumed. 0: no wait."""

    carried_task_runs: int = Field(default=200, ge=0)
    """How many carried steps of a resumed run are shown as separate task runs in Prefect. More are shown as one, `Carried`."""

    approvers: tuple[str, ...] = ()
    """Names and groups that may answer at any gate. Empty: those that the plan names. If both are set, a person must be in both."""

    operators: tuple[str, ...] = ()
    """Names, groups and deployments (`flow/deployment`) that may run, resume, revise, cancel, roll back, prune and erase runs of any plan.

    Empty: those that the plan names. If both are set, a person must be in both.
    """

    groups: dict[str, list[str]] = Field(default_factory=dict)
    """The members of groups, as JSON: `{"sre": ["ana", "bo"]}`.

    At a gate the groups of the process that opened it count, whoever resumes the run, until the store has a policy.
    """

    known_by: tuple[KnownBy, ...] = ()
    """The accepted proofs of an approver's identity at any gate: ssh_signature, totp, sign_in, proxy, slack, os_user, form,
    unverified.

    Empty: those of the plan.
    """

    quorum: int = Field(default=1, ge=1)
    """How many different people must approve at any gate for an approval, at least. A plan and the store's policy may ask for more."""

    allow_self_approval: bool = True
    """Whether the person who started a run may approve it."""

    gate_effects: tuple[Effect, ...] = ()
    """Effects whose steps get their own gate in every plan, by the tool's effect, whatever the step declares.

    `write` includes `idempotent_write`.
    """

    allowed_signers: Path | None = None
    """The file of SSH keys whose signatures are accepted, in the ALLOWED SIGNERS format of `ssh-keygen`."""

    totp_key: SecretStr | None = None
    """The key that encrypts the seeds of one-time codes in the store. None: the key in the file totp.key in `home`."""

    signing_key: Path | None = None
    """The SSH key that `plan approve --sign` uses. None: the first of ~/.ssh/id_ed25519, id_ecdsa, id_rsa."""

    desk_url: str | None = None
    """The address at which people reach `plan desk`, such as `https://desk.example.org`. None: the address it listens on.

    Requests for another host, and answers from pages of another origin, are refused. OpenID Connect returns to it.
    """

    desk_oidc_issuer: str | None = None
    """The issuer of OpenID Connect at which people sign in to `plan desk`, exactly as its ID tokens name it. None: no such sign-in."""

    desk_oidc_client_id: str | None = None
    """The client id of `plan desk` at that issuer."""

    desk_oidc_client_secret: SecretStr | None = None
    """The client secret of `plan desk` at that issuer. None: a public client, which proves itself by PKCE only."""

    desk_oidc_claim: str = "email"
    """The claim of the ID token that is the name of the person, as approvers are named. `email` counts only if the issuer verified it."""

    desk_proxy_header: str | None = None
    """The header in which a trusted proxy names the person who signed in to it, such as `X-Forwarded-Email`. None: no such sign-in."""

    desk_proxy_secret: SecretStr | None = None
    """What that proxy sends in the header `X-Desk-Proxy-Secret` of each request: at least 32 characters, which only the proxy knows."""

    desk_slack_token: SecretStr | None = None
    """The bot token of the app in Slack that posts the gates which wait: `plan guide desk "Chat and mail"`. None: no messages in Slack."""

    desk_slack_channel: str | None = None
    """The conversation in Slack where it posts them, by its id, such as `C024BE91L`. The app must be a member."""

    desk_slack_signing_secret: SecretStr | None = None
    """The signing secret of that app, with which Slack signs what people press. None: messages without buttons."""

    desk_slack_users: dict[str, str] = Field(default_factory=dict)
    """Who may answer in Slack, as JSON: `{"U024BE7LH": "ana@example.org"}`, the names of approvers by the ids of Slack's users."""

    desk_slack_api: str = "https://slack.com/api/"
    """The address of Slack's API, such as `https://slack-gov.com/api/` for GovSlack."""

    desk_teams_webhook: SecretStr | None = None
    """The address of the webhook of a workflow in Teams, which posts the gates that wait in a channel. None: no messages in Teams."""

    desk_mail_server: str | None = None
    """The server that sends the gates that wait by e-mail: `smtps://host`, or `smtp://host:587` with STARTTLS. None: no e-mail."""

    desk_mail_user: str | None = None
    """The name with which the desk signs in to that server. None: it does not sign in."""

    desk_mail_password: SecretStr | None = None
    """The password for that server."""

    desk_mail_from: str | None = None
    """The address from which the desk sends e-mail."""

    desk_mail_to: tuple[str, ...] = ()
    """The addresses to which it sends e-mail."""

    desk_alertmanager_token: SecretStr | None = None
    """The bearer token that Alertmanager sends to `/hooks/alertmanager` of `plan desk`: at least 16 characters. None: no such webhook."""

    desk_grafana_secret: SecretStr | None = None
    """The secret with which Grafana signs what it sends to `/hooks/grafana`: at least 16 characters. None: no such webhook."""

    desk_pagerduty_secret: SecretStr | None = None
    """The secret with which PagerDuty signs what it sends to `/hooks/pagerduty`. PagerDuty makes it. None: no such webhook."""

    desk_github_secret: SecretStr | None = None
    """The secret with which GitHub signs what it sends to `/hooks/github`: at least 16 characters. None: no such webhook."""

    dask_address: str | None = None
    """The scheduler of the Dask cluster for steps with `runner: dask`: `tcp://host:8786`, or `tls://…` with Dask's own TLS settings.

    None: each run starts its own cluster on this machine when it first needs one.
    """

    model: str | None = None
    """The name of the language model that drafts plans, pursues goals and replans, as its server knows it."""

    model_url: str | None = None
    """The base URL of the model's server, which must support OpenAI's chat completions. None: OPENAI_BASE_URL, else OpenAI."""

    model_key: SecretStr | None = None
    """The API key for that server. None: OPENAI_API_KEY if no URL is set; a self-hosted server usually needs no key."""

    model_timeout_seconds: float = Field(default=120.0, gt=0)
    """How long the model may take for one answer."""

    model_stream: bool = False
    """Whether to stream the model's answers, for gateways that cut idle connections."""

    draft_timeout_seconds: float = Field(default=600.0, gt=0)
    """How long a draft may take in all rounds, without the time that people take to answer the model's questions."""

    draft_answer_tokens: int = Field(default=8192, gt=0)
    """The token limit of one answer, including a reasoning model's thoughts. A second, deeper pass has twice as many."""

    goal_effort: Effort | None = None
    """The reasoning effort of a goal's rounds and of its verifier. None: the server's default. One that the server refuses is left out."""

    goal_temperature: float | None = Field(default=None, ge=0, le=2)
    """The temperature of a goal's rounds and of its verifier. None: the server's default. One that the server refuses is left out."""

    goal_tokens: int = Field(default=1_000_000, gt=0)
    """How many tokens the model of one goal may use in one start of a run. Tokens that its server does not count are estimated."""

    @model_validator(mode="before")
    @classmethod
    def _read_environment(cls, values: dict[str, Any]) -> dict[str, Any]:
        lowered = ((name.lower(), value) for name, value in os.environ.items())
        return {name.removeprefix(_PREFIX): value for name, value in lowered if name.startswith(_PREFIX)} | values

    @field_validator("tools", "python_prefixes", "approvers", "operators", "known_by", "gate_effects", "desk_mail_to", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value

    @field_validator("groups", mode="before")
    @classmethod
    def _read_groups(cls, value: object) -> object:
        try:
            return TypeAdapter(dict[str, list[str]]).validate_json(value) if isinstance(value, str) else value
        except ValueError:
            raise ValueError('write JSON that lists the members of each group, as in {"sre": ["ana", "bo"]}') from None

    @field_validator("desk_slack_users", mode="before")
    @classmethod
    def _read_slack_users(cls, value: object) -> object:
        try:
            return TypeAdapter(dict[str, str]).validate_json(value) if isinstance(value, str) else value
        except ValueError:
            raise ValueError('write JSON with the name of each user, as in {"U024BE7LH": "ana@example.org"}') from None

    @property
    def has_store(self) -> bool:
        """Whether the store exists, or is a database that only a connection can tell about."""
        return self.database_url is not None or (self.home / "plans.db").exists()

    @cached_property
    def store_url(self) -> str:
        """The URL of the store that `store=None` means."""
        return self.database_url or f"sqlite:///{self.home / 'plans.db'}"

    @property
    def results_path(self) -> Path:
        """The folder of results that are too large for a receipt."""
        return self.home / "results"
