# shellcheck shell=sh disable=SC2154 # new, mode, up: set by the script that reads this one
# Push over ssh to gpu-receive.sh on the web host, by one connection that stays open, and never more than one.
# RUN/retry has the time (since boot) before which no other is tried, and how many have failed.
# shellcheck source=scripts/lib/session.sh
. "$LIB/session.sh"

# parse_url: ssh://[user@]web[:port], the web host also as [::1]; sets target and port.
parse_url() {
    target=${GPUBOARD_DEST#ssh://} port=
    case $target in
        *\]:*) port=${target##*\]:} target=${target%:*} ;;
        *\]) ;;
        *:*) port=${target##*:} target=${target%:*} ;;
    esac
    case $target in *\[*\]) target=${target%%\[*}${target#*\[} && target=${target%\]} ;; esac # ssh wants it bare
}

# doubled PATH: ssh takes a % in it for a word of its own.
doubled() { case $1 in *%*) printf '%s\n' "$1" | sed 's/%/%%/g' ;; *) printf '%s\n' "$1" ;; esac }

# ssh_to PREFIX...: it names a command, so that a key that is not restricted opens no shell, which would run what we send.
ssh_to() {
    set -- "$@" ssh
    own=$HOME/.config/gpuboard
    key=${GPUBOARD_SSH_KEY:-$own/keys/$HOST}
    [ -n "${GPUBOARD_SSH_KEY:-}" ] || [ -e "$key" ] || key=
    [ -z "$key" ] || set -- "$@" -i "$(doubled "$key")" -o IdentitiesOnly=yes
    # beside the user's own, which ssh's settings may have put anywhere
    [ ! -e "$own/known_hosts" ] || set -- "$@" -o "GlobalKnownHostsFile /etc/ssh/ssh_known_hosts \"$own/known_hosts\""
    [ -z "${GPUBOARD_SSH_CONFIG:-}" ] || set -- "$@" -F "$GPUBOARD_SSH_CONFIG"
    [ -z "$port" ] || set -- "$@" -p "$port"
    "$@" -T -a -x -o BatchMode=yes -o LogLevel=ERROR -o StrictHostKeyChecking=yes -o ConnectTimeout="$GPUBOARD_LIMIT" \
        -o ServerAliveInterval=5 -o ServerAliveCountMax=2 -o ControlPath=none -o ControlMaster=no -o ClearAllForwardings=yes \
        -o RemoteCommand=none -o PermitLocalCommand=no -- "$target" gpu-receive.sh
}

# random_below N: sets random; hosts that boot at the same moment must not choose the same.
random_below() { random=$(($(od -An -N2 -tu2 /dev/urandom) % $1)); }

# await_turn: whether it is time to connect. A cluster that boots at once would be more than sshd takes at a time (MaxStartups), so each
# host waits a moment, by chance; and after a failure longer, as connect_failed says.
await_turn() {
    failures=0 not_before=0
    [ ! -s "$RUN/retry" ] || read -r not_before failures <"$RUN/retry" || :
    seconds_up
    if [ "$up" -lt "$not_before" ] && [ "$((not_before - up))" -le 120 ]; then return 1; fi # more is of another boot
    moment=$GPUBOARD_PS_EVERY
    [ "$moment" -le 10 ] || moment=10
    random_below "$((500 * moment))"
    thousandths=$((1000 + random % 1000))
    sleep "$((random / 1000)).${thousandths#1}"
}

# connect_failed: the next try comes after one interval, then two, four, … up to twelve or two minutes; half of it is by chance.
connect_failed() {
    delay=$GPUBOARD_PS_EVERY most=$((12 * GPUBOARD_PS_EVERY)) failed=0
    [ "$most" -le 120 ] || most=120
    while [ "$failed" -lt "$failures" ] && [ "$delay" -lt "$most" ]; do delay=$((2 * delay)) failed=$((failed + 1)); done
    [ "$delay" -le "$most" ] || delay=$most
    random_below "$((delay / 2 + 1))"
    seconds_up
    printf '%s %s\n' "$((up + delay - delay / 2 + random))" "$((failures + 1))" >"$RUN/retry"
}

# send_once: over a connection of its own, at once: there is none, or none to this place.
send_once() {
    # shellcheck disable=SC2086 # one word a file
    answer=$(awk -f "$LIB/update.awk" $files | ssh_to timeout -k 1 "$GPUBOARD_LIMIT") || code=$?
    case $answer in
        *ok) code=0 ;;
        *refused\ *) printf 'the web host refuses it: %s\n' "${answer##*refused }" >&2 && return 1 ;;
        *) [ "$code" != 0 ] || code=1 ;;
    esac
    return "$code"
}

# to_ssh: sends $new; what went wrong goes to stderr.
to_ssh() {
    parse_url
    code=0 fresh='' files=''
    for file in $new; do files="$files $SPOOL/$file"; done
    if ! join_session "$GPUBOARD_DEST"; then
        if [ "$mode" = once ]; then
            send_once && rm -f "$RUN/retry" # so it works now, and the loops need not wait
            return
        fi
        await_turn || exit 0 # its reason is told already
        fresh=1
        start_session "$GPUBOARD_DEST" ssh_to
    fi
    # shellcheck disable=SC2086 # one word a file
    timeout -k 1 "$GPUBOARD_LIMIT" "$LIB/update.sh" $files || code=$?
    [ -z "$fresh" ] || [ "$code" = 0 ] || connect_failed
    case $code in
        0) [ ! -e "$RUN/retry" ] || rm -f "$RUN/retry" ;;
        3) ;; # refused, and the connection stays
        *)
            cat "$RUN/session.err" >&2 || :
            end_session
            ;;
    esac
    return "$code"
}
