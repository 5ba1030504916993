"""Tests of finding the values that a shell script, or a program that it starts, would read as code."""

import subprocess
from pathlib import Path

import pytest

from plan_adapter.importers.programs import SPLIT_VALUE, VALUE, code_arguments, contains_value, stdin_reader
from plan_adapter.importers.shell_code import value_as_code
from plan_adapter.importers.shell_syntax import UnreadableScriptError

CODE = [
    'bash -c "echo $X"',
    'bash -euxc "echo $X"',
    'sh -o pipefail -c "echo $X"',
    'eval "echo $X"',
    '[[ "$X" -eq 1 ]]',
    "if [[ a == b && $X -gt 1 ]]; then echo; fi",
    "echo $(( $X + 1 ))",
    "echo $(( X + 1 ))",
    "(( X > 1 )) && echo",
    "let y=$X+1",
    'Y=$X; eval "$Y"',
    'Y="$(echo "$X" | tr a b)"; bash -c "$Y"',
    'echo "$X" | sh',
    'echo "$X" | sudo bash -s',
    'bash <<< "echo $X"',
    "bash <<EOF\necho $X\nEOF",
    "cat <<EOF | bash\necho $X\nEOF",
    'ssh host "deploy $X"',
    "ssh host deploy $X",
    "ssh -i key h <<EOF\ndeploy $X\nEOF",
    'ssh h bash -s < <(echo "$X")',
    'source <(echo "$X")',
    ". <(echo $X)",
    'env -S "echo $X"',
    'env FOO=1 bash -c "$X"',
    'xargs -I{} sh -c "echo $X {}"',
    'echo "$X" | xargs -I{} sh -c "echo {}"',
    'echo "$X" | xargs sh -c',
    r'''python3 -c "print('$X')"''',
    "python3 - <<EOF\nprint('$X')\nEOF",
    'perl -pe "s/a/$X/" f',
    'perl -i -pe "s/a/$X/" f',
    r'''ruby -e "puts '$X'"''',
    r'''node -e "console.log('$X')"''',
    r'awk "{print \"$X\"}" f',
    'awk -F, "BEGIN {print $X}"',
    'sed -i "s/a/$X/" f',
    'sed -i.bak -e "s/a/$X/" f',
    r'jq ".a = \"$X\"" f',
    'jq -r --arg a b ".[] | $X" f',
    r'yq e ".a = \"$X\"" f',
    'trap "echo $X" EXIT',
    r'find . -exec sh -c "echo $X {}" \;',
    'su -c "echo $X" user',
    'su user -c "echo $X"',
    'docker exec c sh -c "echo $X"',
    'docker run --rm -v a:b img bash -lc "echo $X"',
    'kubectl exec pod -- sh -c "echo $X"',
    'make VERSION="$X"',
    "make $X",
    r'''psql -c "select '$X'"''',
    "psql <<EOF\nselect '$X'\nEOF",
    r'''mysql -e "select '$X'"''',
    r'''sqlite3 db "select '$X'"''',
    'test -v "$X"',
    '[ -v "$X" ]',
    "[[ -v $X ]]",
    'declare "$X=1"',
    'declare -i n="$X"',
    'declare -a n="$X"',
    'printf -v "$X" a',
    'read "$X" < f',
    'unset "$X"',
    "a[$X]=1",
    "echo ${a[$X]}",
    "echo ${a[X]}",
    "echo ${!X}",
    "echo ${a:$X}",
    "echo ${a:0:X}",
    "echo ${X@P}",
    'f() { eval "$1"; }; f "$X"',
    'echo "$X" > s.txt; bash s.txt',
    'echo "$X" > r.sh',
    "ssh $X uptime",
    'sh -c -- "$X"',
    'env Y="$X" bash -c \'eval "$Y"\'',
    'docker run -e Y="$X" image sh -c \'eval "$Y"\'',
    'bash -c "cd $HOME && eval \\"\\$X\\""',
    'tee >(bash) <<< "$X"',
    'echo "$X" > >(sh)',
    'ssh -p 22 "$X" uptime',
    'scp file "$X:/tmp"',
    "find $X -name a",
    "perl -pe 's/a/b/' \"$X\"",
    "docker build -t a -f - . <<EOF\nRUN $X\nEOF",
    "alias a=$X",
    "xargs -I{} bash -c '{}' <<< \"$X\"",
    'if printf %s "$X" | bash; then true; fi',
    "$(echo $X) --version",
    "env $X",
    "exec $X",
    "cat > run <<EOF\n$X\nEOF\nchmod +x run\n./run",
    "eval a$(echo $X)",
    'x="${Y:-$X}"; eval "$x"',
    'IFS=, read -r a b <<< "$X"; eval "$b"',
    'mapfile -t lines < <(echo "$X"); eval "${lines[0]}"',
    'printf -v cmd "%s" "$X"; $cmd',
    'case a in a) bash -c "$X" ;; esac',
    'until bash -c "$X"; do sleep 1; done',
    'f() { local y="$1"; bash -c "$y"; }\nf "$X"',
    '( cd a && eval "$X" )',
    'a && b || eval "$X"',
    "cat <<'EOF' | sh\neval \"$X\"\nEOF",
    'bash -c "$(cat <<EOF\necho $X\nEOF\n)"',
    "[[ -z $a || $X -lt 2 ]]",
    "sh <<-END\n\techo $X\n\tEND",
    'sudo -u app -- bash -lc "run $X"',
    'docker compose exec -T db psql -c "select $X"',
    'uv run python -c "print($X)"',
    'cat > r.py <<EOF\nv = "$X"\nEOF',
    'echo "$X" | tee run; chmod +x run; ./run',
    "tee x.sh <<EOF\n$X\nEOF",
    "$X",
    "$X --help",
    '"$X" a',
    "sudo $X",
    'timeout 5 bash -c "$X"',
    "timeout 5 $X",
    'BASH_ENV="$X" bash x.sh',
    'bash "$X"',
    "python $X",
    'retry 3 bash -c "echo $X"',
    'parallel "echo $X" ::: a b',
    'watch "echo $X"',
    'while read l; do eval "$l"; done <<< "$X"',
    'for i in $X; do bash -c "echo $i"; done',
    r"""bash -c 'eval "$X"'""",
    r'''bash -c 'eval "$1"' _ "$X"''',
    'echo "$X + 1" | bc',
    "declare -i n; n=$X",
    'case $X in a) eval "$X";; esac',
    'echo "`eval echo $X`"',
    'pwsh -Command "echo $X"',
    'gcloud compute ssh h --command "run $X"',
    'git config alias.x "$X"',
    'git -c core.sshCommand="$X" fetch',
    'tmux send-keys "$X" Enter',
    "for ((i=0; i<X; i++)); do echo; done",
    'arr=("$X"); eval "${arr[@]}"',
    'export Y="$X"; eval "$Y"',
    'local Y="$X"; eval $Y',
    'ansible all -m shell -a "echo $X"',
    'nohup sh -c "echo $X" &',
    '$SHELL -c "echo $X"',
    '"$BASH" -c "echo $X"',
    '${SHELL:-bash} -c "echo $X"',
    '$(which bash) -c "echo $X"',
    '`command -v bash` -c "echo $X"',
    'sudo -u app $SHELL -c "echo $X"',
    'S=bash; $S -c "echo $X"',
    'PY=python3; "$PY" -c "print(\'$X\')"',
    'A=(bash -c); "${A[@]}" "echo $X"',
    'set -- bash -c; "$@" "echo $X"',
    'echo "echo $X" | $SHELL',
    "$SHELL <<EOF\necho $X\nEOF",
    '/bin/b*sh -c "echo $X"',
    '{bash,-c,"echo $X"}',
    'bash {-e,-c} "echo $X"',
    r"""$'\x62ash' -c "echo $X" """,
    '"$SHELL" -c \'eval "$X"\'',
    'retry 3 $SHELL -c "echo $X"',
    """CODE='eval "$X"'; eval "$CODE\"""",
    'export BASH_ENV="$X"; bash -c "echo hi"',
    'BASH_ENV="$X"; export BASH_ENV',
    'declare -x GIT_SSH_COMMAND="$X"',
    'export GIT_SSH_COMMAND="$X"; git ls-remote origin',
    'read -r PAGER <<< "$X"',
    'printf -v EDITOR %s "$X"',
    'env LD_AUDIT="$X" ls',
    'for GIT_PAGER in "$X"; do git log; done',
    'ENV="$X" sh -ic "echo hi"',
    'V="$X" make',
    'export V="$X"\nsudo make install',
    "time make all",
    "cd app && make",
    "just release",
    'just release "$X"',
    "make -f - <<EOF\nall:\n\techo $X\nEOF",
    'echo "all: ; echo $X" | make --file=/dev/stdin',
    'echo "$X" > a.txt; cp a.txt b.txt; sh b.txt',
    'echo "$X" > a.txt; mv a.txt b.sh; sh b.sh',
    'echo "$X" > a.txt; install -m 755 a.txt bin/; ./bin/a.txt',
    'echo "$X" > out/a; cd out; sh ./a',
    'dd if=/dev/stdin of=/tmp/a <<< "$X"; cp /tmp/a b; source b',
    "echo 'echo $X' | envsubst | sh",
    "env | sh",
    "export -p > vars; . vars",
    'heroku run "echo $X"',
    'heroku run -a app -- "$X"',
    'adb shell "echo $X"',
    'lftp -e "get $X" host',
    'hyperfine "run $X"',
    'npx concurrently "run $X"',
    'npx -y concurrently@8 "run $X"',
    'yarn concurrently "run $X"',
    "jshell <<EOF\nint x = $X;\nEOF",
    "cmake -P /dev/stdin <<EOF\nmessage($X)\nEOF",
    'echo "$X" | terraform console',
    'echo "$X" | python manage.py shell',
    'bash /dev/stdin <<< "$X"',
    'python3 /dev/stdin <<< "$X"',
]
"""Scripts that read the value of `X` as code."""

DATA = [
    'echo "$X"',
    'ssh -p 22 "app@$X" uptime',
    'ssh host -- "$HOME/run.sh"',
    'find "$X" -name a',
    'x=$(wc -l < "$X"); echo "$x"',
    'for f in "$X"/*; do echo "$f"; done',
    'bash -s -- "$X" < script.sh',
    'python3 - "$X" < script.py',
    'if [[ $X =~ ^[0-9]+$ && ! -f "$X" ]]; then echo number; fi',
    "cat <<EOF | kubectl apply -f -\nname: $X\nEOF",
    'test -z "$X" && exit 0',
    '"$HOME/bin/run" "$X"',
    "echo $X | tee log",
    './deploy.sh "$X"',
    'bash deploy.sh "$X"',
    'python3 x.py --v "$X"',
    '[ "$X" -eq 1 ]',
    '[[ "$X" == 1 ]]',
    r'[[ -n $X && "$X" =~ ^v[0-9]+(\.[0-9]+)*$ ]]',
    'git tag -a "$X" -m "$X"',
    "docker build -t img:$X .",
    r"""awk -v x="$X" '{print x}' f""",
    r"""jq --arg x "$X" '.a = $x' f""",
    'jq -r --arg x "$X" .a f',
    r"""bash -c 'echo "$X"'""",
    r'''bash -c 'echo "$1"' _ "$X"''',
    "ssh host uptime",
    'if [ -n "$X" ]; then echo "a" >> "$GITHUB_ENV"; fi',
    'case "$X" in v*) echo x;; *) echo "y";; esac',
    "cat <<EOF > out.txt\n$X\nEOF",
    'echo "${X#v}" "${X:-a}" "${X%%.*}" ${#X}',
    'echo "x=$X" >> $GITHUB_OUTPUT',
    'curl -d "$X" https://x | jq .a',
    r'''gh release create "$X" --notes "it's $X"''',
    'for f in *; do echo "$f $X"; done',
    "apt-get install python3 $X",
    'npm version "$X"',
    "kubectl set image deploy/a a=$X",
    'n=0; echo $((n + 1)) "$X"',
    r'find . -name "$X" -exec rm {} \;',
    'declare -A m; m[a]="$X"; export V=$X',
    'sudo cp "$X" /etc',
    'echo "$X" | xargs',
    "# eval $X",
    'while read -r line; do echo "$line $X"; done < f',
    'python -m build --out "$X"',
    'pip install "a==$X"',
    "mvn -B -Drevision=$X deploy",
    'grep -c "$X" f || true',
    '$TOOL --version; echo "$X"',
    'export VERSION="$X"; ./build',
    'ENV="$X" sh -c "echo hi"',
    "env | sort",
    'echo "$X" > a.txt; cp a.txt b.txt; cat b.txt',
    """echo '{"a": "x", "b": "'$X'"}'""",
    'mkdir -p {a,b}/"$X"',
    'title="$X"; echo make',
    'x=1; echo "$x" > run.txt; sh run.txt; echo "$X"',
    '{ echo "a<<EOF"; echo "$X"; echo EOF; } >> "$GITHUB_OUTPUT"',
]
"""Scripts that pass the value of `X` on as data."""


@pytest.mark.parametrize("script", CODE)
def test_a_value_in_code_is_found(script: str) -> None:
    assert value_as_code(script, {"X"}, environment={"X"}) is not None


@pytest.mark.parametrize("script", DATA)
def test_a_value_in_data_is_no_code(script: str) -> None:
    assert value_as_code(script, {"X"}, environment={"X"}) is None


@pytest.mark.parametrize("script", CODE)
def test_the_same_script_without_a_value_is_no_code(script: str) -> None:
    assert value_as_code(script, ()) is None


@pytest.mark.parametrize("script", ["$(touch pwned)", "a[$(touch pwned)]", "touch pwned"])
@pytest.mark.parametrize(
    "text", [text for text in DATA if not text.startswith(("ssh", "docker", "gh ", "curl", "npm", "pip", "mvn", "kube", "apt", "sudo"))]
)
def test_bash_runs_nothing_of_a_value_in_data(tmp_path: Path, text: str, script: str) -> None:
    """The same scripts in bash, with values that try to run a command."""
    for name in ("GITHUB_OUTPUT", "GITHUB_ENV"):
        (tmp_path / name).touch()
    env = {"PATH": "/usr/bin:/bin", "X": script, "GITHUB_OUTPUT": "GITHUB_OUTPUT", "GITHUB_ENV": "GITHUB_ENV", "HOME": str(tmp_path)}
    subprocess.run(["bash", "-c", text], cwd=tmp_path, env=env, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    assert not (tmp_path / "pwned").exists()


def test_what_reads_the_value_is_named() -> None:
    found = value_as_code('title=$X\nif true; then\n  bash -c "echo $title"\nfi\n', {"X"})
    assert found is not None
    assert (found.variable, found.program) == ("title", "`bash -c`")


@pytest.mark.parametrize(
    "script",
    [
        "if true; then echo",
        "echo 'open",
        'echo "open',
        "case x in a) echo;;",
        "echo $(date",
        "((1+",
        "(" * 3000,
        "${a:-" * 3000,
        '"$(' * 3000,
    ],
)
def test_a_script_that_is_not_understood_is_an_error_of_its_own(script: str) -> None:
    with pytest.raises(UnreadableScriptError):
        value_as_code(script, {"X"})


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["sh", "-c", f"echo {VALUE}"], "`sh -c`"),
        (["docker", "run", "--rm", "image", "sh", "-ec", VALUE], "`sh -c`"),
        (["aws", "ssm", "send-command", "--parameters", f"commands={VALUE}"], "`aws --parameters`"),
        (["python3.12", f"-c{VALUE}"], "`python3.12 -c`"),
        (["sudo", "-u", "app", VALUE], "the shell, as the name of a program"),
        (["sed", "-i", f"s/a/{SPLIT_VALUE}/", "f"], "`sed`"),
        (["sed", "-i", "s/a/b/", VALUE], None),
        (["sh", "deploy.sh", VALUE], None),
        (["docker", "run", "image", "deploy", VALUE], None),
        ([], None),
    ],
)
def test_the_code_among_the_arguments_of_a_program(argv: list[str], expected: str | None) -> None:
    readers = (found.program for found in code_arguments(argv) if contains_value(argv[found.index]))
    assert next(readers, None) == expected


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["bash"], "bash"),
        (["bash", "-s", "--", "a"], "bash"),
        (["bash", "x.sh"], None),
        (["sudo", "-u", "root", "sh"], "sh"),
        (["ssh", "host"], "ssh"),
        (["ssh", "host", "bash", "-s"], "bash"),
        (["ssh", "host", "cat"], None),
        (["docker", "exec", "-i", "db", "psql", "-U", "app"], "psql"),
        (["python3", "-"], "python3"),
        (["python3", "x.py"], None),
        (["cat"], None),
    ],
)
def test_the_program_that_reads_stdin_as_code(argv: list[str], expected: str | None) -> None:
    assert stdin_reader(argv) == expected
