# shellcheck shell=sh disable=SC2034,SC2154 # up is set, ask_all used by the script that reads this one
# What of the host changes slowly is asked for once a minute, and kept in the spool as ready lines: disks, addresses, disk use by person.

# ask_minute_facts: what went wrong stands in minute.err until the next time. Sets ask_all to 1 if it asked.
ask_minute_facts() {
    ask_all=0
    asked=
    [ ! -r "$SPOOL/minute.time" ] || read -r asked <"$SPOOL/minute.time" || :
    minute_passed "$asked" || return 0
    ask_all=1
    printf '%s\n' "$up" >"$SPOOL/minute.time" # first: if we are ended for being slow, the next tick is quick
    : >"$SPOOL/minute.err"
    keep_answer disks df df -lPTk
    if command -v ip >/dev/null; then
        keep_answer addresses ip ip -o addr show up scope global
    else
        keep_answer addresses hostname hostname -I
    fi
    if [ -n "${GPUBOARD_DISK_USE:-}" ]; then
        # shellcheck disable=SC2016 # for the inner shell
        keep_answer disk_use disk-use sh -c 'date -r "$1" +%s && head -n 500 "$1"' - "$GPUBOARD_DISK_USE"
    else
        : >"$NEW/disk_use"
    fi
    awk -v proc="$PROC" -v collector="$GPUBOARD_VERSION" -f "$LIB/keyvalue.awk" -f "$LIB/minute.awk" stage=disks "$NEW/disks" stage=addresses "$NEW/addresses" \
        stage=disk_use "$NEW/disk_use" >"$NEW/minute" && mv -f "$NEW/minute" "$SPOOL/minute"
}

# keep_answer FILE NAME COMMAND...: what it says, in NEW/FILE; NAME is how it is told if it hangs.
keep_answer() {
    answers=$NEW/$1
    called=$2
    shift 2
    limited "$called" 1 "$@" >"$answers" 2>>"$SPOOL/minute.err" || :
}
