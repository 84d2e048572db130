# shellcheck shell=sh disable=SC2034,SC2154 # up is set, query_all used by the script that reads this one
# Facts of the host that change slowly, read once a minute and kept in the spool as lines of host.txt: disks, addresses, disk use by person, Xid errors.
# shellcheck source=scripts/lib/xid.sh
. "$LIB/xid.sh"

# update_slow_facts: read them if a minute has passed, and set query_all to 1 then. Errors stay in minute.err until the next time.
update_slow_facts() {
    query_all=0
    updated_at=
    [ ! -r "$SPOOL/minute.time" ] || read -r updated_at <"$SPOOL/minute.time" || :
    is_minute_old "$updated_at" || return 0
    query_all=1
    printf '%s\n' "$up" >"$SPOOL/minute.time" # first, so that the next tick is quick if this one is killed for being slow
    : >"$SPOOL/minute.err"
    store_answer disks df df -lPTk
    if command -v ip >/dev/null; then
        store_answer addresses ip ip -o addr show up scope global
    else
        store_answer addresses hostname hostname -I
    fi
    if [ -n "${GPUBOARD_DISK_USE:-}" ]; then
        # shellcheck disable=SC2016 # for the inner shell
        store_answer disk_use disk-use sh -c 'date -r "$1" +%s && head -n 500 "$1"' - "$GPUBOARD_DISK_USE"
    else
        : >"$NEW/disk_use"
    fi
    update_xids
    xids=$SPOOL/xids
    if [ -z "$kernel_log" ] || [ ! -r "$xids" ]; then xids=/dev/null; fi
    awk -v proc="$PROC" -v collector="$GPUBOARD_VERSION" -v kernel_log="$kernel_log" -f "$LIB/key_value.awk" -f "$LIB/slow_facts.awk" \
        stage=disks "$NEW/disks" stage=addresses "$NEW/addresses" stage=disk_use "$NEW/disk_use" stage=xids "$xids" >"$NEW/minute" && mv -f "$NEW/minute" "$SPOOL/minute"
}

# store_answer FILE NAME COMMAND...: write its output to NEW/FILE; NAME is the name in messages if it hangs.
store_answer() {
    answer_file=$NEW/$1
    lock_name=$2
    shift 2
    run_limited "$lock_name" 1 "$@" >"$answer_file" 2>>"$SPOOL/minute.err" || :
}
