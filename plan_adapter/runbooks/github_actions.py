"""What becomes of the actions that a workflow of GitHub Actions uses."""

import re

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
