# shellcheck shell=sh disable=SC2034,SC2154 # variables come from the script that reads this one, and go back to it
# What all tasks share: the time limit of outside commands, and the format of a snapshot.

# run_limited NAME WAIT COMMAND...: run it under the time limit. If an earlier one of that NAME still runs (it holds the lock that it inherited),
# wait for WAIT seconds; then it hangs: kill it if possible, and start no other.
run_limited() {
    lock=$RUN/$1
    name=$1
    max_wait=$2
    shift 2
    status=0
    read_uptime
    began_up=$up
    flock -E 200 -w "$max_wait" "$lock" timeout -k 1 "$GPUBOARD_LIMIT" "$@" || status=$?
    case $status in
        124 | 137)
            read_uptime
            if [ $((up - began_up)) -ge "$GPUBOARD_LIMIT" ]; then
                echo "$name did not answer within $GPUBOARD_LIMIT s and was stopped" >&2
            else
                echo "$name was killed" >&2
            fi
            ;;
        200)
            kill_hung_holders "$lock"
            if ! flock -w 1 "$lock" true; then
                echo "an earlier $name (pid${pids:- of another user}) hangs and cannot be killed; it is not started again" >&2
            elif [ -n "$pids" ]; then
                echo "an earlier $name (pid$pids) hung and was killed; the next interval tries again" >&2
            else
                echo "other calls of $name took too long; the next interval tries again" >&2
            fi
            ;;
    esac
    return "$status"
}

# kill_hung_holders LOCK: kill the processes that have held the lock for longer than the time limit, not those that wait for it; set pids to them.
kill_hung_holders() {
    pids=
    for pid in $(list_holders "$1"); do
        grep -qs '^lock:' "/proc/$pid/fdinfo/"* || continue
        age=$(ps -o etimes= -p "$pid" | tr -d ' ')
        [ "${age:-0}" -gt "$GPUBOARD_LIMIT" ] || continue
        kill -9 "$pid" 2>/dev/null || :
        pids="$pids $pid"
    done
}

# read_clock: set now and zone. A `date` at every tick would cost as much as the rest of a task, so read the clock once a minute,
# and count by the time since boot.
read_clock() {
    read_uptime
    clock_read_at='' offset=''
    [ ! -r "$SPOOL/clock" ] || read -r clock_read_at offset zone <"$SPOOL/clock" || :
    if [ -z "$offset" ] || is_minute_old "$clock_read_at"; then
        now=$(date '+%s %z %Z')
        zone=${now#* }
        offset=$((${now%% *} - up))
        printf '%s %s %s\n' "$up" "$offset" "$zone" >"$NEW/clock" && mv -f "$NEW/clock" "$SPOOL/clock"
    fi
    now=$((up + offset))
}

# begin_snapshot NAME: remember when it began, and set out and err.
begin_snapshot() {
    read -r up_exact _ </proc/uptime
    began_cs=${up_exact%.*}${up_exact#*.}
    out=$NEW/$1.out
    err=$NEW/$1.err
    : >"$err"
}

# end_snapshot NAME FILE RC AWK-ARGUMENTS...: write it; snapshot.awk is one of the programs. If it cannot be written (a full disk),
# the last one stays, and the reason is shown by `gpu-check.sh status`.
end_snapshot() {
    header="# gpuboard 1 task=$1 host=$HOST time=$now every=$every"
    file=$NEW/$2
    rc=$3
    shift 3
    awk -v header="$header" -v rc="$rc" -v began_cs="$began_cs" -v errors="$err ${extra_error_file:-}" "$@" >"$file" 2>>"$err" || {
        tail -n 1 "$err" >&2
        write_failed=1
        return 0
    }
    snapshot_files="$snapshot_files $file"
}
