# shellcheck shell=sh disable=SC2154 # variables come from the script that reads this one
# Xid errors: what NVIDIA's driver reports of broken GPUs in the kernel log. SPOOL/xids has how far the log was read, and the last errors as lines
# of host.txt, so that each minute only what is new is read.

# update_xids: add what is new in the kernel log, and set kernel_log to the program that reads it, to `unreadable`, or to nothing without a GPU of NVIDIA.
update_xids() {
    kernel_log=
    if [ "$GPUBOARD_NVIDIA" = no ] || ! command -v nvidia-smi >/dev/null; then return 0; fi
    kernel_log=unreadable
    paused_at=
    [ ! -r "$SPOOL/xids.pause" ] || read -r paused_at <"$SPOOL/xids.pause" || :
    if [ -n "$paused_at" ] && [ "$up" -ge "$paused_at" ] && [ $((up - paused_at)) -lt 3600 ]; then return 0; fi
    boot=
    [ ! -r "$PROC/sys/kernel/random/boot_id" ] || read -r boot <"$PROC/sys/kernel/random/boot_id" || :
    last_reader='' position=''
    [ ! -r "$SPOOL/xids" ] || read -r _ last_reader _ _ position <"$SPOOL/xids" || :
    if read_xids dmesg; then
        kernel_log=dmesg
    elif command -v journalctl >/dev/null; then
        # a cursor, since the clock may be set; what came before a reboot counts too, so no -k
        [ "$last_reader" = journalctl ] || position=
        from=--since=@$((now - 86400))
        [ -z "$position" ] || from=--after-cursor=$position
        if read_xids journalctl -o short-unix --no-pager --show-cursor "$from" _TRANSPORT=kernel && ! is_journal_hidden "$NEW/xids.err"; then
            kernel_log=journalctl
        elif [ -n "$position" ] && grep -q cursor "$NEW/xids.err"; then
            rm -f "$SPOOL/xids" # it begins again in a minute
        fi
    fi
    [ "$kernel_log" = unreadable ] || mv -f "$NEW/xids" "$SPOOL/xids"
}

# read_xids COMMAND...: write NEW/xids from SPOOL/xids and what the command prints. One that takes too long is not called again for an hour.
read_xids() {
    known=$SPOOL/xids
    [ -r "$known" ] || known=/dev/null
    read_status=0
    log_read_at=$((up + offset)) # not `now`, when this tick began: df may have taken long since
    # shellcheck disable=SC2016 # for the inner shell
    run_limited "$1" 1 sh -c 'program=$1 known=$2 boot=$3 now=$4 up=$5 && shift 5 && { "$@" && echo "# end"; } |
        awk -v reader="$1" -v boot="$boot" -v now="$now" -v up="$up" -f "$program" stage=known "$known" stage=log -' - \
        "$LIB/xid.awk" "$known" "${boot:--}" "$log_read_at" "$up" "$@" >"$NEW/xids" 2>"$NEW/xids.err" || read_status=$?
    case $read_status in 124 | 137) printf '%s\n' "$up" >"$SPOOL/xids.pause" ;; esac
    case $read_status in 124 | 137 | 200) tail -n 1 "$NEW/xids.err" >>"$SPOOL/minute.err" ;; esac
    return "$read_status"
}

# is_journal_hidden FILE: whether journalctl says there, on stderr, that it may not read the messages of the system. It succeeds even so.
is_journal_hidden() { grep -q -e 'not seeing messages' -e 'insufficient permissions' -e 'No journal files' "$1"; }
