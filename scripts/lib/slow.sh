# shellcheck shell=sh disable=SC2034,SC2154 # up is set, asked_slow used by the script that reads this one
# What of the host changes slowly is asked for once a minute, and kept in the spool as ready lines: disks, addresses, disk use by person.

# ask_slow_facts: what went wrong stands in slow.err until the next time. Sets asked_slow to 1 if it asked.
ask_slow_facts() {
    asked_slow=0
    asked=
    [ ! -r "$SPOOL/slow.time" ] || read -r asked <"$SPOOL/slow.time" || :
    [ -z "$asked" ] || [ $((up - asked)) -lt 0 ] || [ $((up - asked)) -ge 60 ] || return 0
    asked_slow=1
    : >"$SPOOL/slow.err"
    answer disks df -lPTk
    if command -v ip >/dev/null; then
        answer addresses ip -o addr show up scope global
    else
        answer addresses hostname -I
    fi
    if [ -n "${GPUBOARD_DISK_USE:-}" ]; then
        # shellcheck disable=SC2016 # for the inner shell
        answer disk_use sh -c 'date -r "$1" +%s && head -n 500 "$1"' - "$GPUBOARD_DISK_USE"
    else
        : >"$NEW/disk_use"
    fi
    awk -v proc="$PROC" -v collector="$GPUBOARD_VERSION" -f "$LIB/slow.awk" stage=disks "$NEW/disks" stage=addresses "$NEW/addresses" \
        stage=disk_use "$NEW/disk_use" >"$NEW/slow" && mv -f "$NEW/slow" "$SPOOL/slow"
    printf '%s\n' "$up" >"$SPOOL/slow.time"
}

# answer NAME COMMAND...: what it says, in NEW/NAME.
answer() {
    answers=$NEW/$1
    shift
    limited "$1" 1 "$@" >"$answers" 2>>"$SPOOL/slow.err" || :
}
