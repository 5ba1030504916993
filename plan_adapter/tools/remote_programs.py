"""The programs that `ssh` runs on a host, for any POSIX `sh`: they record each call in a folder of its own, and read the record.

Everything is passed as text of the program over stdin, so that nothing shows in a process list. Each program is one function that is
called at its end: of a program that arrives in part, nothing runs.

A call belongs to whoever creates its file `pid`, which `ln` does for exactly one process. That is the last thing before the command starts.
Whoever asks for a call without that file creates it with the word `never`, and the command can no longer start.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from plan_adapter.model.errors import ToolError

PREFIX = "plan_adapter: "
"""The start of a line that a program prints for us, because the files that a shell reads at its start may print as well."""

OUTPUT_DAYS, RECORD_DAYS = 30, 400
"""How long a host keeps the output of a call, and how long it keeps how the call ended, without which it could be made twice."""

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_COMMON = r"""
pa_calls="${XDG_STATE_HOME:-$HOME/.local/state}/plan_adapter/calls"
pa_call="$pa_calls"/@CALL@

# Print when process $1 began, and nothing if it has ended.
pa_began() {
    if [ -r "/proc/$1/stat" ]; then
        read -r pa_stat <"/proc/$1/stat" || return 0
        set -- ${pa_stat##*") "}
        case $1 in Z | X) return 0 ;; esac
        shift 19
        echo "$1"
    else
        LC_ALL=C ps -o lstart= -p "$1"
    fi
} 2>/dev/null

# Make the call belong to `$1`, unless it belongs to somebody.
pa_claim() {
    mkdir -p "$pa_call" && echo "$1" >"$pa_call/pid.$$" || return 1
    ln "$pa_call/pid.$$" "$pa_call/pid" 2>/dev/null
    pa_claimed=$?
    rm -f "$pa_call/pid.$$"
    return $pa_claimed
}

# Read whom the call belongs to.
pa_read() {
    read -r pa_pid pa_time pa_start <"$pa_call/pid"
}

pa_is_alive() {
    pa_now=$(pa_began "$pa_pid")
    [ "$pa_now" = "$pa_start" ] && { [ -n "$pa_now" ] || kill -0 "$pa_pid" 2>/dev/null; }
}

pa_pause() {
    sleep 0.1 2>/dev/null || sleep 1
}
"""

_PREPARE = r"""
    mkdir -p "$pa_calls" || exit 1
    for pa_tool in date find ln mkfifo mv rm sleep tee; do
        command -v $pa_tool >/dev/null || { echo "there is no command $pa_tool" >&2; exit 1; }
    done
    if [ -n "$(find "$pa_calls/../cleaned" -mtime -1 2>/dev/null)" ]; then
        echo "@PREFIX@ready"
        exit
    fi
    : >"$pa_calls/../cleaned"
    find "$pa_calls/." ! -name . -prune -type d -mtime +@RECORD_DAYS@ -exec rm -rf {} + 2>/dev/null
    find "$pa_calls/." -type f \( -name out -o -name err -o -name script \) -mtime +@OUTPUT_DAYS@ -exec rm -f {} + 2>/dev/null
    echo "@PREFIX@ready"
"""

_RUN = r"""
    mkdir -p "$pa_call" && mkfifo "$pa_call/1" "$pa_call/2" || exit 255
    @SCRIPT@
    trap : HUP TERM PIPE # a lost connection ends nothing; a command resets handlers, but keeps ignoring what is ignored
    pa_claim "$$ $(date +%s) $(pa_began $$)" || { echo "another process has this call" >&2; exit 255; }
    (trap '' HUP INT TERM PIPE; exec tee "$pa_call/out" <"$pa_call/1" 2>/dev/null) &
    pa_out=$!
    (trap '' HUP INT TERM PIPE; exec tee "$pa_call/err" <"$pa_call/2" >&2 2>/dev/null) &
    pa_err=$!
    echo "$$ $pa_out $pa_err" >"$pa_call/keepers"
    @STDIN@(
        umask "$pa_mask"
        @COMMAND@
    ) @INPUT@>"$pa_call/1" 2>"$pa_call/2"
    pa_code=$?
    [ $pa_code -le 255 ] || pa_code=$((pa_code - 128)) # ksh93 adds 256 to the number of a signal
    exec >/dev/null 2>&1
    echo $pa_code >"$pa_call/exit.new" && mv "$pa_call/exit.new" "$pa_call/exit"
    (sleep 1; kill -KILL $pa_out $pa_err) & # processes that the command left behind may hold the pipes
    pa_limit=$!
    wait $pa_out
    wait $pa_err
    kill $pa_limit
    rm -f "$pa_call/1" "$pa_call/2"
    exit $pa_code
"""

_ASK = r"""
    pa_claim never
    pa_read || exit 1
    pa_turn=0
    while [ "$pa_pid" != never ] && pa_is_alive && [ $pa_turn -lt @PAUSES@ ]; do
        pa_turn=$((pa_turn + 1))
        pa_pause
    done
    if [ "$pa_pid" = never ]; then
        echo "@PREFIX@never"
    elif pa_is_alive; then
        echo "@PREFIX@running $pa_pid $(($(date +%s) - pa_time))"
    elif [ -f "$pa_call/exit" ]; then
        echo "@PREFIX@ended $(cat "$pa_call/exit")"
    else
        echo "@PREFIX@gone $pa_pid"
    fi
"""

_READ = r"""
    cat "$pa_call/out" && cat "$pa_call/err" >&2
"""

_END = r"""
    pa_claim never
    pa_read && [ "$pa_pid" != never ] && pa_is_alive || exit 0
    kill -TERM "-$pa_pid"
    pa_turn=0
    while pa_is_alive && [ $pa_turn -lt 20 ]; do
        pa_turn=$((pa_turn + 1))
        pa_pause
    done
    pa_is_alive || exit 0
    # All but the process that records the exit code, and those that keep the output.
    pa_keepers=" $(cat "$pa_call/keepers") "
    { ps -A -o pid= -o pgid= || ps -o pid= -o pgid=; } 2>/dev/null | while read -r pa_member pa_group; do
        case $pa_keepers in *" $pa_member "*) continue ;; esac
        [ "$pa_group" != "$pa_pid" ] || kill -KILL "$pa_member"
    done
    pa_turn=0
    while pa_is_alive && [ $pa_turn -lt 15 ]; do
        pa_turn=$((pa_turn + 1))
        pa_pause
    done
    ! pa_is_alive || kill -KILL "-$pa_pid"
"""

_DIGEST = r"""
# Print the SHA-256 of the file $1.
pa_digest() {
    if command -v sha256sum >/dev/null; then
        set -- "$(sha256sum <"$1")"
    elif command -v shasum >/dev/null; then
        set -- "$(shasum -a 256 <"$1")"
    elif command -v openssl >/dev/null; then
        set -- "$(openssl dgst -sha256 -r <"$1")"
    else
        echo "there is no command sha256sum, shasum or openssl" >&2
        return 1
    fi
    echo "${1%% *}"
}
"""

_RECEIVE = r"""
    pa_path=@PATH@
    pa_new=@FOLDER@/.plan_adapter.@CALL@.$$
    pa_mode=@MODE@
    if [ -d "$pa_path" ]; then
        echo "it is a folder" >&2
        exit 1
    fi
    (umask "$pa_mask" && mkdir -p @FOLDER@) || exit 1
    trap 'rm -f "$pa_new"' EXIT
    trap 'exit 1' HUP INT TERM PIPE
    if [ -f "$pa_path" ] && [ ! -L "$pa_path" ]; then
        # The copy has the owner of the old file, if this account may set it.
        cp -p "$pa_path" "$pa_new" && chmod u+w "$pa_new" || exit 1
        [ -n "$pa_mode" ] || pa_mode=$(stat -c %a "$pa_path" 2>/dev/null || stat -f %Mp%Lp "$pa_path") || exit 1
    elif [ -z "$pa_mode" ]; then
        (umask "$pa_mask"; : >"$pa_new") || exit 1
    fi
    cat >"$pa_new" || exit 1
    pa_found=$(pa_digest "$pa_new") || exit 1
    if [ "$pa_found" != @DIGEST@ ]; then
        echo "it did not arrive whole" >&2
        exit 1
    fi
    [ -z "$pa_mode" ] || chmod "$pa_mode" "$pa_new" || exit 1
    sync "$pa_new" 2>/dev/null
    mv -f "$pa_new" "$pa_path" && echo "@PREFIX@copied"
"""

_SEND = r"""
    pa_path=@PATH@
    if [ ! -f "$pa_path" ]; then
        if [ -e "$pa_path" ]; then echo "it is not a regular file"; else echo "there is no such file"; fi >&2
        exit 1
    fi
    pa_found=$(pa_digest "$pa_path") || exit 1
    echo "@PREFIX@$pa_found" >&2
    exec cat "$pa_path"
"""


_SCRIPT = """sh -e -c 'pa_script=$(cat "$1"); shift; eval "$pa_script"' script "$pa_call/script\""""
"""Runs the script as `sh FILE` does, but its errors start with `script: 3:` in place of the path of the file."""


@dataclass(frozen=True, slots=True)
class RemoteCommand:
    """A command for a host: the words `argv`, or the text of a `script`."""

    argv: Sequence[str] | None
    script: str | None
    env: Mapping[str, str]
    cwd: str | None
    stdin: str | None


def prepare_program() -> str:
    """Return the program that creates the folder of calls and once a day removes old ones. It prints `ready`."""
    return _program(_PREPARE, "-", OUTPUT_DAYS=str(OUTPUT_DAYS), RECORD_DAYS=str(RECORD_DAYS))


def run_program(call: str, command: RemoteCommand) -> str:
    """Return the program that runs `command` as `call`. It ends like the command, or with 255 if it could not start it."""
    # A relative folder must not be searched for in CDPATH, and `-` is no folder.
    lines = [] if command.cwd is None else [f"cd {quote(command.cwd if command.cwd.startswith('/') else f'./{command.cwd}')} || exit 125"]
    for name, value in command.env.items():
        if not _VARIABLE.fullmatch(name):
            raise ToolError(f"{name!r} cannot be the name of a variable on a host: use letters, digits and `_`")
        lines.append(f"export {name}={quote(value)}")
    words = _SCRIPT if command.argv is None else " ".join(map(quote, command.argv))
    lines.append(f"exec {words}")
    return _program(
        _RUN,
        call,
        SCRIPT=":" if command.script is None else f'printf %s {quote(command.script)} >"$pa_call/script" || exit 255',
        STDIN="" if command.stdin is None else f"printf %s {quote(command.stdin)} | ",
        INPUT="</dev/null " if command.stdin is None else "",
        COMMAND="\n".join(lines),
    )


def ask_program(call: str, *, seconds: int) -> str:
    """Return the program that prints how `call` is: `never`, `running PID SECONDS`, `ended CODE` or `gone PID`.

    A call that has not begun can no longer begin. If its command still runs, the program waits for its end for up to `seconds`.
    """
    return _program(_ASK, call, PAUSES=str(10 * seconds))


def read_program(call: str) -> str:
    """Return the program that prints what the command of `call` printed."""
    return _program(_READ, call)


def end_program(call: str) -> str:
    """Return the program that ends the command of `call` with all its processes: SIGTERM, then SIGKILL."""
    return _program(_END, call)


def receive_program(call: str, path: str, *, mode: str | None, digest: str) -> str:
    """Return the program that reads a file from stdin and puts it at `path` if it has the SHA-256 `digest`. It prints `copied`."""
    path = _path(path)
    folder = path.rpartition("/")[0] or "/"
    return _program(_DIGEST + _RECEIVE, call, PATH=quote(path), FOLDER=quote(folder), MODE=quote(mode or ""), DIGEST=quote(digest))


def send_program(path: str) -> str:
    """Return the program that prints the file at `path`, and before it, to stderr, its SHA-256."""
    return _program(_DIGEST + _SEND, "-", PATH=quote(_path(path)))


def _path(path: str) -> str:
    """Return a path on a host as no command can take it for an option."""
    return path if path.startswith("/") else f"./{path}"


def quote(text: str) -> str:
    """Return `text` as one word of a POSIX shell. Raises ToolError for a NUL, which no command can take."""
    if "\0" in text:
        raise ToolError("a NUL character cannot be passed to a command on a host")
    return "'" + text.replace("'", "'\\''") + "'"


def _program(body: str, call: str, **parts: str) -> str:
    """Return a program with `parts` in place of their names, in one pass: a part may contain the name of another."""
    parts |= {"CALL": quote(call), "PREFIX": PREFIX}
    text = f"{_COMMON}\npa_main() {{\n    pa_mask=$(umask)\n    umask 077\n{body}}}\npa_main\n"
    return re.sub("@([A-Z_]+)@", lambda found: parts[found[1]], text)
