"""Tests of converting GitHub Actions workflows: what is kept, changed and left out, and the notes about it."""

import pytest

from plan_adapter.documents import read_mapping_text
from plan_adapter.importers.conversion import NotConvertibleError
from tests.importers.builders import FIXTURES, calls, convert, job, noted, only, workflow

POWERSHELL = "$ErrorActionPreference = 'stop'\n{}\nif ((Test-Path -LiteralPath variable:\\LASTEXITCODE)) {{ exit $LASTEXITCODE }}"


def test_a_workflow_keeps_its_inputs_scripts_order_and_gate() -> None:
    plan, notes = convert((FIXTURES / "release.yml").read_text(), "release.yml")
    inputs = {name: (definition.type, definition.default, definition.enum) for name, definition in plan.inputs.items()}
    assert inputs == {
        "version": ("string", None, None),
        "target_env": ("string", "staging", ["staging", "production"]),
        "dry_run": ("boolean", False, None),
        "replicas": ("number", 2, None),
        "where": ("string", None, None),
        "github_sha": ("string", None, None),
    }
    steps = {step.id: step for step in plan.steps}
    assert {name: step.depends_on for name, step in steps.items()} == {
        "build_install": [],
        "build_image": ["build_install"],
        "build_push": ["build_image"],
        "test_test": ["build_push"],
        "deploy_stop": ["build_push", "test_test"],
        "deploy_deploy": ["deploy_stop"],
    }
    assert steps["build_install"].parameters == {"command": "npm ci", "cwd": "app", "env": {"REGISTRY": "registry.example.com"}}
    assert steps["build_install"].timeout_ms == 300_000
    assert steps["test_test"].for_each == (
        "${{ [{'node': 18, 'os': 'ubuntu'}, {'node': 20, 'os': 'ubuntu'}, {'node': 20, 'os': 'alpine'}, {'node': 22, 'os': 'debian'}] }}"
    )
    assert steps["test_test"].parameters["command"] == "./test --os ${MATRIX_OS} --node ${MATRIX_NODE} --commit ${GITHUB_SHA}"
    assert (steps["deploy_stop"].requires_approval, steps["deploy_deploy"].requires_approval) == (True, False)
    condition = "${{ (!(inputs.dry_run)) && (inputs.target_env == 'production') }}"
    assert (steps["deploy_stop"].when, steps["deploy_deploy"].when) == (condition, condition)
    env = steps["deploy_deploy"].parameters["env"]
    assert isinstance(env, dict)
    assert env["TOKEN"] == "${{ secrets.DEPLOY_TOKEN }}"
    assert "steps.build_image.result.stdout" in str(env["IMAGE"])
    assert steps["build_push"].metadata["not_imported"] == {
        "name": "Push",
        "uses": "docker/build-push-action@v6",
        "with": {"tags": "$ {{ steps.image.outputs.name }}"},
    }
    for parts in (
        ("kept", "5 of 6 steps, and 6 inputs"),
        ("kept", "test", "for_each", "4 combinations"),
        ("changed", "`target-env` is called `target_env`"),
        ("changed", "input where", "environment"),
        ("changed", "`github.sha`", "`github_sha`"),
        ("changed", "deploy", "environment `production`", "gate"),
        ("changed", "deploy.stop", "continue-on-error"),
        ("changed", "`DEPLOY_TOKEN`", "plan guide secrets"),
        ("left out", 'plan deploy FILE --cron "0 3 * * 1"'),
        ("left out", "`on: push`"),
        ("left out", "actions/checkout@v4", "git clone"),
        ("left out", "actions/setup-node@v4", "install it"),
        ("left out", "docker/build-push-action@v6", "placeholder step"),
        ("left out", "`strategy.fail-fast`"),
        ("left out", "`timeout-minutes: 30` of the job"),
        ("left out", "deploy.tell_about_a_failure", "only after a failure"),
        ("left out", "`concurrency`"),
        ("left out", "`permissions`"),
        ("left out", "`run-name`"),
        ("left out", "`runs-on`"),
    ):
        assert noted(notes, *parts), parts


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("inputs.flag", "inputs.flag"),
        ("${{ !inputs.flag }}", "!(inputs.flag)"),
        ("inputs.flag == true", "inputs.flag == true"),
        ("inputs.flag != 'true'", None),
        ("inputs.flag == 1", "inputs.flag == true"),
        ("github.event.inputs.flag == 'true'", "inputs.flag"),
        ("env.FLAG != 'true'", "!(inputs.flag)"),
        ("'apple' < 'BANANA'", None),
        ("inputs.name < 'BANANA'", "inputs.name.lowerAscii() < 'banana'"),
        ("inputs.name != ''", "inputs.name != ''"),
        ("inputs.name", "inputs.name != ''"),
        ("inputs.count > 2", "inputs.count > 2.0"),
        ("inputs.count == '3'", "inputs.count == 3.0"),
        ("success() && inputs.flag", "inputs.flag"),
        ("contains(inputs.name, 'x') || inputs.flag", "(inputs.name.lowerAscii().contains('x')) || (inputs.flag)"),
        ('contains(fromJSON(\'["a", "b"]\'), inputs.name)', "inputs.name.lowerAscii() in ['a', 'b']"),
        (
            "startsWith(inputs.name, 'v') && endsWith(inputs.name, 'it''s')",
            "(inputs.name.lowerAscii().startsWith('v')) && (inputs.name.lowerAscii().endsWith('it\\'s'))",
        ),
        ("env.STAGE == 'prod'", None),
        ("always()", None),
        ("github.event_name == 'workflow_dispatch'", None),
        ("needs.other.result == ''", None),
        ("inputs.name == 'Prod'", "inputs.name.lowerAscii() == 'prod'"),
        ("inputs.name != '2'", "inputs.name != '2'"),
    ],
)
def test_a_condition_becomes_a_when(source: str, expected: str | None) -> None:
    inputs = "{flag: {type: boolean}, name: {}, count: {type: number}}"
    plan, _ = workflow(
        "  build:\n    env: {STAGE: prod, FLAG: '${{ inputs.flag }}'}\n"
        f'    steps:\n      - run: "true"\n        if: >-\n          {source}\n',
        f"on: {{workflow_dispatch: {{inputs: {inputs}}}}}",
    )
    assert only(plan).when == (None if expected is None else f"${{{{ {expected} }}}}")


def test_a_condition_that_cannot_be_translated_becomes_a_gate() -> None:
    plan, notes = job("      - run: ./deploy\n        if: hashFiles('x') != ''\n")
    assert (only(plan).when, only(plan).requires_approval) == (None, True)
    assert noted(notes, "changed", "hashFiles", "a person decides at a gate")


def test_a_job_that_needs_an_omitted_job_is_omitted_too() -> None:
    plan, notes = workflow(
        "  a:\n    if: failure()\n    steps: [{run: a}]\n  b:\n    needs: a\n    steps: [{run: b}]\n  c:\n    steps: [{run: c}]\n"
    )
    assert [step.id for step in plan.steps] == ["c_step_1"]
    assert noted(notes, "left out", "b", "needs `a`")


def test_a_job_behind_the_dependent_of_an_omitted_job_is_omitted() -> None:
    plan, notes = workflow(
        "  a:\n    if: failure()\n    steps: [{run: a}]\n  c:\n    needs: a\n    if: always()\n    steps: [{run: c}]\n"
        "  d:\n    needs: c\n    steps: [{run: d}]\n"
    )
    assert [step.id for step in plan.steps] == ["c_step_1"]
    assert noted(notes, "left out", "d", "needs `c`, which needs a job that is left out")


def test_dependencies_pass_through_a_job_without_steps() -> None:
    plan, _ = workflow(
        "  a:\n    steps: [{run: a}]\n"
        "  b:\n    needs: a\n    steps: [{uses: actions/checkout@v4}]\n"
        "  c:\n    needs: [b]\n    steps: [{run: c}]\n"
    )
    assert {step.id: step.depends_on for step in plan.steps} == {"a_step_1": [], "c_step_1": ["a_step_1"]}


def test_every_path_through_a_protected_job_passes_its_gate() -> None:
    steps = "      - run: a\n        if: inputs.x\n      - run: b\n      - run: c\n"
    plan, _ = workflow(
        f"  build:\n    environment: prod\n    strategy: {{matrix: {{n: [1, 2]}}}}\n    steps:\n{steps}",
        "on: {workflow_dispatch: {inputs: {x: {type: boolean}}}}",
    )
    assert [step.requires_approval for step in plan.steps] == [True, True, False, True, True, False]


def test_a_job_inherits_the_gate_of_a_needed_job_without_steps() -> None:
    plan, _ = workflow(
        "  ok:\n    environment: prod\n    steps: [{uses: actions/checkout@v4}]\n"
        "  go:\n    needs: ok\n    steps: [{run: a}, {run: b}]\n"
        "  on:\n    needs: go\n    steps: [{run: c}]\n"
    )
    assert {step.id: step.requires_approval for step in plan.steps} == {"go_step_1": True, "go_step_2": False, "on_step_1": False}


def test_the_steps_of_a_matrix_are_written_out_for_each_combination() -> None:
    plan, notes = job("      - run: make ${{ matrix.a }}\n      - run: test ${{ matrix.b }}\n", "strategy: {matrix: {a: [1, x y], b: [2]}}")
    assert calls(plan) == {"step_1_1_2": "make 1", "step_2_1_2": "test 2", "step_1_x_y_2": "make x y", "step_2_x_y_2": "test 2"}
    assert noted(notes, "changed", "each of 2 combinations")


@pytest.mark.parametrize(
    ("matrix", "reason"),
    [
        (f"{{n: {[*range(257)]}}}", "257 combinations, and GitHub accepts 256"),
        (f"{{{', '.join(f'{axis}: {[*range(10)]}' for axis in 'abcdefghi')}}}", "1,000,000,000 combinations"),
        (f"{{n: {[*range(200)]}, include: {[{'n': n} for n in range(200, 300)]}}}", "300 combinations"),
        (f"{{n: {[*range(250)]}}}", "250 combinations of 3 steps each; write a group with `for_each`"),
    ],
)
def test_a_matrix_that_is_too_large_is_refused(matrix: str, reason: str) -> None:
    plan, notes = workflow(
        f"  a:\n    strategy: {{matrix: {matrix}}}\n    steps: [{{run: a}}, {{run: b}}, {{run: c}}]\n"
        "  b:\n    needs: a\n    steps: [{run: b}]\n"
    )
    assert "not_imported" in plan.steps[0].metadata
    assert {step.id: step.depends_on for step in plan.steps} == {"a": [], "b_step_1": ["a"]}
    assert noted(notes, "left out", "a: the whole of it", reason)


def test_a_large_matrix_is_whole() -> None:
    plan, notes = job("      - run: a\n      - run: b\n", f"strategy: {{matrix: {{n: {[*range(60)]}}}}}")
    assert len(plan.steps) == 120
    assert noted(notes, "changed", "each of 60 combinations")


GENERATED = (
    "  gen:\n    outputs: {list: '${{ steps.l.outputs.list }}'}\n"
    "    steps: [{id: l, run: 'echo list=[] >> $GITHUB_OUTPUT', env: {S: '${{ inputs.s }}'}}]\n"
)


@pytest.mark.parametrize("matrix", ["'${{ fromJSON(needs.gen.outputs.list) }}'", "{x: '${{ fromJSON(needs.gen.outputs.list) }}', y: [1]}"])
def test_a_matrix_that_another_job_makes_becomes_a_placeholder_step(matrix: str) -> None:
    plan, notes = workflow(
        f"{GENERATED}  b:\n    needs: gen\n    strategy: {{matrix: {matrix}}}\n    steps: [{{run: './build ${{{{ matrix.x }}}}'}}]\n"
    )
    assert plan.inputs.keys() <= {"inputs_s"}
    assert "not_imported" in plan.steps[1].metadata
    assert noted(notes, "left out", "b: the whole of it", "a result of another job", "`for_each`")


@pytest.mark.parametrize(
    "value",
    [
        "fromJSON(needs.gen.outputs.list)[0]",
        "toJSON(needs.gen.outputs)",
        "toJSON(needs)",
        "toJSON(steps.x.outputs)",
        "toJSON(steps)",
        "join(steps.*.outputs.v, '-')",
    ],
)
@pytest.mark.parametrize("place", ["run: 'echo %s'", "run: ls, env: {A: '%s'}", "run: ls, working-directory: '%s'"])
def test_a_result_of_the_workflow_is_never_an_input(value: str, place: str) -> None:
    step = place % f"${{{{ {value} }}}}".replace("'", "''")
    plan, notes = workflow(f"{GENERATED}  b:\n    needs: gen\n    steps: [{{id: x, run: 'true'}}, {{{step}}}]\n")
    assert plan.inputs.keys() <= {"inputs_s"}
    assert "not_imported" in plan.steps[2].metadata
    assert noted(notes, "left out", "a result of this workflow")


def test_a_matrix_computed_at_run_time_becomes_inputs() -> None:
    plan, notes = job("      - run: ./build ${{ matrix.a }}\n", "strategy: {matrix: '${{ fromJSON(vars.LIST) }}'}")
    assert list(plan.inputs) == ["matrix_a"]
    assert noted(notes, "changed", "the matrix is known only while a workflow runs")


@pytest.mark.parametrize(
    ("shell", "script", "expected"),
    [
        ("bash", "ls", ("bash", "ls")),
        ("sh", "ls", ("bash", "ls")),
        ("python", "print(1)", ("run_command", ["python3", "-c", "print(1)"])),
        ("pwsh", "Get-Date", ("run_command", ["pwsh", "-Command", POWERSHELL.format("Get-Date")])),
        ("python", "print('${{ inputs.x }}')", None),
        ("cmd", "dir", None),
    ],
)
def test_a_script_runs_in_its_shell_or_becomes_a_placeholder_step(shell: str, script: str, expected: tuple[str, object] | None) -> None:
    plan, notes = job(f'      - shell: {shell}\n        run: "{script}"\n')
    step = only(plan)
    if expected is None:
        assert "not_imported" in step.metadata
        assert noted(notes, "left out", "`inputs.x` would be read as code" if "${{" in script else f"shell: {shell}", "placeholder step")
    else:
        assert (step.tool_name, calls(plan)[step.id]) == expected


def test_values_that_only_github_knows_become_inputs_and_no_expression_remains() -> None:
    plan, notes = job("      - run: echo ${{ github.actor }} ${{ vars.REGION }} ${{ toJSON(github) }} $GITHUB_REPOSITORY\n")
    assert list(plan.inputs) == ["github_actor", "REGION", "toJSON_github", "github_repository"]
    assert "${{" not in str(only(plan).parameters["command"])
    assert noted(notes, "changed", "`vars.REGION`", "`REGION`")


def test_an_input_used_only_by_an_omitted_step_is_omitted() -> None:
    plan, notes = job("      - run: ls\n      - run: echo ${{ github.sha }}\n        if: failure()\n")
    assert plan.inputs == {}
    assert not noted(notes, "github.sha")


def test_variables_that_cannot_be_traced_are_reported() -> None:
    _, notes = job("      - run: |\n          cat vars >> $GITHUB_ENV\n          echo /opt/bin >> $GITHUB_PATH\n")
    assert noted(notes, "left out", "some of what the script writes to `$GITHUB_ENV`")
    assert noted(notes, "left out", "`$GITHUB_PATH`")


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("echo '${{ inputs.x }}'", "echo ''\"${INPUT_X}\"''"),
        ("echo \"it's ${{ inputs.x }}\" 'a'", "echo \"it's ${INPUT_X}\" 'a'"),
        ("# don't ${{ inputs.x }} don't\necho ${{ inputs.x }}", "# don't ${INPUT_X} don't\necho ${INPUT_X}"),
        ("cat <<E\nit's ${{ inputs.x }}\nE\necho '${{ inputs.x }}'", "cat <<E\nit's ${INPUT_X}\nE\necho ''\"${INPUT_X}\"''"),
        ("echo \"$(echo '${{ inputs.x }}') ${{ inputs.x }}\"", "echo \"$(echo ''\"${INPUT_X}\"'') ${INPUT_X}\""),
        ("echo $((1<<2)) '${{ inputs.x }}'\necho '${{ inputs.x }}'", "echo $((1<<2)) ''\"${INPUT_X}\"''\necho ''\"${INPUT_X}\"''"),
        ("echo \\' ${{ inputs.x }}", "echo \\' ${INPUT_X}"),
    ],
)
def test_a_value_in_a_script_becomes_a_variable_inside_any_quotes(script: str, expected: str) -> None:
    lines = "".join(f"          {line}\n" for line in script.splitlines())
    plan, _ = workflow(f"  a:\n    steps:\n      - run: |\n{lines}", "on: {workflow_dispatch: {inputs: {x: {}}}}")
    assert only(plan).parameters == {"command": f"{expected}\n", "env": {"INPUT_X": "${{ inputs.x }}"}}


@pytest.mark.parametrize("step", ["run: echo ${{ github.actor", "run: ls\n        working-directory: 'x${{'"])
def test_an_unclosed_expression_makes_a_placeholder_step(step: str) -> None:
    plan, notes = job(f"      - {step}\n")
    assert "not_imported" in only(plan).metadata
    assert noted(notes, "left out", "not closed")


def test_a_value_in_a_literal_here_document_makes_a_placeholder_step() -> None:
    plan, notes = job("      - run: |\n          cat <<'E'\n          ${{ github.actor }}\n          E\n")
    assert "not_imported" in only(plan).metadata
    assert noted(notes, "left out", "here-document")


def test_secrets_stay_secrets() -> None:
    plan, _ = job("      - run: ./login '${{ secrets.TOKEN }}'\n        env: {OTHER: '${{ secrets.A || secrets.B }}'}\n")
    assert only(plan).parameters == {
        "command": "./login ''\"${SECRETS_TOKEN}\"''",
        "env": {"OTHER": "${{ secrets.A }}", "SECRETS_TOKEN": "${{ secrets.TOKEN }}"},
    }


def test_a_variable_of_a_later_step_comes_from_the_step_that_set_it() -> None:
    plan, notes = job('      - run: echo "TAG=v1" >> $GITHUB_ENV\n      - run: echo ${{ env.TAG }}\n')
    second = plan.steps[1].parameters
    assert second["command"] == "echo ${TAG}"
    assert "steps.step_1.result.stdout" in str(second["env"])
    assert noted(notes, "changed", "`TAG`", "$GITHUB_ENV")


def test_calls_of_other_workflows_become_placeholder_steps() -> None:
    plan, notes = workflow("  call:\n    uses: ./.github/workflows/x.yml\n    with: {a: '${{ inputs.b }}'}\n")
    assert only(plan).metadata["not_imported"] == {"uses": "./.github/workflows/x.yml", "with": {"a": "$ {{ inputs.b }}"}}
    assert noted(notes, "left out", "placeholders: 1 of 1 step. Each one fails")


def test_a_placeholder_step_does_not_ignore_its_failure() -> None:
    plan, notes = job("      - uses: some/deploy@v1\n        continue-on-error: true\n      - run: ls\n")
    assert str(plan.steps[0].parameters["command"]).endswith("exit 1")
    assert noted(notes, "left out", "`continue-on-error`")


def test_a_workflow_without_steps_is_refused() -> None:
    with pytest.raises(NotConvertibleError, match="no step"):
        workflow("  a:\n    steps: [{uses: actions/checkout@v4}]\n")


def test_outputs_of_a_called_workflow_are_outputs_of_the_plan() -> None:
    plan, _ = workflow(
        "  a:\n    outputs: {v: '${{ steps.s.outputs.v }}'}\n    steps: [{id: s, run: 'echo v=1 >> $GITHUB_OUTPUT'}]\n",
        "on: {workflow_call: {outputs: {version: {value: '${{ jobs.a.outputs.v }}'}}}}",
    )
    assert "steps.s.result.stdout" in str(plan.outputs["version"])


@pytest.mark.parametrize(
    ("runner", "matrix", "programs"),
    [
        ("windows-latest", "", ["pwsh"]),
        ("[self-hosted, Windows]", "", ["pwsh"]),
        ("{group: g, labels: windows-2022}", "", ["pwsh"]),
        ("${{ matrix.os }}", "os: [windows-2022, windows-2025]", ["pwsh"]),
        ("${{ matrix.os }}", "os: [ubuntu-24.04, windows-2025]", ["./build", "pwsh"]),
        ("ubuntu-latest", "", ["./build"]),
    ],
)
def test_a_script_of_a_windows_runner_runs_in_powershell(runner: str, matrix: str, programs: list[str]) -> None:
    strategy = f"    strategy: {{matrix: {{{matrix}}}}}\n" if matrix else ""
    plan, notes = workflow(f"  a:\n    runs-on: {runner}\n{strategy}    steps: [{{run: ./build}}]\n")
    assert [found[0] if isinstance(found, list) else found for found in calls(plan).values()] == programs
    assert noted(notes, "the script runs as `pwsh -Command …`, because its runner is Windows") is ("pwsh" in programs)


def test_a_script_of_a_windows_runner_keeps_the_shell_that_it_names() -> None:
    steps = "[{run: ls, shell: bash}, {run: ls}]"
    plan, _ = workflow(f"  a:\n    runs-on: windows-latest\n    defaults: {{run: {{shell: bash}}}}\n    steps: {steps}\n")
    assert calls(plan) == {"step_1": "ls", "step_2": "ls"}


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ("workflow_call", (None, None)),
        ("[workflow_call, push]", (None, "push")),
        ("[workflow_dispatch, push]", (["workflow_dispatch", "push"], "workflow_dispatch")),
        ("[workflow_dispatch, workflow_call]", (None, "workflow_dispatch")),
    ],
)
def test_the_event_of_a_called_workflow_is_its_callers(events: str, expected: tuple[object, object]) -> None:
    plan, _ = workflow("  a:\n    steps: [{run: './x ${{ github.event_name }}'}]\n", f"on: {events}")
    event = plan.inputs["github_event_name"]
    assert (event.enum, event.default) == expected


@pytest.mark.parametrize(
    ("steps", "placeholders"),
    [
        ("{uses: actions/checkout@v4}, {run: a}, {uses: actions/checkout@v4}", []),
        ("{uses: actions/checkout@v4}, {run: a}, {uses: actions/checkout@v4, with: {ref: gh-pages}}", ["checkout"]),
        ("{uses: actions/checkout@v4, with: {ref: v1, fetch-depth: 0}}, {run: a}, {uses: actions/checkout@v5, with: {ref: v1}}", []),
        ("{uses: actions/checkout@v4, with: {repository: other/name}}, {run: a}", ["checkout"]),
        ("{uses: actions/checkout@v4, with: {path: src}}, {run: a}", ["checkout"]),
        ("{uses: actions/checkout@v4, with: {path: ./, repository: '${{ github.repository }}'}}, {run: a}", []),
    ],
)
def test_a_checkout_that_changes_the_files_becomes_a_placeholder_step(steps: str, placeholders: list[str]) -> None:
    plan, _ = workflow(f"  a:\n    steps: [{steps}]\n")
    assert [step.id for step in plan.steps if "not_imported" in step.metadata] == placeholders


def test_a_checkout_of_another_revision_in_another_job_becomes_a_placeholder_step() -> None:
    plan, notes = workflow(
        "  a:\n    steps: [{uses: actions/checkout@v4}, {run: a}]\n"
        "  b:\n    needs: a\n    steps: [{uses: actions/checkout@v4, with: {ref: gh-pages}}, {run: b}]\n"
    )
    assert [step.id for step in plan.steps] == ["a_step_2", "b_checkout", "b_step_2"]
    assert noted(notes, "left out", "b.checkout", "it changes the revision")


@pytest.mark.parametrize(
    ("upload", "download", "is_replaced"),
    [
        ("{name: x, path: dist}", "{name: x, path: dist}", False),
        ("{name: x, path: dist/}", "{name: x, path: ./dist}", False),
        ("{name: x, path: dist/*.tar.gz}", "{name: x, path: dist}", False),
        ("{name: x, path: dist/app.tar.gz}", "{name: x, path: dist}", False),
        ("{name: x, path: app.tar.gz}", "{name: x}", False),
        ("{name: x, path: dist/*.tar.gz}", "{}", True),
        ("{name: x, path: dist}", "{name: x}", True),
        ("{name: x, path: dist}", "{name: x, path: out}", True),
        ("{name: x, path: dist}", "{name: y, path: dist}", True),
        ("{name: x, path: dist}", "{path: dist}", True),
        ("{name: x, path: dist}", "{path: dist, merge-multiple: true}", False),
        ("{name: x, path: 'dist/app'}", "{name: x, path: dist}", True),
    ],
)
def test_an_artifact_that_is_put_elsewhere_becomes_a_placeholder_step(upload: str, download: str, is_replaced: bool) -> None:
    plan, notes = workflow(
        f"  a:\n    steps: [{{run: make}}, {{uses: actions/upload-artifact@v4, with: {upload}}}]\n"
        f"  b:\n    needs: a\n    steps: [{{uses: actions/download-artifact@v4, with: {download}}}, {{run: ls}}]\n"
    )
    assert ("b_download_artifact" in [step.id for step in plan.steps]) is is_replaced
    assert noted(notes, "it puts the files of an artifact into") is is_replaced


def test_anchors_are_read() -> None:
    plan, _ = workflow(
        "  a:\n    env: &env {A: '1'}\n    steps: &steps\n      - &step {run: echo a}\n      - *step\n"
        "  b:\n    env: *env\n    steps: *steps\n"
    )
    assert calls(plan) == {f"{name}_step_{n}": "echo a" for name in "ab" for n in (1, 2)}
    assert all(step.parameters["env"] == {"A": "1"} for step in plan.steps)


BOMB = "x0: &x0 [a, a, a, a, a, a, a, a, a, a]\n" + "".join(f"x{n}: &x{n} [{', '.join([f'*x{n - 1}'] * 10)}]\n" for n in range(1, 10))


@pytest.mark.parametrize(
    ("text", "code"),
    [(BOMB, "too-large"), ("a: &a [*a]\n", "anchor"), ("a: *b\n", "anchor"), ("a: &a {b: *a}\n", "anchor")],
    ids=["bomb", "itself", "unknown", "within itself"],
)
def test_aliases_without_an_end_are_one_problem(text: str, code: str) -> None:
    document, problems = read_mapping_text(f"on: push\njobs: {{}}\n{text}", file="x.yml", aliases=True)
    assert document is None
    assert [(problem.code, problem.line is not None) for problem in problems] == [(code, True)]


def test_plan_documents_still_refuse_anchors() -> None:
    document, problems = read_mapping_text("a: &a 1\nb: *a\n", file="x.yml")
    assert (document, [problem.code for problem in problems]) == ({"a": 1, "b": None}, ["anchor", "anchor"])


def test_what_the_plan_cannot_have_is_left_out_with_a_note() -> None:
    plan, notes = workflow(
        "  a:\n    env: {'${{ github.actor }}': x}\n    steps: [{run: ls}]\n",
        "on: {workflow_call: {outputs: {key: {value: '${{ secrets.KEY }}'}, name: {value: w}}}}",
    )
    assert (plan.outputs, only(plan).parameters) == ({"name": "w"}, {"command": "ls"})
    assert noted(notes, "left out", "a", "a value makes its name")
    assert noted(notes, "left out", "key", "contains a secret")


@pytest.mark.parametrize(
    "jobs",
    [
        "  a:\n    strategy: {matrix: {os: ['${{ matrix.os }}']}}\n    steps: [{run: 'echo ${{ matrix.os }}'}, {run: b}]\n",
        "  a:\n    outputs: {x: '${{ needs.a.outputs.x }}'}\n    steps: [{run: 'echo ${{ needs.a.outputs.x }}'}]\n",
        "  a:\n    outputs: {x: '${{ jobs.a.outputs.x }}${{ jobs.a.outputs.x }}'}\n    steps: [{run: 'echo ${{ jobs.a.outputs.x }}'}]\n",
    ],
)
def test_a_value_that_refers_to_itself_ends(jobs: str) -> None:
    plan, _ = workflow(jobs)
    assert plan.steps


def test_a_list_in_a_text_is_the_word_that_github_writes() -> None:
    plan, _ = job("      - run: echo $ALL\n        env: {ALL: '${{ needs.*.result }}'}\n")
    assert (list(plan.inputs), only(plan).parameters["env"]) == ([], {"ALL": "Array"})


def test_merge_keys_are_merged() -> None:
    plan, _ = workflow(
        "  a:\n    env: &env {A: '1', B: '1'}\n    steps: [{run: a}]\n"
        "  b:\n    env: {<<: *env, B: '2'}\n    steps: [{run: b}]\n"
        "  c:\n    env:\n      <<: [{B: '3'}, *env]\n    steps: [{run: c}]\n"
    )
    assert [step.parameters["env"] for step in plan.steps] == [{"A": "1", "B": "1"}, {"A": "1", "B": "2"}, {"A": "1", "B": "3"}]


def test_the_system_of_a_runner_is_that_of_its_labels() -> None:
    plan, notes = workflow(
        "  a:\n    strategy: {matrix: {os: [ubuntu-latest, macos-15, windows-2025]}}\n    runs-on: ${{ matrix.os }}\n"
        "    steps: [{run: 'echo ${{ runner.os }}', shell: bash}, {run: brew, if: runner.os == 'macOS'}]\n"
    )
    assert list(calls(plan).values()) == ["echo Linux", "echo macOS", "brew", "echo Windows"]
    assert noted(notes, "left out", "with os: ubuntu-latest", "runner.os == 'macOS'")


@pytest.mark.parametrize(
    ("shell", "options"),
    [
        ("pwsh -File {0}", []),
        ("pwsh -NoProfile -File {0}", ["-NoProfile"]),
        ("powershell -NoLogo -ExecutionPolicy Bypass -command \". '{0}'\"", ["-NoLogo", "-ExecutionPolicy", "Bypass"]),
        ("pwsh -command \"& '{0}'\"", []),
    ],
)
def test_a_shell_that_runs_the_file_of_a_powershell_script_gets_its_text(shell: str, options: list[str]) -> None:
    plan, _ = job(f"      - run: Get-Date\n        shell: {shell}\n")
    assert calls(plan)["step_1"] == ["pwsh", *options, "-Command", "Get-Date"]


@pytest.mark.parametrize("shell", ["pwsh -command \"x '{0}' y\"", 'pwsh -command "./x" {0}'])
def test_another_shell_of_powershell_becomes_a_placeholder_step(shell: str) -> None:
    plan, _ = job(f"      - run: Get-Date\n        shell: {shell}\n")
    assert "not_imported" in only(plan).metadata


def test_a_second_checkout_after_a_script_is_reported() -> None:
    _, notes = workflow("  a:\n    steps: [{uses: actions/checkout@v4}, {run: a}, {uses: actions/checkout@v4}]\n")
    assert noted(notes, "left out", "a second checkout", "git clean")
    _, notes = workflow("  a:\n    steps: [{uses: actions/checkout@v4}, {uses: actions/checkout@v4}, {run: a}]\n")
    assert not noted(notes, "a second checkout")


def test_a_script_that_yaml_reads_as_something_else_is_kept_as_written() -> None:
    plan, _ = job("      - run: true\n      - run: 7\n")
    assert calls(plan) == {"step_1": "true", "step_2": "7"}


def test_the_state_of_an_action_is_no_input() -> None:
    plan, _ = job("      - run: echo a=1 >> $GITHUB_STATE\n")
    assert (plan.inputs, only(plan).parameters["env"]) == ({}, {"GITHUB_STATE": "/dev/null"})


def test_an_expression_that_is_not_closed_is_one_error_with_its_place() -> None:
    with pytest.raises(NotConvertibleError, match=r"build: an expression in .* is not closed"):
        job("      - run: ls\n        env: {A: '${{ a'}\n")
