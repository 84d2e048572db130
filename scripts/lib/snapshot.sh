# shellcheck shell=sh disable=SC2034,SC2154 # variables come from the script that reads this one, and go back to it
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

# read_clock: sets now and zone. A `date` at every tick would cost as much as the rest of a task, so the clock is asked once a minute, and
# the time since boot counts from there.
read_clock() {
    seconds_up
    asked='' offset=''
    [ ! -r "$SPOOL/clock" ] || read -r asked offset zone <"$SPOOL/clock" || :
    if [ -z "$offset" ] || [ "$up" -lt "$asked" ] || [ $((up - asked)) -ge 60 ]; then
        now=$(date '+%s %z %Z')
        zone=${now#* }
        offset=$((${now%% *} - up))
        printf '%s %s %s\n' "$up" "$offset" "$zone" >"$NEW/clock" && mv -f "$NEW/clock" "$SPOOL/clock"
    fi
    now=$((up + offset))
}

# begin_snapshot TASK: notes when it began, and where the words of its command go.
begin_snapshot() {
    read -r up_exact _ </proc/uptime
    began_cs=${up_exact%.*}${up_exact#*.}
    out=$NEW/$1.out
    err=$NEW/$1.err
    : >"$err"
}

# end_snapshot TASK FILE RC AWK-ARGUMENTS...: writes it; snapshot.awk is one of the programs. If it cannot be written (a full disk),
# the one before stays, and the reason is for `gpu-check.sh status`.
end_snapshot() {
    header="# gpuboard 1 task=$1 host=$HOST time=$now every=$every"
    file=$NEW/$2
    rc=$3
    shift 3
    awk -v header="$header" -v rc="$rc" -v began_cs="$began_cs" -v errors="$err ${more_errors:-}" "$@" >"$file" 2>>"$err" || {
        tail -n 1 "$err" >&2
        return 0
    }
    made="$made $file"
}
