"""`Settings`: everything that the environment may say, with the prefix `PLAN_ADAPTER_`."""

from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict

from plan_adapter.plan import Effect, KnownBy


class Settings(BaseSettings):
    """Read from the environment each time one is made; nothing is read at import.

    Lists are written with commas: `PLAN_ADAPTER_TOOLS=acme.tools:registry,acme.more:deploy`.
    """

    model_config = SettingsConfigDict(env_prefix="PLAN_ADAPTER_", extra="ignore", frozen=True)

    home: Path = Field(default_factory=lambda: Path.home() / ".plan_adapter")
    """Where the default store, large results and the local Prefect server live."""

    database_url: str | None = None
    """SQLAlchemy URL of the store: sqlite or postgresql, with or without a driver. None: a SQLite file in `home`."""

    tools: Annotated[tuple[str, ...], NoDecode] = ()
    """Import strings `package.module:name` of tools or registries that the command line offers."""

    local_server: Literal["auto", "never"] = "auto"
    """Whether a local Prefect server may be started where Prefect's settings name none."""

    local_server_auth: Literal["auto", "on", "off"] = "auto"
    """Whether the local Prefect server demands a password, which is in a file that only this account can read. auto: where other people
    can log in to this machine, or it is reached over SSH."""

    result_limit_bytes: int = Field(default=64 * 1024, ge=1024)
    """A result whose JSON is larger goes to a file; the receipt keeps its path, size and digest."""

    python_prefixes: Annotated[tuple[str, ...], NoDecode] = ()
    """Module prefixes that the tool `python` may import from; none by default."""

    files_root: Path | None = None
    """The folder that `read_file` and `write_file` stay in; None: the current folder."""

    secrets_dir: Path | None = None
    """A folder of mounted files, each with the value of the secret that it is called by: `${{ secrets.name }}` looks there first."""

    allow_local_store: bool = False
    """Whether a store on a local path may be used under a Prefect worker, whose disk may vanish with it."""

    allow_unapproved: bool = True
    """Whether `require_approval: false` and `auto_approve: true`, the author's word, are honoured."""

    lease_seconds: float = Field(default=20.0, ge=1.0)
    """How long a process that executes a run may give no sign of life; 15 s later another one may take the run over."""

    store_patience_seconds: float = Field(default=120.0, ge=0.0)
    """How long a run under way waits for a database that is away, locked or full before it stops, to be resumed; 0: not at all."""

    carried_task_runs: int = Field(default=200, ge=0)
    """Up to how many steps that a resumed run carries are shown as task runs of their own in Prefect; more are shown as one, `Carried`."""

    approvers: Annotated[tuple[str, ...], NoDecode] = ()
    """Names and groups that may answer at any gate; empty: whom the plan names. With both, who is in both."""

    operators: Annotated[tuple[str, ...], NoDecode] = ()
    """Names, groups and deployments (`flow/deployment`) that may run, resume, revise, cancel and roll back any plan; empty: whom the
    plan names. With both, who is in both."""

    groups: dict[str, list[str]] = Field(default_factory=dict)
    """The members of groups, as JSON: `{"sre": ["ana", "bo"]}`."""

    known_by: Annotated[tuple[KnownBy, ...], NoDecode] = ()
    """How an approver may be known at any gate: ssh_signature, totp, os_user, form, unverified; empty: as the plan says."""

    allow_self_approval: bool = True
    """Whether who started a run may approve it."""

    gate_effects: Annotated[tuple[Effect, ...], NoDecode] = ()
    """Steps whose tools have these effects wait at a gate of their own in every plan, whatever effect the step says; `write` includes
    `idempotent_write`."""

    allowed_signers: Path | None = None
    """The file of SSH keys whose signatures count, in the format of `ssh-keygen`'s ALLOWED SIGNERS."""

    totp_key: SecretStr | None = None
    """The key that the seeds of one-time codes are encrypted with in the store; None: that of the file totp.key in `home`."""

    signing_key: Path | None = None
    """The SSH key that `plan approve --sign` signs with; None: the first of ~/.ssh/id_ed25519, id_ecdsa, id_rsa."""

    model: str | None = None
    """The language model that drafts plans, by the name that its server knows."""

    model_url: str | None = None
    """Where it is asked: the base URL of a server that speaks OpenAI's chat completions. None: OPENAI_BASE_URL, else OpenAI's own."""

    model_key: SecretStr | None = None
    """The key of that server. None: OPENAI_API_KEY where no URL is set; a server of one's own mostly needs none."""

    model_timeout_seconds: float = Field(default=120.0, gt=0)
    """How long the model may take for one answer."""

    model_stream: bool = False
    """Whether its answers are asked for piece by piece: for gateways that cut a connection on which nothing comes for a while."""

    draft_timeout_seconds: float = Field(default=600.0, gt=0)
    """How long a draft may take, all rounds together, without the time that a person takes to answer the model's questions."""

    draft_answer_tokens: int = Field(default=8192, gt=0)
    """The most tokens of one answer, what a reasoning model thinks included; a second, deeper pass has twice as many."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Look nowhere but in the environment: not for files either, which takes as long again."""
        return init_settings, env_settings

    @field_validator("tools", "python_prefixes", "approvers", "operators", "known_by", "gate_effects", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value

    @cached_property
    def store_url(self) -> str:
        """The URL of the store that `store=None` means."""
        return self.database_url or f"sqlite:///{self.home / 'plans.db'}"

    @property
    def results_path(self) -> Path:
        """The folder of results that are too large for a receipt."""
        return self.home / "results"
