# shellcheck shell=sh
# A connection that stays open, so that not every push needs a login and a login shell on the web host.
# RUN/in is its input, RUN/ack its output, RUN/session is its lock and names its target.

# run_session TARGET COMMAND...: run until the connection or the pipe breaks, then write `gone` for whoever waits.
run_session() {
    exec 4>&- 5>&- 7>&- 6>>"$RUN/session" # close the files of push.sh, above all its lock
    flock -w 2 6 || exit 0
    printf '%s\n' "$1" >"$RUN/session"
    shift
    "$@" <>"$RUN/in" 1<>"$RUN/ack" 2>"$RUN/session.err" || :
    [ ! -p "$RUN/ack" ] || echo gone 1<>"$RUN/ack"
}

# join_session TARGET: whether a session to it runs; then fd 4 is its input, fd 5 its output.
join_session() {
    held_target=
    flock -n "$RUN/session" true || read -r held_target <"$RUN/session" || :
    [ "$held_target" = "$1" ] && [ -p "$RUN/in" ] && [ -p "$RUN/ack" ] || return
    exec 4<>"$RUN/in" 5<>"$RUN/ack"
}

# start_session TARGET COMMAND...: replace any session by a new one, with the same fds.
start_session() {
    end_session
    mkfifo "$RUN/in" "$RUN/ack"
    exec 4<>"$RUN/in" 5<>"$RUN/ack"
    run_session "$@" &
}

# end_session: end what is left of a session, and remove its pipes, so that the next one reads no old line.
end_session() {
    exec 4>&- 5>&-
    kill_holders "$RUN/in"
    kill_holders "$RUN/session"
    rm -f "$RUN/in" "$RUN/ack" "$RUN/ssh"
}
