# shellcheck shell=sh disable=SC2034,SC2154 # HOST and PRIVATE are set by the script that reads this one, and words for protect.sh here
# What is refused: told to the sender, and kept in receive.log in PRIVATE, the folder of this account alone. The log is bounded.

# note WORDS...: a line in the log, with the time and where the connection comes from. A log that cannot be written stops nothing.
note() {
    [ -n "$PRIVATE" ] || return 0
    from=${SSH_CONNECTION:-here} log=$PRIVATE/receive.log
    (
        exec 8>>"$log" && flock -w 2 8 || exit 0
        [ "$(wc -c <"$log")" -lt 262144 ] || { mv -f "$log" "$log.1" && exec 8>>"$log"; }
        printf '%s %s (%s): %s\n' "$(date '+%Y-%m-%dT%H:%M:%S%z')" "$HOST" "${from%% *}" "$*" | tr -d '\000-\011\013-\037\177' >&8
    ) 2>/dev/null || :
}

# refuse WORDS...: who sends much that is refused waits for it.
refuse() {
    note "refused: $*"
    sleep 1
    echo "refused $*"
}

# set_words DATA: how the sentences of protect.sh name the data folder.
set_words() {
    called=data there=' on the web host' owners=ours
    remedy="call ./install.sh web there as $(id -un), or: chmod go-w $1"
}

# is_inside DATA: whether `.` is still DATA/HOST; it may have been forgotten, or its share mounted anew.
# shellcheck disable=SC3013 # -ef: in every sh that we know, and in POSIX since 2024
is_inside() { [ . -ef "$1/$HOST" ] && [ -d .new ]; }
