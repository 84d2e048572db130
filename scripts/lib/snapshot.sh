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
    seconds_up
    began_up=$up
    flock -E 200 -w "$wait" "$lock" timeout -k 1 "$GPUBOARD_LIMIT" "$@" || status=$?
    case $status in
        124 | 137)
            seconds_up
            if [ $((up - began_up)) -ge "$GPUBOARD_LIMIT" ]; then
                echo "$name did not answer within $GPUBOARD_LIMIT s and was stopped" >&2
            else
                echo "$name was killed" >&2
            fi
            ;;
        200)
            kill_hung "$lock"
            if ! flock -w 1 "$lock" true; then
                echo "an earlier $name (pid${pids:- of another user}) hangs and cannot be killed; no other is started" >&2
            elif [ -n "$pids" ]; then
                echo "an earlier $name (pid$pids) hung and was killed; the next tick asks again" >&2
            else
                echo "other calls of $name took too long to wait for; the next tick asks again" >&2
            fi
            ;;
    esac
    return "$status"
}

# kill_hung LOCK: kills who holds the lock for longer than the time limit, not those who wait for it, nor one that works; sets pids to them.
kill_hung() {
    pids=
    for pid in $(holders "$1"); do
        grep -qs '^lock:' "/proc/$pid/fdinfo/"* || continue
        age=$(ps -o etimes= -p "$pid" | tr -d ' ')
        [ "${age:-0}" -gt "$GPUBOARD_LIMIT" ] || continue
        kill -9 "$pid" 2>/dev/null || :
        pids="$pids $pid"
    done
}

# read_clock: sets now and zone. A `date` at every tick would cost as much as the rest of a task, so the clock is asked once a minute, and
# the time since boot counts from there.
read_clock() {
    seconds_up
    asked='' offset=''
    [ ! -r "$SPOOL/clock" ] || read -r asked offset zone <"$SPOOL/clock" || :
    if [ -z "$offset" ] || minute_passed "$asked"; then
        now=$(date '+%s %z %Z')
        zone=${now#* }
        offset=$((${now%% *} - up))
        printf '%s %s %s\n' "$up" "$offset" "$zone" >"$NEW/clock" && mv -f "$NEW/clock" "$SPOOL/clock"
    fi
    now=$((up + offset))
}

# begin_snapshot NAME: notes when it began, and where the words of its command go.
begin_snapshot() {
    read -r up_exact _ </proc/uptime
    began_cs=${up_exact%.*}${up_exact#*.}
    out=$NEW/$1.out
    err=$NEW/$1.err
    : >"$err"
}

# end_snapshot NAME FILE RC AWK-ARGUMENTS...: writes it; snapshot.awk is one of the programs. If it cannot be written (a full disk),
# the one before stays, and the reason is for `gpu-check.sh status`.
end_snapshot() {
    header="# gpuboard 1 task=$1 host=$HOST time=$now every=$every"
    file=$NEW/$2
    rc=$3
    shift 3
    awk -v header="$header" -v rc="$rc" -v began_cs="$began_cs" -v errors="$err ${more_errors:-}" "$@" >"$file" 2>>"$err" || {
        tail -n 1 "$err" >&2
        missed=1
        return 0
    }
    made="$made $file"
}
