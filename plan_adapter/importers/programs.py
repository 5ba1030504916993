"""Which arguments and inputs of known programs are read as code, such as the word after `bash -c`."""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

VALUE = "\ue000"
"""The mark in an argument for a value that is known only while a plan runs."""

SPLIT_VALUE = "\ue001"
"""The same for a value outside quotes, which a shell splits into several arguments."""

UNKNOWN = "\ue002"
"""The mark in an argument for unknown text that is not a value. The name of its variable may follow it."""

_VALUES = re.compile(f"[{VALUE}{SPLIT_VALUE}]")
_STDIN_FILES = frozenset({"-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"})
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=")
_MOST_WRAPPERS = 20  # `sudo env timeout …`: how many programs may start one another in one command


@dataclass(frozen=True, slots=True)
class CodeArgument:
    """An argument that a program reads as code. `language` is "shell" if a shell reads it; `program` says what reads it."""

    index: int
    program: str
    language: str = ""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _options(text: str) -> dict[str, frozenset[str]]:
    """Return a table from lines `programs: options`."""
    found = dict[str, frozenset[str]]()
    for line in text.strip().splitlines():
        names, _, options = line.partition(":")
        found |= dict.fromkeys(names.split(), _words(options))
    return found


_SHELLS = _words("bash sh dash zsh ksh mksh ash rbash fish")
_INTERPRETERS = _options(
    """
    python pypy: -c -m
    perl: -e -E -M -m
    ruby jruby: -e -r
    node nodejs: -e --eval -p --print -pe -r --require --import
    deno: eval
    bun: -e --eval -p --print
    php: -r -B -R -E
    lua luajit: -e -l
    Rscript R: -e
    julia: -e --eval -E --print
    elixir iex: -e --eval
    erl: -eval
    groovy groovysh: -e
    scala: -e
    osascript: -e
    tclsh wish: -c
    expect: -c
    pwsh powershell: -c -Command -command -EncodedCommand -ec -File
    cmd: /c /C /k /K
    octave: --eval
    """
)
"""Options before code, of programs that otherwise run the file that they are given, or what they read from stdin."""

_CODE_OPTIONS = _options(
    """
    su runuser sg: -c --command --session-command
    script: -c --command
    flock: -c --command
    psql: -c --command -v --variable --set
    mysql mariadb: -e --execute --init-command
    clickhouse clickhouse-client: -q --query
    mongo mongosh: --eval
    cqlsh: -e --execute
    sqlcmd: -q -Q
    snowsql: -q
    influx: -execute
    cockroach: -e --execute
    trino presto hive beeline spark-sql usql: -e --execute -c
    impala-shell: -q
    aws: --sql --query-string --parameters --cli-input-json --cli-input-yaml --user-data
    az: --scripts
    gcloud: --command --metadata
    gh: -q --jq
    ansible ansible-playbook: -a --args -e --extra-vars
    rsync: -e --rsh --rsync-path
    tar: --checkpoint-action --to-command -I --use-compress-program -F --info-script
    git: -c -x --exec --upload-pack --receive-pack --config --config-env
    scp sftp: -o -S
    zip: -TT --unzip-command
    sort: --compress-program
    vim vi nvim ex: -c --cmd
    emacs: --eval -eval
    gdb lldb: -ex -eval-command -o
    gnuplot: -e
    matlab: -batch -r
    nix nix-shell: --run --command --expr -c
    nix-build nix-instantiate nix-env: -E --expr
    ghc: -e
    dc: -e --expression
    bc: -e --expression
    xsltproc xmllint: --xpath
    opa: -d
    mix: -e --eval
    npm npx: -c --call
    vagrant: -c --command
    flyctl fly: -C --command
    make gmake: --eval -E
    jsonnet: -e --exec
    m4: -D --define
    fd fdfind: -x --exec -X --exec-batch
    lftp: -c -e
    nodemon: -x --exec
    tsx ts-node: -e --eval -p --print
    eb: --command
    cf: -c --command
    """
)
"""Options whose value is code, of other programs."""

_SHELL_OPTIONS = frozenset({"su", "runuser", "sg", "script", "flock", "npm", "npx", "nix-shell", "vagrant"})
_FIRST_ARGUMENT = _options(
    """
    awk gawk mawk nawk: -v --assign -F --field-separator
    sed gsed: -l --line-length
    jq gojq jaq: --arg:2 --argjson:2 --slurpfile:2 --rawfile:2 --indent -L --tab
    yq: --arg:2 --argjson:2 --indent -I -o --output-format -p --input-format
    pcregrep: -e
    datamash: -t
    mlr: --ifs --ofs
    """
)
"""Programs whose first argument is code, unless -e, -f or the like gives it, and their options that take a value."""

_PROGRAM_OPTIONS = frozenset({"-e", "--expression", "-f", "--file", "--from-file"})
_PROGRAM_FILE_OPTIONS = ("-f", "--file", "--from-file", "--makefile")
READS_ENVIRONMENT = _words("make gmake bmake nmake remake mingw32-make just rake task")
"""Programs whose own files paste variables of the environment, and arguments such as `X='$(shell …)'`, into the commands that they run."""

_ALL_ARGUMENTS = READS_ENVIRONMENT | _words(
    "eval alias sbt watch parallel let expect crontab at screen hyperfine concurrently start-server-and-test npm-run-all run-s run-p "
    "watchexec cross-env-shell pdsh pssh"
)
"""Programs that read each of their arguments as code."""

_NESTED = _words("make gmake just hyperfine concurrently")
"""Programs of these that are found in the arguments of any other, such as `yarn concurrently …`."""

_ALL_AFTER_FIRST = _words("sqlite3 sqlite duckdb")
_JOINED_BY_A_SHELL = _words("eval watch parallel hyperfine concurrently start-server-and-test watchexec cross-env-shell pdsh pssh")
_SHELL_VERBS: Mapping[str, frozenset[str]] = {
    "heroku": _words("run run:detached run:inside"),
    "adb": _words("shell exec-out"),
    "dokku": _words("run enter run:detached"),
    "minikube": _words("ssh"),
    "docker-machine": _words("ssh"),
    "colima": _words("ssh"),
    "multipass": _words("exec"),
    "scalingo": _words("run"),
    "juju": _words("run exec ssh"),
    "salt": _words("cmd.run cmd.shell"),
}
"""Programs that pass the arguments after one of their own words to a shell, often on another machine."""

_CONSOLES = _words("console shell dbshell repl sql psql dbconsole")
"""Words with which a program such as `terraform console` reads code from its stdin."""

_READS_STDIN = _words(
    "psql mysql mariadb sqlite3 sqlite duckdb mongo mongosh clickhouse-client cqlsh sqlcmd bc dc at batch crontab ed ex gnuplot "
    "redis-cli ssh parallel m4 source . jshell ghci irb ipython ptpython sbcl clisp guile racket swift kotlinc gdb lldb lftp ftp sftp "
    "sqlplus isql beeline spark-shell spark-sql pyspark trino presto hive ocaml utop sage gp maxima cypher-shell nft nu xonsh elvish tsx "
    "ts-node"
)
_WRAPPERS = _options(
    """
    sudo: -u --user -g --group -h --host -p --prompt -C -T -U -D -R -r -t
    doas: -u -C
    env: -u --unset -C --chdir
    nohup setsid command builtin time exec unbuffer fakeroot busybox caffeinate npx bunx uvx: -a -p --package --from --with
    timeout: -s --signal -k --kill-after #1
    nice ionice: -n --adjustment -c -p
    stdbuf: -i -o -e --input --output --error
    chroot taskset chrt flock: -w --wait --timeout -E #1
    xvfb-run: -s --server-args -e -n -f -p -w
    strace ltrace: -o -e -p -s -u
    xargs: -I -n -P -L -d -a -s -E --replace --max-args --max-procs --delimiter --arg-file --max-lines
    winpty catchsegv dbus-run-session systemd-inhibit unshare nsenter systemd-run firejail retry sshpass: -p -t --target
    cross-env dotenv dotenvx: -e -f
    """
)
"""Programs that run the command in their arguments: their options with a value, and `#1` if one argument precedes the command."""

_SUBCOMMANDS = (
    (r"(docker|podman|nerdctl)(-compose)?", re.compile(r"exec|run")),
    (r"kubectl|oc|lxc|op|doppler|chamber|aws-vault|heroku|apptainer|singularity|direnv|mise|ip|wsl", re.compile(r"exec|run|--|rsh")),
    (
        r"poetry|pipenv|uv|pdm|hatch|rye|conda|mamba|micromamba|bundle|rbenv|pyenv|pnpm|yarn|npm|asdf|nix",
        re.compile(r"exec|run|dlx|develop"),
    ),
    (r"find", re.compile(r"-exec(dir)?|-ok(dir)?")),
    (r"git", re.compile(r"foreach|--(tree|index|env|msg|commit|tag-name|parent)-filter")),
)
"""Programs that run the command after one of their own words."""

_OPTIONS_RUN_COMMANDS = frozenset({"ssh", "scp", "sftp"})
_SSH_VALUES = _words("-i -p -o -l -F -J -L -R -D -b -c -e -m -Q -S -W -w -E -I")
_GIT_COMMANDS = re.compile(
    r"(?i)alias\.|(filter|diff|merge|pager|credential|difftool|mergetool)\b|core\.(ssh|editor|pager|hooks|fsmon)|sequence\.editor"
)
"""Settings of git whose values are commands."""

_PLAIN = _words(
    "echo printf grep egrep fgrep rg ls cd rm cp mv mkdir touch cat head tail which type hash apt apt-get brew dnf yum apk choco pip pip3 "
    "pipx test [ dirname basename tee wc sort uniq tr cut true false exit return curl wget"
)
"""Programs that run none of their arguments, so that the name of a shell among them means nothing."""


def contains_value(text: str) -> bool:
    """Return whether an argument contains VALUE or SPLIT_VALUE."""
    return _VALUES.search(text) is not None


def code_arguments(argv: Sequence[str]) -> Iterator[CodeArgument]:
    """Yield the arguments of a command that are read as code, by its program and by the programs that it starts."""
    yield from _code_arguments(argv, 0, _MOST_WRAPPERS)


def stdin_reader(argv: Sequence[str]) -> str | None:
    """Return the program that reads the stdin of a command as code, or None."""
    start = _command_start(argv, 0)
    name = program_name(argv[start]) if start < len(argv) else ""
    given = argv[start + 1 :]
    if name in _SHELLS:
        file = _file_of_shell(argv, start)
        is_given = file is not None and "-s" not in given and argv[file] not in _STDIN_FILES
        return None if any(True for _ in _shell_code(argv, start)) or is_given else name
    if name == "xargs":
        return _xargs_reader(argv, start)
    if (interpreter := _interpreter(name)) is not None:
        is_given = any(True for _ in _option_values(argv, start, _INTERPRETERS[interpreter]))
        first = next((word for word in given if word == "-" or not word.startswith("-")), "-")
        if is_given:
            return None
        return name if first in _STDIN_FILES or _CONSOLES & {*given} else None
    if name in ("docker", "podman") and "build" in given and "-" in given:
        return f"{name} build"
    if name in ("ssh", "docker", "podman", "kubectl"):
        inner = _inner_start(argv, start)
        if inner is not None and inner < len(argv):
            return stdin_reader(argv[inner:])
        return name if name == "ssh" else None
    if not _STDIN_FILES.isdisjoint(_program_files(name, given)):
        return name
    if UNKNOWN in name or (name not in _PLAIN and _CONSOLES & {*given}):
        return _shown_name(name)
    return name if name in _READS_STDIN and not (name == "psql" and any(word in ("-c", "-f") for word in given)) else None


def _program_files(name: str, given: Sequence[str]) -> Iterator[str]:
    """Yield the files with code that options of a program name: `-f FILE`, `--file=FILE`, and `-P FILE` of cmake."""
    if name == "cmake":
        options = ("-P",)
    else:
        options = _PROGRAM_FILE_OPTIONS if name in _READS_STDIN or name in _FIRST_ARGUMENT or name in READS_ENVIRONMENT else ()
    for word, following in itertools.zip_longest(given, given[1:], fillvalue=""):
        option, _, value = word.partition("=")
        if option in options:
            yield value or following
        elif word[:2] in options and word[2:]:
            yield word[2:]


def environment_reader(argv: Sequence[str]) -> str | None:
    """Return the program of a command that pastes variables of its environment into code, or None."""
    start = _command_start(argv, 0)
    name = program_name(argv[start]) if start < len(argv) else ""
    return name if name in READS_ENVIRONMENT else None


def prints_environment(argv: Sequence[str]) -> bool:
    """Return whether a command prints the values of its environment."""
    start = _command_start(argv, 0)
    if start >= len(argv):
        return "env" in map(program_name, argv)
    name, lists_variables = program_name(argv[start]), all(word == "-p" for word in argv[start + 1 :])
    return name in ("printenv", "envsubst", "gomplate") or (name in ("set", "export", "declare", "typeset") and lists_variables)


def program_file(argv: Sequence[str]) -> str | None:
    """Return the file that a command runs as a program: `x.sh` of `sudo bash x.sh`, of `source x.sh` and of `./x.sh`."""
    start = _command_start(argv, 0)
    if start >= len(argv):
        return None
    name = program_name(argv[start])
    if name in _SHELLS:
        file = _file_of_shell(argv, start)
        return None if file is None else argv[file]
    if name in ("source", ".") or _interpreter(name) is not None:
        return next((word for word in argv[start + 1 :] if not word.startswith("-")), None)
    return next(_program_files(name, argv[start + 1 :]), argv[start])


def program_name(word: str) -> str:
    """Return the name of the program that a word starts: `bash` for `/usr/bin/bash`."""
    return word.replace("\\", "/").rpartition("/")[2].partition("@")[0].removesuffix(".exe")


def _shown_name(name: str) -> str:
    return name.replace(UNKNOWN, "$")


def _is_unknown_program(name: str) -> bool:
    """Return whether only the run of the script tells which program this is: `$SHELL`, `$(which bash)`, `/bin/b*sh`."""
    return UNKNOWN in name or any(mark in name for mark in "*?")


def _code_arguments(argv: Sequence[str], start: int, depth: int) -> Iterator[CodeArgument]:
    start = _skip_assignments(argv, start)
    if start >= len(argv) or depth == 0:
        return
    name = program_name(argv[start])
    if _chooses_the_program(argv[start]):
        yield CodeArgument(start, "the shell, as the name of a program")
        return
    if _is_unknown_program(name):
        yield from (CodeArgument(index, f"`{_shown_name(name)}`", "shell") for index in range(start + 1, len(argv)))
        return
    yield from _own_code(argv, start, name)
    inner = _inner_start(argv, start)
    if inner is not None:
        yield from _code_arguments(argv, inner, depth - 1)
    elif name not in _PLAIN:
        yield from _nested_code(argv, start + 1)


def _chooses_the_program(word: str) -> bool:
    """Return whether a value is, or starts, the name of a program. A quoted folder before a fixed name is none."""
    return word.startswith(SPLIT_VALUE) or (word.startswith(VALUE) and contains_value(word.rpartition("/")[2]))


def _own_code(argv: Sequence[str], start: int, name: str) -> Iterator[CodeArgument]:
    """Yield what the program at `start` itself reads as code."""
    if name in _SHELLS:
        yield from _shell_code(argv, start)
        if (file := _file_of_shell(argv, start)) is not None and _is_chosen_file(argv[file]):
            yield CodeArgument(file, f"`{name}`, as the program to run")
        for index in range(start + 1, len(argv) if file is None else file):
            if argv[index].startswith(SPLIT_VALUE):
                yield CodeArgument(index, f"`{name}`")
        return
    if name in ("source", "."):
        if len(argv) > start + 1 and _is_chosen_file(argv[start + 1]):
            yield CodeArgument(start + 1, f"`{name}`")
        return
    if (interpreter := _interpreter(name)) is not None:
        yield from _interpreter_code(argv, start, name, _INTERPRETERS[interpreter])
        return
    if name in _OPTIONS_RUN_COMMANDS:
        for index in range(start + 1, _ssh_command(argv, start) if name == "ssh" else len(argv)):
            if _is_chosen_file(argv[index]) and "--" not in argv[start:index]:
                yield CodeArgument(index, f"`{name}`, as an option such as `-o ProxyCommand=…`")
    elif name == "find":
        yield from (
            CodeArgument(index, "`find`, as `-exec`") for index in range(start + 1, len(argv)) if argv[index].startswith(SPLIT_VALUE)
        )
    for index, option in _option_values(argv, start, _CODE_OPTIONS.get(name, frozenset())):
        yield CodeArgument(index, f"`{name} {option}`", "shell" if name in _SHELL_OPTIONS else "")
    if name in _FIRST_ARGUMENT:
        yield from _first_argument(argv, start, name)
    elif name in _ALL_ARGUMENTS or name in _ALL_AFTER_FIRST:
        language = "shell" if name in _JOINED_BY_A_SHELL else ""
        positional = range(start + 1, len(argv))
        yield from (CodeArgument(index, f"`{name}`", language) for index in positional[1 if name in _ALL_AFTER_FIRST else 0 :])
    elif name == "trap":
        actions = [index for index in range(start + 1, len(argv)) if not argv[index].startswith("-")]
        yield from (CodeArgument(index, f"`{name}`", "shell") for index in actions[:1])
    elif name == "ssh":
        yield from _ssh_code(argv, start)
    elif name == "env":
        for index, option in _option_values(argv, start, frozenset({"-S", "--split-string"})):
            yield CodeArgument(index, f"`env {option}`", "shell")
    elif name in ("test", "["):
        yield from (CodeArgument(index + 1, f"`{name} -v`") for index in range(start + 1, len(argv) - 1) if argv[index] == "-v")
    elif name == "compgen":
        yield from (CodeArgument(index, f"`{name}`") for index in range(start + 1, len(argv)))
    elif name in _SHELL_VERBS:
        place = next((index for index in range(start + 1, len(argv)) if argv[index] in _SHELL_VERBS[name]), len(argv))
        yield from (CodeArgument(index, f"`{name} {argv[place]}`", "shell") for index in range(place + 1, len(argv)))
    elif name in ("bq", "redis-cli", "tmux", "rails", "drush", "wp"):
        yield from _after_verb(argv, start, name)
    elif name == "gh":
        yield from (CodeArgument(index, "`gh api graphql`") for index in range(start + 1, len(argv)) if argv[index].startswith("query="))
    elif name == "git":
        yield from _git_code(argv, start)


def _shell_code(argv: Sequence[str], start: int) -> Iterator[CodeArgument]:
    """Yield the code after `-c`, which may be part of a group of options: `-euxc`."""
    index, has_code = start + 1, False
    while index < len(argv) and argv[index][:1] in ("-", "+") and argv[index] not in ("-", "--"):
        word = argv[index]
        if word in ("--rcfile", "--init-file"):
            yield CodeArgument(index + 1, f"`{program_name(argv[start])} {word}`")
        has_code = has_code or re.fullmatch(r"-[A-Za-z]*c[A-Za-z]*|--command", word) is not None
        if contains_value(word):
            yield CodeArgument(index, f"`{program_name(argv[start])}`")
        index += 2 if re.fullmatch(r"[-+][A-Za-z]*[oO]|--rcfile|--init-file", word) else 1
    index += index < len(argv) and argv[index] == "--"
    if has_code and index < len(argv):
        yield CodeArgument(index, f"`{program_name(argv[start])} -c`", "shell")


def _file_of_shell(argv: Sequence[str], start: int) -> int | None:
    if any(found.language for found in _shell_code(argv, start)):
        return None
    index = start + 1
    while index < len(argv) and argv[index][:1] in ("-", "+"):
        if re.fullmatch(r"-[A-Za-z]*s[A-Za-z]*|-", argv[index]):
            return None  # it reads stdin
        index += 2 if re.fullmatch(r"[-+][A-Za-z]*[oO]|--rcfile|--init-file", argv[index]) else 1
    return index if index < len(argv) else None


def _is_chosen_file(word: str) -> bool:
    """Return whether a value chooses the file that is run: it stands at its start, or is an option."""
    return _VALUES.match(word) is not None


def _interpreter(name: str) -> str | None:
    """Return the entry of the table for a program such as `python3.12`."""
    stem = re.sub(r"[\d.]+$", "", name)
    return name if name in _INTERPRETERS else stem if stem in _INTERPRETERS else None


def _interpreter_code(argv: Sequence[str], start: int, name: str, options: frozenset[str]) -> Iterator[CodeArgument]:
    found = list(_option_values(argv, start, options))
    for index, option in found:
        yield CodeArgument(index, f"`{name} {option}`")
    if name == "perl" and any(re.match(r"-[A-Za-z0-9]*[np]", word) for word in argv[start + 1 :]):
        # Perl opens the file `command |` by running it.
        yield from (CodeArgument(index, "`perl`, as a file") for index in range(start + 1, len(argv)) if _is_chosen_file(argv[index]))
    for index in range(start + 1, len(argv)):
        if argv[index] == "-":
            return  # it reads stdin
        if argv[index].startswith("-"):
            continue
        if not found and _is_chosen_file(argv[index]):
            yield CodeArgument(index, f"`{name}`, as the program to run")
        return


def _option_values(argv: Sequence[str], start: int, options: frozenset[str]) -> Iterator[tuple[int, str]]:
    """Yield the index of each value of `options`, and the option: `-e CODE`, `-pe CODE`, `-eCODE`, `--eval=CODE`, `/c CODE`."""
    letters = {option[1] for option in options if re.fullmatch(r"-[A-Za-z]", option)}
    for index in range(start + 1, len(argv)):
        word = argv[index]
        name, equals, _ = word.partition("=")
        if word in options:
            yield from [(index + 1, word)] if index + 1 < len(argv) else []
        elif equals and name in options:
            yield index, name
        elif letters and (group := re.match(r"-[A-Za-z0-9][A-Za-z0-9.]*", word)):
            for place, letter in enumerate(group.group()):
                if letter in letters:
                    at = index if place < len(word) - 1 else index + 1
                    yield from [(at, f"-{letter}")] if at < len(argv) else []
                    break


def _first_argument(argv: Sequence[str], start: int, name: str) -> Iterator[CodeArgument]:
    options = _PROGRAM_OPTIONS - {"-f"} if name in ("jq", "gojq", "jaq") else _PROGRAM_OPTIONS  # jq's -f names a file
    given = list(_option_values(argv, start, options))
    for index, option in given:
        yield CodeArgument(index, f"`{name} {option}`")
    counts = {option.partition(":")[0]: int(option.partition(":")[2] or 1) for option in _FIRST_ARGUMENT[name]}
    index = start + 1
    while index < len(argv):
        word = argv[index]
        if word in ("eval", "e", "eval-all", "ea") and name == "yq":
            index += 1
        elif word.startswith("-") and word != "-":
            index += 1 + counts.get(word, 0)
        else:
            break
    if index < len(argv) and not given:
        yield CodeArgument(index, f"`{name}`")
    yield from (
        CodeArgument(place, f"`{name}`") for place in range(start + 1, min(index, len(argv))) if argv[place].startswith(SPLIT_VALUE)
    )


def _ssh_code(argv: Sequence[str], start: int) -> Iterator[CodeArgument]:
    for index, option in _option_values(argv, start, frozenset({"-o"})):
        yield CodeArgument(index, f"`ssh {option}`")
    command = _ssh_command(argv, start)
    yield from (CodeArgument(index, "`ssh`", "shell") for index in range(command, len(argv)))


def _ssh_command(argv: Sequence[str], start: int) -> int:
    """Return the index of the first word after the host."""
    index = start + 1
    while index < len(argv) and argv[index].startswith("-"):
        index += 2 if argv[index] in _SSH_VALUES else 1
    return index + 1


def _after_verb(argv: Sequence[str], start: int, name: str) -> Iterator[CodeArgument]:
    verbs = {"query", "mk", "eval", "EVAL", "send-keys", "new-session", "new", "new-window", "runner", "php-eval", "php:eval", "db"}
    place = next((index for index in range(start + 1, len(argv)) if argv[index] in verbs), None)
    if place is not None:
        yield from (CodeArgument(index, f"`{name} {argv[place]}`") for index in range(place + 1, len(argv)))


def _git_code(argv: Sequence[str], start: int) -> Iterator[CodeArgument]:
    """Yield settings that name a command (`git config alias.x …`, `core.sshCommand`), and the commands of `bisect run` and `foreach`."""
    words = argv[start + 1 :]
    if "config" in words:
        place = start + 2 + words.index("config")
        while place < len(argv) and (argv[place].startswith("-") or argv[place] in ("set", "unset")):
            place += 1
        if place < len(argv) and (_GIT_COMMANDS.match(argv[place]) or _is_chosen_file(argv[place])):
            yield from (CodeArgument(index, "`git config`") for index in range(place, len(argv)))
    for index, word in enumerate(words):
        if (word == "run" and "bisect" in words[:index]) or word == "foreach" or word.endswith("-filter"):
            yield from (CodeArgument(place, f"`git {words[0]}`") for place in range(start + 2 + index, len(argv)))
            return


def _skip_assignments(argv: Sequence[str], start: int) -> int:
    while start < len(argv) and _ASSIGNMENT.match(argv[start]):
        start += 1
    return start


def _command_start(argv: Sequence[str], start: int) -> int:
    """Return the index of the program behind all wrappers, which has the same stdin. `xargs` and `ssh` have an own one."""
    for _ in range(_MOST_WRAPPERS):
        start = _skip_assignments(argv, start)
        if start >= len(argv):
            break
        name = program_name(argv[start])
        inner = _inner_start(argv, start) if name in _WRAPPERS and name != "xargs" else None
        if inner is None:
            break
        start = inner
    return start


def _inner_start(argv: Sequence[str], start: int) -> int | None:
    """Return the index of the command that the program at `start` runs, or None."""
    name = program_name(argv[start])
    if name == "ssh":
        return _ssh_command(argv, start)
    if name in _WRAPPERS and not (name == "command" and {"-v", "-V"} & {*argv[start + 1 : start + 2]}):
        options, index = _WRAPPERS[name], start + 1
        while index < len(argv) and argv[index].startswith("-") and argv[index] != "--":
            index += 2 if argv[index] in options else 1
        index += index < len(argv) and argv[index] == "--"
        if name == "env":
            index = _skip_assignments(argv, index)
        return index + ("#1" in options)
    for pattern, verb in _SUBCOMMANDS:
        if re.fullmatch(pattern, name):
            place = next((index for index in range(start + 1, len(argv)) if verb.fullmatch(argv[index])), None)
            if place is not None:
                return _after_target(argv, name, place)
    return None


def _after_target(argv: Sequence[str], name: str, place: int) -> int | None:
    """Return where the command starts behind `exec` or `run`. Options and the name of a container come first, in an unknown number."""
    if "--" in argv[place:]:
        return argv.index("--", place) + 1
    if name in ("find", "bundle", "uv", "poetry", "pipenv", "pdm", "rye", "mise"):
        return place + 1
    return next((index for index in range(place + 1, len(argv)) if _is_reader(argv[index])), None)


def _is_reader(word: str) -> bool:
    name = program_name(word)
    return name in _SHELLS or name in _FIRST_ARGUMENT or name in _CODE_OPTIONS or name in ("eval",) or _interpreter(name) is not None


def _nested_code(argv: Sequence[str], start: int) -> Iterator[CodeArgument]:
    """Yield the code in a command that an unknown program may run: `retry 3 bash -c …`."""
    for index in range(start, len(argv)):
        name = program_name(argv[index])
        if name in _SHELLS or _is_unknown_program(name):
            yield from (found for found in _shell_code(argv, index) if found.language)
        elif name in _NESTED:
            yield from _own_code(argv, index, name)
        elif (interpreter := _interpreter(name)) is not None:
            for place, option in _option_values(argv, index, _INTERPRETERS[interpreter]):
                yield CodeArgument(place, f"`{name} {option}`")
        elif name in _FIRST_ARGUMENT:
            yield from _first_argument(argv, index, name)


def _xargs_reader(argv: Sequence[str], start: int) -> str | None:
    """Return the program of `xargs` that reads what xargs reads as code: without a fixed script, or with `{}` in it."""
    inner = _inner_start(argv, start)
    if inner is None or inner >= len(argv):
        return None
    name = program_name(argv[inner])
    mark = next((argv[index + 1] for index in range(start, inner - 1) if argv[index] in ("-I", "--replace")), None)
    mark = mark or next((word[2:] or "{}" for word in argv[start:inner] if re.match(r"-[Ii]", word)), None)
    found = list(code_arguments(argv[inner:]))
    if mark is not None and any(mark in argv[inner + one.index] for one in found):
        return f"xargs {name}"
    is_fixed = bool(found) or program_file(argv[inner:]) not in (None, argv[inner])
    return f"xargs {name}" if not is_fixed and (name in _SHELLS or name in _WRAPPERS or _is_reader(argv[inner])) else None


PROGRAM_OF_ENVIRONMENT: Mapping[str, str] = dict.fromkeys(
    _words(
        "BASH_ENV PS4 PROMPT_COMMAND LD_PRELOAD GIT_SSH_COMMAND GIT_SSH GIT_EDITOR GIT_PAGER GIT_EXTERNAL_DIFF EDITOR VISUAL PAGER "
        "NODE_OPTIONS PERL5OPT PERL5DB RUBYOPT PYTHONSTARTUP MAKEFLAGS GNUMAKEFLAGS RSYNC_RSH LD_AUDIT GIT_SEQUENCE_EDITOR GIT_ASKPASS "
        "GIT_PROXY_COMMAND GIT_CONFIG_PARAMETERS SSH_ASKPASS MANPAGER PSQL_PAGER LESSOPEN LESSCLOSE BROWSER JAVA_TOOL_OPTIONS "
        "_JAVA_OPTIONS JDK_JAVA_OPTIONS MAVEN_OPTS GRADLE_OPTS JAVA_OPTS RUSTC_WRAPPER RUSTC_WORKSPACE_WRAPPER FZF_DEFAULT_COMMAND "
        "TAR_OPTIONS"
    ),
    "the programs that read this variable",
)
"""Variables that programs read as code or as the name of a program."""
