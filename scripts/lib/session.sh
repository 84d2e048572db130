# shellcheck shell=sh
# A connection that stays open, so that neither a login nor the far side's login shell is paid for at each push.
# RUN/in feeds it, RUN/ack answers, RUN/session is its lock and names its target.

# session TARGET COMMAND...: runs until the connection or the pipe breaks, and says so to whoever waits.
session() {
    exec 4>&- 5>&- 7>&- 6>>"$RUN/session" # of push.sh it keeps nothing, least of all its lock
    flock -w 2 6 || exit 0
    printf '%s\n' "$1" >"$RUN/session"
    shift
    "$@" <>"$RUN/in" 1<>"$RUN/ack" 2>"$RUN/session.err" || :
    [ ! -p "$RUN/ack" ] || echo gone 1<>"$RUN/ack"
}

# join_session TARGET: whether one runs to it; then fd 4 feeds it, fd 5 hears it.
join_session() {
    held_target=
    flock -n "$RUN/session" true || read -r held_target <"$RUN/session" || :
    [ "$held_target" = "$1" ] && [ -p "$RUN/in" ] && [ -p "$RUN/ack" ] || return
    exec 4<>"$RUN/in" 5<>"$RUN/ack"
}

# start_session TARGET COMMAND...: the same, with a new one in the place of what there is.
start_session() {
    end_session
    mkfifo "$RUN/in" "$RUN/ack"
    exec 4<>"$RUN/in" 5<>"$RUN/ack"
    session "$@" &
}

# end_session: ends what is left of one, with its pipes, so that no old word is in them when the next begins.
end_session() {
    exec 4>&- 5>&-
    kill_holders "$RUN/in"
    kill_holders "$RUN/session"
    rm -f "$RUN/in" "$RUN/ack" "$RUN/ssh"
}
