# What the tests of the host side share: a folder of their own, the scripts under the shell to test, a stand-in nvidia-smi.
# shellcheck disable=SC2034 # used by the tests

SAMPLES=$BATS_TEST_DIRNAME/../samples
GOLDEN=$BATS_TEST_DIRNAME/../golden
# Recordings of real machines: an additional check where this folder is; nothing else here knows of it.
SHARED=${GPUBOARD_SHARED:-$BATS_TEST_DIRNAME/../../../shared}

# Seconds after which a test has failed. All that a test waits for has a limit of its own (wait_until), which is shorter.
BATS_TEST_TIMEOUT=${BATS_TEST_TIMEOUT:-120}
WAIT_LIMIT=60

helper_setup() {
    TMP=$BATS_TEST_TMPDIR
    SH=$BATS_SUITE_TMPDIR/shell/sh # the shell to test
    cp -R "$BATS_SUITE_TMPDIR/scripts" "$TMP/scripts"
    mkdir -p "$TMP/bin" "$TMP/smi" "$TMP/data" "$TMP/home"
    ln -s "$BATS_TEST_DIRNAME/../../site_builder/demo/stand-ins/nvidia-smi" "$TMP/bin/nvidia-smi"
    ln -s "$BATS_TEST_DIRNAME/../../site_builder/demo/stand-ins/dmesg" "$TMP/bin/dmesg"
    : >"$TMP/smi/calls"
    RUN_SH=$TMP/scripts/gpu-run.sh
    CHECK=$TMP/scripts/gpu-check.sh
    SPOOL=$TMP/spool/gpu1
    DATA=$TMP/data/gpu1
    export SMI=$TMP/smi HOME=$TMP/home HOST=gpu1 PATH="$TMP/bin:$PATH"
    export GPUBOARD_SPOOL=$TMP/spool GPUBOARD_DEST=$TMP/data GPUBOARD_LIMIT=10
    export GPUBOARD_GPUS_EVERY=1 GPUBOARD_PROCESSES_EVERY=1 GPUBOARD_PS_EVERY=1
    unset GPUBOARD_NVIDIA GPUBOARD_AMD GPUBOARD_CONF GPUBOARD_PROC GPUBOARD_SSH_CONFIG GPUBOARD_DISK_USE
    cd "$TMP" || return
}

setup() { helper_setup; }

teardown() { end_processes; }

# list_processes: the processes that the test has started and that still run: they have its output or a file of its folder open, or name it.
list_processes() {
    local pid
    for pid in $({
        find /proc/[0-9]*/fd '(' -lname "$BATS_TEST_TMPDIR/*" -o -lname "$BATS_OUT" ')'
        grep -lsF -- "$BATS_TEST_TMPDIR/" /proc/[0-9]*/cmdline
    } 2>/dev/null | cut -d/ -f3 | sort -un); do
        if [ "$pid" != "$$" ] && [ "$pid" != "$BASHPID" ] && ! gone "$pid"; then echo "$pid"; fi
    done
}

# end_processes: ends them, and waits until they have ended.
end_processes() {
    local pids end=$((SECONDS + 20))
    while pids=$(list_processes) && [ -n "$pids" ]; do
        if [ "$SECONDS" -gt "$end" ]; then
            # shellcheck disable=SC2086 # one word a pid
            echo 'these processes do not end:' && ps -o pid,stat,args $pids
            return 1
        fi
        # shellcheck disable=SC2086
        kill -9 $pids 2>/dev/null || true
        # shellcheck disable=SC2086
        wait $pids 2>/dev/null || true # for those that are ours to wait for
    done
}

# bats_kill_childprocesses_of PID: in the place of what bats does when a test takes too long: it would end the children of the test alone,
# and the test would wait for a grandchild that holds its pipe.
bats_kill_childprocesses_of() { end_processes; }

# missing WORDS: what this machine does not have; in CI that is a failure, not a skip.
missing() {
    if [ -n "${CI:-}" ]; then
        echo "missing in CI: $*" >&2
        return 1
    fi
    : >"$BATS_RUN_TMPDIR/skipped"
    skip "$*"
}

need_root() { [ "$(id -u)" = 0 ] || missing "this needs root"; }

# machine NAME: lets the stand-in answer as this machine of tests/samples/nvidia does.
machine() {
    sed -E 's/\r$//; 1s/ \[[^]]*\]//g; s/ (MiB|%|W|MHz)(,|$)/\2/g' "$SAMPLES/nvidia/gpus/$1.csv" >"$SMI/table"
    head -n 1 "$SMI/table" | sed 's/, /\n/g' >"$SMI/fields"
    sed 1d "$SAMPLES/nvidia/processes/$1.csv" >"$SMI/apps"
    cp "$SAMPLES/nvidia/xml/$1.xml" "$SMI/xml"
    cp "$SAMPLES/nvidia/list/$1.txt" "$SMI/list"
}

# captures PATTERN: the recorded files of this name; none where there are no recordings.
captures() { [ ! -d "$SHARED/captures" ] || find "$(realpath "$SHARED")/captures" -path "*/$1" | sort; }

# replay BUNDLE: puts a recorded machine in the place of the stand-in.
replay() {
    ln -sf "$(realpath "$SHARED")/tools/replay-nvidia-smi" "$TMP/bin/nvidia-smi"
    export REPLAY_BUNDLE=$1
}

# wait_until COMMAND...: waits until it succeeds.
wait_until() {
    local end=$((SECONDS + WAIT_LIMIT))
    until "$@"; do
        if [ "$SECONDS" -gt "$end" ]; then
            echo "not within $WAIT_LIMIT s: $*" >&2
            return 1
        fi
        sleep 0.1
    done
}

# run_whole COMMAND...: runs it, and waits for all that it leaves in the background: that holds the other end of a pipe.
run_whole() {
    {
        "$@" 6>&1 >&5 5>&- | cat >/dev/null
        return "${PIPESTATUS[0]}"
    } 5>&1
}

# remove_spool: a push that is under way may put a file into a folder that was empty a moment ago.
remove_spool() { wait_until rm -rf "$TMP/spool" 2>/dev/null; }

# choose_ports COUNT: free ports of loopback, below those that the kernel gives to every connection: such a port could be taken before its server starts.
choose_ports() {
    python3 -c 'import random, socket, sys
held = []
while len(held) < int(sys.argv[1]):
    candidate = socket.socket()
    try:
        candidate.bind(("127.0.0.1", random.randrange(10000, 32000)))
    except OSError:
        continue
    held.append(candidate)
print(*(chosen.getsockname()[1] for chosen in held))' "$1"
}

# open_to_others: lets other users work in the folder of the test.
open_to_others() {
    chmod -R a+rwX "$TMP"
    chmod a+x "$BATS_RUN_TMPDIR" "$BATS_SUITE_TMPDIR" "$(dirname "$TMP")"
}

# gone PID: it has ended; init may not have taken note of it yet.
gone() { ! read -rd '' _ <"/proc/$1/cmdline"; } 2>/dev/null

# fails COMMAND...: succeeds if it does not.
fails() { if "$@"; then return 1; fi; }

# has FILE TEXT: the text stands in the file.
has() {
    grep -qF -- "$2" "$1" && return
    echo "no '$2' in $1:" >&2
    cat "$1" >&2
    return 1
}
has_not() { fails grep -qF -- "$2" "$1"; }

# whole FILE TASK RC: a snapshot of ours, from its first line to its last.
whole() {
    head -n 1 "$1" | grep -qE "^# gpuboard 1 task=$2 host=gpu1 time=[0-9]{10} every=[0-9]+ took_ms=[0-9]+ rc=$3\$" &&
        [ "$(tail -n 1 "$1")" = '# end' ] && return
    echo "not whole: $1" >&2
    cat "$1" >&2
    return 1
}

# ours: the processes that anything of this test's spool keeps open, or that run its scripts; zombies of init are none.
ours() {
    {
        find /proc/[0-9]*/fd -lname "$TMP/spool/*" 2>/dev/null
        grep -lsF "$TMP/" /proc/[0-9]*/cmdline
    } | cut -d/ -f3 | sort -un | grep -vxF -e "$$" -e "$BASHPID" | while read -r pid; do
        case $(tr '\0' ' ' 2>/dev/null <"/proc/$pid/cmdline") in *bats-exec* | *bats-core* | *sshd*) ;; *"$TMP"* | sleep* | *sftp* | *ssh*) echo "$pid" ;; esac
    done
}

# print_loop_state TASK FIELD: the pid of a loop (1), or when it ticked last (2). The file is empty for a moment whenever it is written.
print_loop_state() {
    local words=()
    until [ "${#words[@]}" = 3 ]; do read -ra words <"$SPOOL/run/$1" || sleep 0.05; done
    echo "${words[$2 - 1]}"
}

# nothing_left: none of ours runs.
nothing_left() {
    local left
    left=$(ours)
    [ -z "$left" ] && return
    # shellcheck disable=SC2086 # one word a pid
    ps -o pid,stat,args $left >&2 || true
    return 1
}

# on_a_small_spool SCRIPT: runs it, with a spool that is a disk of its own: `fill` leaves no room there, `empty` gives it back.
on_a_small_spool() {
    need_root
    {
        cat <<'EOF'
set -e
mkdir -p "$GPUBOARD_SPOOL"
mount -t tmpfs -o size=256k,mode=700 none "$GPUBOARD_SPOOL"
fill() { head -c 1000000 /dev/zero >"$GPUBOARD_SPOOL/filler" 2>/dev/null || :; }
empty() { rm "$GPUBOARD_SPOOL/filler"; }
arrival() { stat -c %z "$GPUBOARD_DEST/gpu1/host.txt"; }
EOF
        declare -f wait_until fails
        cat
    } >"$TMP/small.sh"
    export TMP RUN_SH CHECK WAIT_LIMIT
    unshare -m bash "$TMP/small.sh"
}
