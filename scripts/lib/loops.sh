# shellcheck shell=sh disable=SC2034,SC2154 # variables come from gpu-check.sh, and go back to it
# The state of a loop, starting and ending it.

# read_loop_state TASK: set state to running, hung or stopped, and pid and age (seconds since the last snapshot) if they are known.
read_loop_state() {
    pid='' last_up='' every='' age='' state=stopped
    [ -e "$RUN/$1" ] || return 0
    read -r pid last_up every <"$RUN/$1" || { sleep 0.1 && read -r pid last_up every <"$RUN/$1"; } || : # it may be being written
    if flock -n "$RUN/$1" true; then return; fi
    read_uptime
    [ -z "$last_up" ] || age=$((up - last_up))
    set_hang_limit "${every:-0}"
    state=hung # also without a time: the disk of the spool is full
    [ -z "$age" ] || [ "$age" -gt "$hang_limit" ] || state=running
}

# has_holders PATTERN: whether any process has such a file open; a process may fork and end while the first list is made, so look twice.
has_holders() { [ -n "$(list_holders "$1")" ] || [ -n "$(list_holders "$1")" ]; }

# end_holders PATTERN: end every process that has a file of this name open, by TERM, then by KILL; report what is left.
end_holders() {
    for signal in TERM KILL; do
        # shellcheck disable=SC2046 # one word a pid
        kill -"$signal" $(list_holders "$1") 2>/dev/null || :
        for _ in 1 2 3 4 5 6 7 8 9 10; do
            has_holders "$1" || return 0
            sleep 0.1
        done
    done
    for pid in $(list_holders "$1"); do say "pid $pid could not be killed"; done
}

# start_loop TASK: start it detached from cron and terminal, and wait until it has its lock.
start_loop() {
    setsid "$HERE/gpu-run.sh" "$1" </dev/null >/dev/null 2>"$RUN/$1.err" 7>&- &
    for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
        sleep 0.2
        flock -n "$RUN/$1" true || return 0
    done
    say "task $1 did not start: $(cat "$RUN/$1.err")"
    return 1
}

# require_destination: refuse to start without a destination. Cron may throw our output away, so the reason stays in the spool for gpu-doctor.sh.
require_destination() {
    [ -z "${GPUBOARD_DEST:-}" ] || return 0
    open_spool "$1"
    (check_destination) 2>"$SPOOL/check.failed" || :
    cat "$SPOOL/check.failed" >&2
    exit 2
}
