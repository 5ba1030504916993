"""Examples of each verb and action, and the guide page to read on. `plan VERB --help` ends with them.

`DIGEST` and `ID` stand for what the command before printed. A test runs every example.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class Example(NamedTuple):
    """A command, without `plan VERB`, and what it does."""

    arguments: str
    text: str


class VerbExamples(NamedTuple):
    """What the help of a verb ends with."""

    page: str  # of the guide
    examples: tuple[Example, ...]


def _of(page: str, *examples: tuple[str, str]) -> VerbExamples:
    return VerbExamples(page, tuple(Example(*example) for example in examples))


EXAMPLES: Mapping[str, VerbExamples] = MappingProxyType(
    {
        "init": _of("plans", ("", "Write plan.yaml"), ("restart.yaml", "Write it under this name")),
        "validate": _of(
            "plans",
            ("restart.yaml", "Check one plan"),
            ("runbooks/", "Check every plan in a folder"),
            ("restart.yaml --tools shop.tools:registry", "Check with your own tools"),
        ),
        "preview": _of(
            "plans",
            ("restart.yaml --input host=web-2", "Preview a run with this input"),
            ("--resume last", "Preview a resume of the last run"),
            ('--resume last --skip notify --note "pager is down"', "Preview a resume without a step"),
        ),
        "test": _of(
            "testing",
            ("restart.yaml", "Run the cases of one plan"),
            ("runbooks/", "Run the cases of every plan in a folder"),
            ("runbooks/ -k busy", "Run only the cases named so"),
        ),
        "draft": _of(
            "drafting",
            ('"Restart web-1" --allow-tool bash -o restart.yaml', "Draft a plan into a file"),
            ('"Restart web-1" --allow-tool bash --print-prompt', "Print a prompt for any chat"),
            ('"Restart web-1" --allow-tool bash --answer reply.txt', "Check what the chat answered"),
        ),
        "save": _of(
            "runbooks",
            ("restart.yaml", "Save the next version"),
            ("restart.yaml --name restart-eu", "Save it under another name"),
        ),
        "run": _of(
            "failures",
            ("restart.yaml --input host=web-2", "Run a file with an input"),
            ("restart.yaml --dry-run", "Show what it would do"),
            ("restart-web@1 --offline --yes", "Run a stored version, and approve it"),
        ),
        "replay": _of(
            "testing",
            ("restart.yaml", "Show what would go differently"),
            ("restart.yaml --runs 10 --since 30d --fail-on write", "In CI: fail if a write would be another"),
            ("restart.yaml --format github", "Annotate the lines of a pull request"),
        ),
        "deploy": _of(
            "deploying",
            ("runbooks/ --dry-run", "Show what would change"),
            ('restart.yaml --cron "0 3 * * *"', "Deploy it with a nightly schedule"),
            ("restart-web --delete", "Delete the deployment"),
        ),
        "serve": _of(
            "deploying",
            ("runbooks/", "Serve every runbook in a folder"),
            ("restart.yaml --interval 6h", "Also run it every six hours"),
        ),
        "gates": _of(
            "approvals",
            ("", "List what waits for an answer"),
            ("--wide", "Show whole ids and digests"),
            ("--api", "List it from a machine without the store"),
        ),
        "approve": _of(
            "approvals",
            ("last", "Read what waits, then confirm"),
            ('last --digest DIGEST --note "CHG-1042"', "Approve exactly what you read"),
            ("last --delegate-to dana", "Let somebody else answer instead of you"),
        ),
        "answer": _of(
            "approvals",
            ("last window --show", "Read the question"),
            ("last window minutes=30", "Answer it"),
            ('last window minutes=30 --note "agreed with Bo"', "Answer it, and record why"),
        ),
        "reject": _of(
            "approvals",
            ('last --note "not during the sale"', "Reject the plan, and say why"),
            ('last restart --note "web-1 is busy"', "Reject one step"),
            ('last --changes --note "drain it first"', "Ask for changes"),
        ),
        "resolve": _of(
            "failures",
            ('last restart done --note "seen in the log"', "It happened"),
            ("last restart again", "It did not: call it again"),
            ("last restart abort", "End the run"),
        ),
        "desk": _of(
            "desk",
            ("", "Serve it on this machine, port 4270"),
            ("--port 0", "Take a free port"),
        ),
        "runs": _of(
            "failures",
            ("", "List what waits, then the newest"),
            ("--status failed", "List failed runs"),
            ("--runbook restart-web --limit 5", "List the last runs of a runbook"),
        ),
        "show": _of(
            "failures",
            ("last", "How the last run ended, and what to type next"),
            ("last --all", "Everything that is recorded of it"),
            ("restart-web --versions", "The versions of a stored plan"),
        ),
        "report": _of(
            "operating",
            ("last", "Write RUN.html, with the id of the run"),
            ("last -o incident.html", "Write it under this name"),
        ),
        "diff": _of(
            "runbooks",
            ("restart-web@1 restart-web@2", "Compare two stored versions"),
            ("restart-web restart.yaml", "Compare the newest version with a file"),
            ("git:HEAD~1:restart.yaml restart.yaml", "Compare with the commit before"),
        ),
        "logs": _of(
            "failures",
            ("last", "Show what every step printed"),
            ("last restart", "Show what one step printed"),
            ("last --json", "Print one JSON object per line"),
        ),
        "guide": _of(
            "glossary",
            ("", "List the pages"),
            ("failures", "Read one page"),
            ("reference-python answer_gate", "Read about one name of the Python API"),
        ),
        "resume": _of(
            "failures",
            ("last", "Run what has not completed"),
            ("last --only-failed --offline", "Only what failed, without Prefect"),
            ('last --skip notify --note "pager is down" --offline', "Leave out one step"),
        ),
        "revise": _of(
            "failures",
            ('last restart.yaml --note "drain it first"', "Use the plan in this file"),
            ("last --edit", "Edit the plan of the run"),
            ('last "Leave out the notification"', "Let the model rewrite what remains"),
        ),
        "cancel": _of("failures", ("last", "Cancel the last run"), ('last --note "wrong node"', "Cancel it, and record why")),
        "rollback": _of(
            "failures",
            ("last", "Undo what the last run did"),
            ('last --note "the release is bad"', "Undo it, and record why"),
            ("last --offline", "Undo it without Prefect"),
        ),
        "doctor": _of(
            "operating",
            ("", "Check the installation, server and store"),
            ("restart.yaml", "Check the secrets of a plan as well"),
            ("--model", "Ask the language model as well"),
        ),
        "promote": _of(
            "runbooks",
            ("last", "Print the runbook"),
            ("last --name restart-web -o restart-web.yaml", "Write it to a file"),
            ("last --save", "Store it as the next version"),
        ),
        "import": _of(
            "runbooks",
            (".github/workflows/ci.yml", "Print the plan of a workflow"),
            (".github/workflows/ci.yml -o ci.yaml", "Write it to a file"),
            ("aster.json --save", "Store a plan of Aster"),
        ),
        "pursue": _of(
            "drafting",
            ('"Free the disk of web-1" --allow-tool bash --offline', "Draft, approve and run"),
            ('"Free the disk of web-1" --allow-tool bash --offline --detach', "Leave the approval to others"),
        ),
        "graph": _of(
            "plans",
            ("restart.yaml", "Draw a plan as a tree"),
            ("last", "Draw a run, with how each step ended"),
            ("restart.yaml --format svg -o restart.svg", "Write a picture"),
        ),
        "schema": _of(
            "plans",
            ("plan.schema.json", "Write the schema for your editor"),
            ("--json-output", "Print the schema of `--json`"),
            ("--tool restart.yaml", "Print a plan as a tool for models"),
        ),
        "tools": _of(
            "tools",
            ("", "List the built-in tools"),
            ("http_get", "Show one with its parameters"),
            ("--tools shop.tools:registry", "List yours as well"),
        ),
        "explain": _of("plans", ("", "List every code"), ("cycle", "Explain one, with an example")),
        "standing list": _of("approvals", ("", "List them"), ("--all", "Also list those that have ended")),
        "standing add": _of(
            "approvals",
            ("restart.yaml --schedule restart-web/restart-web --runs 30", "Approve 30 scheduled runs"),
        ),
        "standing revoke": _of("approvals", ("ID", "Revoke it")),
        "enroll": _of("approvals", ("ana", "Set up codes for a person"), ("ana --force", "Replace the codes of a lost phone")),
        "policy show": _of("security", ("", "Show the policy"), ("--all", "Show every version")),
        "policy set": _of("security", ("policy.yaml", "Set its next version")),
        "verify": _of(
            "security",
            ("last", "Check the record of the last run"),
            ("run.attestation.json --key auditor_key.pub", "Check who signed an attestation, and that it is unchanged"),
            ("", "Check the whole store"),
        ),
        "audit": _of(
            "audits",
            ("--from 2026-01-01 --to 2099-12-31 -o audit", "Write the pack of a period into a folder"),
            ("--from 2026-01-01 --to 2099-12-31 --sample 40 --seed 7 -o audit", "Draw the same 40 runs again"),
            ("--from 2026-01-01 --to 2099-12-31 --sample all -o audit", "Take every run"),
        ),
        "export": _of(
            "security",
            ("last -o run.jsonl", "Write the record of the last run"),
            ("last --attest -o run.attestation.json", "Write a signed attestation of it"),
            ("restart.yaml --format mermaid", "Print a plan as a flowchart"),
        ),
        "prune": _of(
            "operating",
            ("--older-than 90d --dry-run", "List what would be deleted"),
            ("--older-than 90d --status completed --yes", "Delete without asking"),
        ),
        "erase": _of(
            "security",
            ("last --fields inputs.email --dry-run", "Count what would be erased"),
            ("last --fields inputs.email,steps.restart.result --yes", "Erase without asking"),
        ),
        "store status": _of("operating", ("", "Show where it is and whether it works")),
        "store upgrade": _of("operating", ("", "Upgrade it to this version")),
        "store grants": _of("operating", ("", "Print the roles for PostgreSQL")),
        "reconcile": _of("operating", ("", "Correct what Prefect shows"), ("--offline", "Look only at the store")),
        "notify": _of(
            "approvals",
            ("slack-webhook/oncall", "Notify this channel"),
            ("slack-webhook/oncall --after 30m", "Also remind of open gates"),
        ),
        "down": _of("operating", ("", "Stop the local server"), ("--json", "Print whether one was running")),
        "mcp": _of(
            "embedding",
            ("--json", "Show what an agent would be offered"),
            ("--allow-tool run_command", "Serve, and let plans use this tool"),
            ("--plan restart-web --json", "Offer a stored plan as a tool"),
        ),
    }
)
