# shellcheck shell=sh disable=SC2034,SC2154 # variables come from gpu-check.sh, and go back to it
# One loop: its state, its start, its end.

# set_patience EVERY: sets patience to the age at which something hangs: three intervals; but one that is only slow does not hang.
set_patience() {
    patience=$((3 * $1))
    [ "$patience" -ge $((3 * GPUBOARD_LIMIT)) ] || patience=$((3 * GPUBOARD_LIMIT))
}

# look TASK: sets state to running, hung or stopped, and pid and age (seconds since the last snapshot) where they are known.
look() {
    pid='' stamp='' every='' age='' state=stopped
    [ -e "$RUN/$1" ] || return 0
    read -r pid stamp every <"$RUN/$1" || { sleep 0.1 && read -r pid stamp every <"$RUN/$1"; } || : # it may just be written
    if flock -n "$RUN/$1" true; then return; fi
    seconds_up
    [ -z "$stamp" ] || age=$((up - stamp))
    set_patience "${every:-0}"
    state=hung # also one with no stamp at all: the disk of the spool is full
    [ -z "$age" ] || [ "$age" -gt "$patience" ] || state=running
}

# end_holders PATTERN: ends every process that has a file of this name open: politely, then by force; names what is left.
end_holders() {
    for signal in TERM KILL; do
        pids=$(holders "$1")
        [ -n "$pids" ] || return 0
        # shellcheck disable=SC2086 # one word a pid
        kill -"$signal" $pids 2>/dev/null || :
        for _ in 1 2 3 4 5 6 7 8 9 10; do
            [ -n "$(holders "$1")" ] || return 0
            sleep 0.1
        done
    done
    for pid in $(holders "$1"); do say "pid $pid could not be killed"; done
}

# start_loop TASK: detached from cron and terminal; waits until the loop has its lock.
start_loop() {
    setsid "$HERE/gpu-run.sh" "$1" </dev/null >/dev/null 2>"$RUN/$1.err" 7>&- &
    for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
        sleep 0.2
        flock -n "$RUN/$1" true || return 0
    done
    say "task $1 did not start: $(cat "$RUN/$1.err")"
    return 1
}
