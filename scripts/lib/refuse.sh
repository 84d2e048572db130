# shellcheck shell=sh disable=SC2154 # HOST: set by the script that reads this one
# What is refused: told to the sender, and kept in receive.log in the data folder, which is where we are. The log is bounded.

# note WORDS...: a line in the log, with the time and where the connection comes from. A log that cannot be written stops nothing.
note() {
    from=${SSH_CONNECTION:-here}
    (
        exec 8>>receive.log && flock -w 2 8 || exit 0
        [ "$(wc -c <receive.log)" -lt 262144 ] || { mv -f receive.log receive.log.1 && exec 8>>receive.log; }
        printf '%s %s (%s): %s\n' "$(date '+%Y-%m-%dT%H:%M:%S%z')" "$HOST" "${from%% *}" "$*" | tr -d '\000-\011\013-\037\177' >&8
    ) 2>/dev/null || :
}

# refuse WORDS...: who sends much that is refused waits for it.
refuse() {
    note "refused: $*"
    sleep 1
    echo "refused $*"
}
