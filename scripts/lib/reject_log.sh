# shellcheck shell=sh disable=SC2154 # HOST and PRIVATE are set by the script that reads this one
# Report what is refused to the sender, and log it in receive.log in PRIVATE, the folder of this account alone. The size of the log is limited.

# log_event MESSAGE...: log it with the time and the address of the sender. A log that cannot be written stops nothing.
log_event() {
    [ -n "$PRIVATE" ] || return 0
    from=${SSH_CONNECTION:-here} log=$PRIVATE/receive.log
    (
        exec 8>>"$log" && flock -w 2 8 || exit 0
        [ "$(wc -c <"$log")" -lt 262144 ] || { mv -f "$log" "$log.1" && exec 8>>"$log"; }
        printf '%s %s (%s): %s\n' "$(date '+%Y-%m-%dT%H:%M:%S%z')" "$HOST" "${from%% *}" "$*" | tr -d '\000-\011\013-\037\177' >&8
    ) 2>/dev/null || :
}

# refuse_update MESSAGE...: refuse an update, after a pause: whoever sends many waits.
refuse_update() {
    log_event "refused: $*"
    sleep 1
    echo "refused $*"
}
