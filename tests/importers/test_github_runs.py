"""Runs imported workflows: their steps do what GitHub's documentation says that the workflow does."""

import asyncio
from pathlib import Path

import pytest

from plan_adapter import PlanRun, PlanStore, ToolRegistry
from plan_adapter.runs import arun_plan
from tests.importers.builders import Converted, job, noted, workflow


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder in which the steps run."""
    monkeypatch.setenv("PLAN_ADAPTER_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(converted: Converted, **inputs: object) -> PlanRun:
    """Run an imported plan without an approval and without Prefect."""
    plan, _ = converted
    plan.options.require_approval = False

    async def execute() -> PlanRun:
        async with PlanStore() as store:
            return await arun_plan(plan, tools=ToolRegistry.with_builtins(), inputs=inputs, store=store, offline=True)

    return asyncio.run(execute())


def printed(record: PlanRun) -> dict[str, str]:
    """Return what each completed step printed, except the files of a runner."""
    found = {step.id: step.result["stdout"] for step in record.steps if isinstance(step.result, dict)}
    return {name: str(text).strip() for name, text in found.items()}


INJECTED = ["$(touch pwned)", "a[$(touch pwned)]", "'; touch pwned; '", '"; touch pwned; "', "x\ntouch pwned\n"]

AS_CODE = [
    'bash -c "echo ${{ github.event.issue.title }}"',
    'eval "echo ${{ github.event.issue.title }}"',
    'if [[ "${{ github.event.issue.title }}" -eq 1 ]]; then echo y; fi',
    "echo $(( ${{ github.event.issue.title }} + 1 ))",
    "bash -c 'echo ${{ github.event.issue.title }}'",
    "source <(echo '${{ github.event.issue.title }}')",
    "trap 'echo ${{ github.event.issue.title }}' EXIT",
    "bash <<END\necho ${{ github.event.issue.title }}\nEND",
    "title='${{ github.event.issue.title }}'\nsh -c \"$title\"",
    "declare -i n='${{ github.event.issue.title }}'",
    "${{ github.event.issue.title }}",
    "sed -i 's/a/${{ github.event.issue.title }}/' file",
    "python3 -c 'print(\"${{ github.event.issue.title }}\")'",
    "make VERSION='${{ github.event.issue.title }}'",
    '$SHELL -c "echo ${{ github.event.issue.title }}"',
    '{bash,-c,"echo ${{ github.event.issue.title }}"}',
    'export BASH_ENV="${{ github.event.issue.title }}"; bash -c true',
    'V="${{ github.event.issue.title }}" make',
    'echo "${{ github.event.issue.title }}" > a.txt; cp a.txt b.txt; sh b.txt',
    "heroku run '${{ github.event.issue.title }}'",
]


def script(text: str, fields: str = "") -> Converted:
    lines = "".join(f"          {line}\n" for line in text.splitlines())
    return job(f"      - run: |\n{lines}", fields)


@pytest.mark.parametrize("text", AS_CODE)
def test_a_value_that_a_program_would_read_as_code_becomes_a_placeholder_step(text: str, folder: Path) -> None:
    converted = script(text)
    assert noted(converted[1], "left out", "would be read as code by", "placeholder step")
    record = run(converted)
    assert (record.status, (folder / "pwned").exists()) == ("failed", False)
    assert "would be read as code" in str(record.steps[0].error)


@pytest.mark.parametrize("title", INJECTED)
def test_no_value_of_an_imported_script_is_run(title: str, folder: Path) -> None:
    text = "echo ${{ github.event.issue.title }} \"${{ github.event.issue.title }}\" '${{ github.event.issue.title }}'\n"
    text += 'case "${{ github.event.issue.title }}" in v*) echo version ;; esac\n[ "${{ github.event.issue.title }}" = 1 ] || true\n'
    record = run(script(text), github_event_issue_title=title)
    assert (record.status, (folder / "pwned").exists()) == ("completed", False)
    assert title.strip() in printed(record)["step_1"]


@pytest.mark.parametrize(
    ("text", "fields", "reader"),
    [
        ('eval "$TITLE"', "env: {TITLE: '${{ github.event.issue.title }}'}", "`eval`"),
        ("echo $((TITLE))", "env: {TITLE: '${{ inputs.title }}'}", "arithmetic"),
        ("true", "env: {BASH_ENV: '${{ github.event.issue.title }}'}", "the programs that read this variable"),
        ('eval "echo $GITHUB_HEAD_REF"', "", "`eval`"),
        ("make", "env: {CC: '${{ github.event.issue.title }}'}", "`make`, which reads its environment"),
        ("cd app\njust release", "env: {CC: '${{ github.event.issue.title }}'}", "`just`, which reads its environment"),
        ("envsubst < script | sh", "env: {A: '${{ github.event.issue.title }}'}", "`sh`, as its input"),
    ],
)
def test_a_value_that_reaches_code_through_a_variable_is_refused(text: str, fields: str, reader: str) -> None:
    _, notes = script(text, fields)
    assert noted(notes, "would be read as code", reader)


@pytest.mark.parametrize(
    ("text", "fields", "expected"),
    [
        ('bash -c "echo ${{ matrix.word }}"', "strategy: {matrix: {word: [one]}}", "one"),
        ("echo $(( ${{ matrix.n }} + 1 ))", "strategy: {matrix: {n: [41]}}", "42"),
        ('eval "echo $WORD"', "env: {WORD: fixed}", "fixed"),
        ('bash -c "echo ${{ runner.os }}"', "", "Linux"),
    ],
)
def test_what_the_workflow_itself_says_may_be_code(text: str, fields: str, expected: str) -> None:
    record = run(script(text, fields))
    results = [step.result for step in record.steps] + [item.result for step in record.steps for item in step.items]
    assert record.status == "completed"
    assert any(expected in str(result) for result in results)


def test_make_gets_a_secret_in_its_environment() -> None:
    plan, _ = script("make", "env: {TOKEN: '${{ secrets.TOKEN }}'}")
    assert plan.steps[0].parameters["command"] == "make\n"


def test_numbers_choices_and_counters_may_be_computed_with() -> None:
    head = "on: {workflow_dispatch: {inputs: {n: {type: number}, size: {type: choice, options: ['1', '2']}}}}"
    text = 'echo $(( ${{ inputs.n }} + ${{ inputs.size }} + GITHUB_RUN_NUMBER )); [[ "${{ inputs.size }}" -gt 1 ]] && echo large'
    record = run(workflow(f"  a:\n    steps:\n      - run: |\n          {text}\n", head), n=20, size="2", github_run_number="20")
    assert printed(record) == {"step_1": "42\nlarge"}


SKIPPED_NEED = """\
  docs:
    if: inputs.docs
    steps: [{run: echo docs}]
  %s:
    needs: docs
    if: ${{ %s }}
    steps: [{run: echo ran}]
"""
HEAD = "on: {workflow_dispatch: {inputs: {docs: {type: boolean, default: false}, name: {type: string, default: Web}}}}"


@pytest.mark.parametrize(
    ("condition", "runs_without", "runs_with"),
    [
        ("always()", True, True),
        ("!cancelled()", True, True),
        ("!cancelled() && !failure()", True, True),
        ("always() && needs.docs.result == 'skipped'", True, False),
        ("always() && needs.docs.result == 'success'", False, True),
        ("always() && needs.docs.result != 'failure'", True, True),
        ("always() && contains(needs.*.result, 'Skipped')", True, False),
        ("!contains(needs.*.result, 'failure') && !cancelled()", True, True),
        ("success()", False, True),
        ("success() || needs.docs.result == 'skipped'", True, True),
        ("needs.docs.result == 'success'", False, True),
        ("needs.unknown.result == ''", False, True),
        ("inputs.name == 'WEB'", False, True),
        ("always() && inputs.name != 'wEB'", False, False),
        ("always() && startsWith(inputs.name, 'WE') && endsWith(inputs.name, 'eB') && contains(inputs.name, 'E')", True, True),
        ('always() && contains(fromJSON(\'["WEB", "db"]\'), inputs.name)', True, True),
    ],
)
def test_a_job_runs_after_a_skipped_one_as_on_github(condition: str, runs_without: bool, runs_with: bool) -> None:
    converted = workflow(SKIPPED_NEED % ("after", condition), HEAD)
    for docs, expected in ((False, runs_without), (True, runs_with)):
        assert ("after_step_1" in printed(run(converted, docs=docs))) is expected, docs


CHAIN = """\
  a:
    if: inputs.docs
    steps: [{run: echo a}]
  c:
    needs: a
    if: always()
    steps: [{run: echo c}]
  d:
    needs: c
%s    steps: [{run: echo d}]
"""


@pytest.mark.parametrize(
    ("condition", "runs_without"),
    [("", False), ("success()", False), ("inputs.name != ''", False), ("always()", True), ("needs.c.result == 'success'", False)],
)
def test_a_skip_reaches_every_job_behind_it(condition: str, runs_without: bool) -> None:
    converted = workflow(CHAIN % (f"    if: ${{{{ {condition} }}}}\n" if condition else ""), HEAD)
    for docs, expected in ((False, runs_without), (True, True)):
        assert ("d_step_1" in printed(run(converted, docs=docs))) is expected, docs
        assert "c_step_1" in printed(run(converted, docs=docs))


OUTPUTS = {
    "the last value": ('echo "x=1" >> $GITHUB_OUTPUT\nif true; then echo "x=2" >> $GITHUB_OUTPUT; fi', "2"),
    "no value": ("echo y=1 >> $GITHUB_OUTPUT", ""),
    "set-output": ('echo "::set-output name=x::1"\necho "::set-output name=x::2"', "2"),
    "several lines": ('{ echo "x<<END"; echo one; echo two; echo END; } >> $GITHUB_OUTPUT', "one\ntwo"),
    "several lines twice": ('for i in 1 2; do printf "x<<E_$i\\n%s\\nE_$i\\n" "$i" >> $GITHUB_OUTPUT; done', "2"),
    "no lines": ('{ echo "x<<END"; echo END; } >> $GITHUB_OUTPUT', ""),
    "another program": ("sh -c 'echo x=1 >> $GITHUB_OUTPUT'", "1"),
    "a value with =": ('echo "x=a=b" >> $GITHUB_OUTPUT', "a=b"),
    "only printed": ('echo "x=right" >> $GITHUB_OUTPUT; echo x=only-printed', "right"),
    "only printed as written": ('echo "x=1" >> $GITHUB_OUTPUT; printf "%s\\n" "::what the step wrote::" "::OUTPUT::x=2"', "1"),
    "after a line without an end": ('printf progress...; echo "x=1" >> $GITHUB_OUTPUT', "1"),
    "without an end of its own": ("printf x=1 >> $GITHUB_OUTPUT; printf done", "1"),
    "in the middle of much text": ('seq 1 6000; echo x=mid >> "$GITHUB_OUTPUT"; seq 1 6000', "mid"),
    "set-output in much text": ('seq 1 6000; echo "::set-output name=x::mid"; seq 1 6000', "mid"),
    "to the environment": ('echo "x=1" >> $GITHUB_ENV', ""),
    "another case": ('echo "X=True" >> $GITHUB_OUTPUT', "True"),
    "a script with a trap": ('trap "echo end" EXIT; echo x=1 >> $GITHUB_OUTPUT', "1"),
}


@pytest.mark.parametrize("case", OUTPUTS)
def test_an_output_is_the_last_value_that_the_step_wrote(case: str) -> None:
    text, expected = OUTPUTS[case]
    lines = "".join(f"          {line}\n" for line in text.splitlines())
    converted = job(f'      - id: s\n        run: |\n{lines}      - run: echo "[${{{{ steps.s.outputs.x }}}}]"\n')
    assert converted[0].inputs == {}
    assert printed(run(converted))["step_2"] == f"[{expected}]"


def test_an_output_of_a_placeholder_step_is_no_input() -> None:
    plan, notes = job(
        "      - {id: pr, uses: some/pull-request@v1}\n"
        "      - run: ./merge ${{ steps.pr.outputs.number }}\n        if: steps.pr.outcome == 'success' && steps.pr.outputs.number != ''\n"
        "      - run: echo ${{ steps.later.outputs.x }}\n      - {id: later, run: 'true'}\n"
    )
    assert plan.inputs == {}
    assert plan.steps[1].depends_on == ["pr"]
    assert noted(notes, "changed", "steps.pr.outputs.number", "a line `number=…`")
    plan.steps[0].parameters["command"] = "echo number=7"
    plan.steps[1].parameters["command"] = 'echo "$STEPS_PR_OUTPUTS_NUMBER"'
    assert printed(run((plan, notes)))["step_2"] == "7"


@pytest.mark.parametrize("text", ['echo "x=$(seq 1 6000 | tr -d "\\n")" >> $GITHUB_OUTPUT', "echo x=1 >> $GITHUB_OUTPUT; exit 3"])
def test_a_step_that_fails_or_writes_too_much_gives_no_output(text: str) -> None:
    converted = job(f"      - id: s\n        run: |\n          {text}\n      - run: echo ${{{{ steps.s.outputs.x }}}}\n")
    record = run(converted)
    assert (record.status, record.steps[0].status) == ("failed", "failed")


def test_another_program_writes_an_output() -> None:
    text = "import os; open(os.environ['GITHUB_OUTPUT'], 'a').write('x=1')"
    converted = job(f'      - {{id: s, shell: python, run: "{text}"}}\n      - run: echo ${{{{ steps.s.outputs.x }}}}\n')
    assert printed(run(converted))["step_2"] == "1"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("join(needs.*.result, ',')", "success,skipped"),
        ("join(needs.*.result)", "success,skipped"),
        ("needs.gen.outputs[format('{0}', 'v')]", "1"),
        ("needs.gen.outputs['V']", "1"),
    ],
)
def test_results_of_other_jobs_are_known(value: str, expected: str) -> None:
    converted = workflow(
        "  gen:\n    outputs: {v: '${{ steps.l.outputs.v }}'}\n    steps: [{id: l, run: 'echo v=1 >> $GITHUB_OUTPUT'}]\n"
        "  docs:\n    if: inputs.docs\n    steps: [{run: docs}]\n"
        f'  last:\n    needs: [gen, docs]\n    if: always()\n    steps:\n      - run: echo "${{{{ {value} }}}}"\n',
        HEAD,
    )
    assert printed(run(converted))["last_step_1"] == expected


ENVIRONMENTS = {
    "a default": ("env: {A: stable}", "if: inputs.docs\n        run: echo A=new >> $GITHUB_ENV", {False: "stable", True: "new"}),
    "no default": ("", "if: inputs.docs\n        run: echo A=new >> $GITHUB_ENV", {False: "", True: "new"}),
    "two writers": (
        "",
        "if: inputs.docs\n        run: echo A=1 >> $GITHUB_ENV\n      - if: '!inputs.docs'\n        run: echo A=2 >> $GITHUB_ENV",
        {False: "2", True: "1"},
    ),
    "a writer in a script": ("env: {A: old}", 'run: if [ -e none ]; then echo A=new >> "$GITHUB_ENV"; fi', {False: "old"}),
    "a later writer": ("env: {A: old}", "run: echo A=1 >> $GITHUB_ENV\n      - run: echo A=2 >> $GITHUB_ENV", {False: "2"}),
    "a group": ("", "run: '{ echo B=0; echo A=1; } >> $GITHUB_ENV'", {False: "1"}),
    "tee": ("", "run: echo A=1 | tee -a $GITHUB_ENV", {False: "1"}),
    "a here-document": ("", 'run: |\n          cat >> "$GITHUB_ENV" <<END\n          A=1\n          END', {False: "1"}),
    "an unknown name": ("", 'run: name=A; echo "$name=1" >> $GITHUB_ENV', {False: "1"}),
    "printed": ("env: {A: low}", 'run: echo "A=high" >> "$GITHUB_ENV"; env | sort', {False: "high"}),
    "never set": ("", "run: echo nothing", {False: ""}),
}


@pytest.mark.parametrize("case", ENVIRONMENTS)
def test_a_variable_has_the_last_value_that_a_step_wrote(case: str) -> None:
    fields, steps, expected = ENVIRONMENTS[case]
    text = f'  a:\n    {fields or "name: a"}\n    steps:\n      - {steps}\n      - id: last\n        run: echo "[${{{{ env.A }}}}]"\n'
    converted = workflow(text, HEAD)
    assert list(converted[0].inputs) == ["docs", "name"]
    for docs, value in expected.items():
        assert printed(run(converted, docs=docs))["last"] == f"[{value}]"


@pytest.mark.parametrize(("code", "expected"), [(0, "success success"), (3, "failure success")])
def test_the_outcome_of_a_step_that_ignores_its_failure(code: int, expected: str) -> None:
    converted = job(
        f"      - {{id: t, continue-on-error: true, run: exit {code}}}\n"
        "      - {id: s, if: steps.t.outcome == 'Failure', run: echo failed}\n"
        "      - run: echo ${{ steps.t.outcome }} ${{ steps.t.conclusion }} ${{ steps.s.outcome }} ${{ steps.none.outcome }}.\n"
    )
    assert printed(run(converted))["step_3"] == f"{expected} {'success' if code else 'skipped'} ."


@pytest.mark.parametrize(
    ("shell", "text", "expected"),
    [
        ("bash -l {0}", "shopt -q login_shell && echo login", "login"),
        ("bash {0}", "false\necho went on", "went on"),
        ("bash -eu {0}", "echo ${UNSET_NAME-unset}; echo $-", "u"),
        ("bash --noprofile --norc -euxo pipefail {0}", "echo $-", "u"),
        ("sh -e {0}", "echo sh", "sh"),
        ("python -u {0}", "print(6 * 7)", "42"),
        ("perl {0}", "print 'perl';", "perl"),
    ],
)
def test_a_script_keeps_the_options_of_its_shell(shell: str, text: str, expected: str) -> None:
    lines = "".join(f"          {line}\n" for line in text.splitlines())
    converted = job(f"      - shell: {shell}\n        run: |\n{lines}")
    assert noted(converted[1], "the script runs as") or noted(converted[1], "kept", "`set`")
    assert expected in printed(run(converted))["step_1"]


@pytest.mark.parametrize("shell", ["cp {0} action.yml", "bash -c {0} x", "wsl-bash {0}", "cmd", "'${{ inputs.shell }}'", "bash {0} {0}"])
def test_a_shell_that_is_not_known_is_reported(shell: str) -> None:
    plan, notes = job(f"      - shell: {shell}\n        run: ls\n")
    assert "not_imported" in plan.steps[0].metadata
    assert noted(notes, "left out", "the script:", "shell", "placeholder step")
