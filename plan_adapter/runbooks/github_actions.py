"""What becomes of the actions that a workflow of GitHub Actions uses, and where the files are that they move."""

import posixpath
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

_FILES = "files stay where the steps run, so nothing has to be carried from job to job"

_LEFT_OUT: tuple[tuple[str, str], ...] = (
    (r"actions/checkout", "run the plan in a checkout, or write a step with `git clone`"),
    (r"actions/cache(/\w+)?|swatinem/rust-cache", "what was downloaded stays on the machine where the steps run"),
    (r"actions/(upload|download)-artifact(/\w+)?|actions/upload-pages-artifact", _FILES),
    (r"docker/login-action", "log in with `docker login` where the plan runs, or write a step with the password from `secrets` in `env`"),
    (r"aws-actions/configure-aws-credentials", "AWS_* variables of the worker reach the steps, or pass them through `env`"),
    (r"aws-actions/amazon-ecr-login", "log in with `aws ecr get-login-password | docker login …` where the plan runs"),
    (r"azure/(login|docker-login|aks-set-context|k8s-set-context)", "log in with `az login` where the plan runs"),
    (r"google-github-actions/(auth|get-gke-credentials)", "log in with `gcloud auth` where the plan runs"),
    (r"github/codeql-action/[\w-]+|step-security/harden-runner|actions/configure-pages", "it serves GitHub itself"),
    (r"[\w.-]+/([\w.-]*setup[\w.-]*)(/[\w./-]+)?|[\w.-]+/[\w.-]*(toolchain|installer|install-action)", "install it where the plan runs"),
)


def reason_to_leave_out(action: str) -> str | None:
    """Return what to do instead of an action that only prepares a runner, or None for one that does real work."""
    name = action.partition("@")[0].casefold()
    return next((hint for pattern, hint in _LEFT_OUT if re.fullmatch(pattern, name)), None)


@dataclass(slots=True)
class Files:
    """Which revision the steps of a plan work on, and where they find the artifacts of earlier jobs. All of them share one folder."""

    checkout: tuple[str, ...] | None = None
    uploads: dict[str, set[str]] = field(default_factory=dict[str, set[str]])  # by artifact: the folders that its files come from

    def reason_to_keep(self, action: str, settings: Mapping[str, Any], text: Callable[[Any], str]) -> str | None:
        """Return why a `checkout` or `download-artifact` cannot be left out, or None. `text` returns a setting as a text."""
        name = action.partition("@")[0].casefold()
        given = {key: text(value).strip() for key, value in settings.items() if value is not None}
        if name == "actions/checkout":
            return self._check_checkout(given)
        if name == "actions/upload-artifact":
            self.uploads.setdefault(given.get("name", "artifact"), set()).add(_root(given.get("path", "")))
        if name == "actions/download-artifact":
            return self._check_download(given)
        return None

    def _check_checkout(self, given: Mapping[str, str]) -> str | None:
        path = posixpath.normpath(given.get("path") or ".")
        repository = given.get("repository", "")
        if "github_repository" in repository:
            repository = ""
        wanted = (repository, given.get("ref", ""), path)
        if repository or path != ".":
            return "it puts other files where the next steps work"
        if self.checkout is None:
            self.checkout = wanted
        return None if wanted == self.checkout else "it changes the revision that the next steps work on"

    def _check_download(self, given: Mapping[str, str]) -> str | None:
        target = posixpath.normpath(given.get("path") or ".")
        if {"run-id", "repository", "artifact-ids", "pattern"} & given.keys():
            return "it does not download an artifact of this workflow by its name"
        is_merged = "name" in given or given.get("merge-multiple", "").lower() == "true"
        names = [given["name"]] if "name" in given else [*self.uploads]
        roots = {root for name in names for root in self.uploads.get(name, {"<unknown>"})}
        return (
            None
            if is_merged and roots == {target}
            else f"it puts the files of an artifact into `{target}`, and here they stay where they were made"
        )


def _root(path: str) -> str:
    """Return the folder whose content becomes the content of the artifact, or the text if there are several."""
    lines = [line.strip() for line in path.splitlines() if line.strip() and not line.strip().startswith("!")]
    if len(lines) != 1:
        return path
    parts = posixpath.normpath(lines[0]).split("/")
    fixed = next((index for index, part in enumerate(parts) if "*" in part or "?" in part), len(parts))
    if fixed == len(parts) and "." in parts[-1].strip("."):
        fixed -= 1  # a file
    return "/".join(parts[:fixed]) or "."
