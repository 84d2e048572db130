# What the tests of the host side share: a folder of their own, the scripts under the shell to test, a stand-in nvidia-smi.
# shellcheck disable=SC2034 # used by the tests

SAMPLES=$BATS_TEST_DIRNAME/../samples
GOLDEN=$BATS_TEST_DIRNAME/../golden
# Recordings of real machines: an additional check where this folder is; nothing else here knows of it.
SHARED=${GPUBOARD_SHARED:-$BATS_TEST_DIRNAME/../../../shared}

# use_shell: copies the scripts, with the shell to test in their first line (GPUBOARD_TEST_SHELL: dash, bash or ash).
use_shell() {
    local name=${GPUBOARD_TEST_SHELL:-dash} program
    mkdir -p "$TMP/shell"
    case $name in
        ash) program=$(command -v busybox) ;;
        *) program=$(command -v "$name") ;;
    esac
    ln -s "$program" "$TMP/shell/sh" # by the name of sh: bash is then in POSIX mode, busybox is ash
    cp -R "$BATS_TEST_DIRNAME/../../scripts" "$TMP/scripts"
    find "$TMP/scripts" -name '*.sh' -exec sed -i "1s|^#!/bin/sh|#!$TMP/shell/sh|" {} +
}

helper_setup() {
    TMP=$BATS_TEST_TMPDIR
    use_shell
    mkdir -p "$TMP/bin" "$TMP/smi" "$TMP/data" "$TMP/home"
    ln -s "$BATS_TEST_DIRNAME/../../site_builder/demo/stand-ins/nvidia-smi" "$TMP/bin/nvidia-smi"
    : >"$TMP/smi/calls"
    RUN_SH=$TMP/scripts/gpu-run.sh
    CHECK=$TMP/scripts/gpu-check.sh
    SPOOL=$TMP/spool/gpu1
    DATA=$TMP/data/gpu1
    export SMI=$TMP/smi HOME=$TMP/home HOST=gpu1 PATH="$TMP/bin:$PATH"
    export GPUBOARD_SPOOL=$TMP/spool GPUBOARD_DEST=$TMP/data GPUBOARD_LIMIT=2
    export GPUBOARD_GPUS_EVERY=1 GPUBOARD_PROCESSES_EVERY=1 GPUBOARD_PS_EVERY=1
    unset GPUBOARD_NVIDIA GPUBOARD_AMD GPUBOARD_CONF GPUBOARD_PROC GPUBOARD_SSH_CONFIG GPUBOARD_DISK_USE
    cd "$TMP" || return
}

setup() { helper_setup; }

teardown() {
    "$CHECK" kill >/dev/null 2>&1 || true
    local pid
    for pid in ${STARTED:-}; do kill -9 "$pid" 2>/dev/null || true; done
}

# missing WORDS: what this machine does not have; in CI that is a failure, not a skip.
missing() {
    if [ -n "${CI:-}" ]; then
        echo "missing in CI: $*" >&2
        return 1
    fi
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

# within SECONDS COMMAND...: waits until it succeeds.
within() {
    local end=$((SECONDS + $1))
    shift
    until "$@"; do
        if [ "$SECONDS" -gt "$end" ]; then
            echo "not in time: $*" >&2
            return 1
        fi
        sleep 0.1
    done
}

# gone PID: it has ended; init may not have taken note of it yet.
gone() { [[ ! -e /proc/$1/stat || $(sed 's/.*) //' "/proc/$1/stat" 2>/dev/null) == Z* ]]; }

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
        cat
    } >"$TMP/small.sh"
    export TMP RUN_SH CHECK
    unshare -m bash "$TMP/small.sh"
}
