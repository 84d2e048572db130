# shellcheck shell=sh disable=SC2034,SC2154 # RUN, SPOOL and LIB come from the script that reads this one, rc goes to it
# What every task shares: the time limit of outside commands, and the form of a snapshot.

# limited NAME WAIT COMMAND...: runs it under the time limit. An earlier one of that NAME that still lives (it holds the lock that
# it inherited, so the kernel tells) is waited for, WAIT seconds; then it has hung: it is killed if it can be, and no other is started.
limited() {
    lock=$RUN/$1
    name=$1
    wait=$2
    shift 2
    status=0
    flock -E 200 -w "$wait" "$lock" timeout -k 1 "$GPUBOARD_LIMIT" "$@" || status=$?
    case $status in
        124 | 137) printf '%s did not answer within %s s and was stopped\n' "$name" "$GPUBOARD_LIMIT" >&2 ;;
        200)
            pids=$(holders "$lock" | tr '\n' ' ')
            # shellcheck disable=SC2086 # one word a pid
            [ -z "$pids" ] || kill -9 $pids 2>/dev/null || :
            printf 'an earlier %s (%s) hangs and could not be stopped; no other is started\n' "$name" "${pids:+pid }${pids:-of another user}" >&2
            ;;
    esac
    return "$status"
}

# ask_nvidia_smi ARGUMENTS...: leaves its words in $out and $err, its exit code in rc. Tasks 1 and 2 take turns.
ask_nvidia_smi() {
    rc=0
    if command -v nvidia-smi >/dev/null; then
        limited nvidia-smi "$((GPUBOARD_LIMIT + 2))" nvidia-smi "$@" >"$out" 2>"$err" || rc=$?
    else
        rc=127
        : >"$out"
        echo 'nvidia-smi was not found on this host: is the NVIDIA driver installed?' >"$err"
    fi
}

# begin_snapshot TASK: notes when it began, and where its command's words go until they are whole.
begin_snapshot() {
    read -r up_exact _ </proc/uptime
    began_cs=${up_exact%.*}${up_exact#*.}
    began=$(date +%s)
    out=$RUN/$1.out.$$
    err=$RUN/$1.err.$$
}

# end_snapshot TASK FILE EVERY RC: header, what the command said, its words on stderr, the end; whole or not at all.
end_snapshot() {
    read -r up_exact _ </proc/uptime
    took_ms=$(((${up_exact%.*}${up_exact#*.} - began_cs) * 10))
    awk -v header="# gpuboard 1 task=$1 host=$HOST time=$began every=$3 took_ms=$took_ms rc=$4" \
        -f "$LIB/snapshot.awk" "$out" errors=1 "$err" >"$RUN/$1.new.$$" && mv -f "$RUN/$1.new.$$" "$SPOOL/$2"
}
