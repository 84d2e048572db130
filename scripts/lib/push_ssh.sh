# shellcheck shell=sh disable=SC2154 # new_files, mode, up: set by the script that reads this one
# Push over ssh to gpu-receive.sh on the web host, by one connection that stays open, and never more than one.
# RUN/retry has the time (since boot) before which no other connection is tried, and how many have failed.
# shellcheck source=scripts/lib/session.sh
. "$LIB/session.sh"

# parse_ssh_destination: set target and port from ssh://[user@]web[:port], where web may be [::1].
parse_ssh_destination() {
    target=${GPUBOARD_DEST#ssh://} port=
    case $target in
        *\]:*) port=${target##*\]:} target=${target%:*} ;;
        *\]) ;;
        *:*) port=${target##*:} target=${target%:*} ;;
    esac
    case $target in *\[*\]) target=${target%%\[*}${target#*\[} && target=${target%\]} ;; esac # ssh takes it without brackets
}

# escape_percent PATH: double each %, which ssh would expand.
escape_percent() { case $1 in *%*) printf '%s\n' "$1" | sed 's/%/%%/g' ;; *) printf '%s\n' "$1" ;; esac }

# run_push_ssh PREFIX...: run ssh. It names a command, so that a key that is not restricted opens no shell, which would run what we send.
run_push_ssh() {
    set -- "$@" ssh
    config_folder=$HOME/.config/gpuboard
    key=${GPUBOARD_SSH_KEY:-$config_folder/keys/$HOST}
    [ -n "${GPUBOARD_SSH_KEY:-}" ] || [ -e "$key" ] || key=
    [ -z "$key" ] || set -- "$@" -i "$(escape_percent "$key")" -o IdentitiesOnly=yes
    # in addition to the user's, which may be anywhere by the settings of ssh
    [ ! -e "$config_folder/known_hosts" ] || set -- "$@" -o "GlobalKnownHostsFile /etc/ssh/ssh_known_hosts \"$config_folder/known_hosts\""
    [ -z "${GPUBOARD_SSH_CONFIG:-}" ] || set -- "$@" -F "$GPUBOARD_SSH_CONFIG"
    [ -z "$port" ] || set -- "$@" -p "$port"
    "$@" -T -a -x -o BatchMode=yes -o LogLevel=ERROR -o StrictHostKeyChecking=yes -o ConnectTimeout="$GPUBOARD_LIMIT" \
        -o ServerAliveInterval=5 -o ServerAliveCountMax=2 -o ControlPath=none -o ControlMaster=no -o ClearAllForwardings=yes \
        -o RemoteCommand=none -o PermitLocalCommand=no -- "$target" gpu-receive.sh
}

# choose_random N: set random to a number below N; hosts that boot at the same moment must choose differently.
choose_random() { random=$(($(od -An -N2 -tu2 /dev/urandom) % $1)); }

# wait_before_connecting: wait a random moment, since a cluster that boots would open more connections than sshd takes at a time
# (MaxStartups); fail if it is too early to retry after a failure.
wait_before_connecting() {
    failures=0 not_before=0
    [ ! -s "$RUN/retry" ] || read -r not_before failures <"$RUN/retry" || :
    read_uptime
    if [ "$up" -lt "$not_before" ] && [ "$((not_before - up))" -le 120 ]; then return 1; fi # a later time is from another boot
    max_wait=$GPUBOARD_PS_EVERY
    [ "$max_wait" -le 10 ] || max_wait=10
    choose_random "$((500 * max_wait))"
    thousandths=$((1000 + random % 1000))
    sleep "$((random / 1000)).${thousandths#1}"
}

# schedule_retry: retry after one interval, then two, four, … up to twelve or two minutes; half of it is random.
schedule_retry() {
    delay=$GPUBOARD_PS_EVERY max_delay=$((12 * GPUBOARD_PS_EVERY)) doublings=0
    [ "$max_delay" -le 120 ] || max_delay=120
    while [ "$doublings" -lt "$failures" ] && [ "$delay" -lt "$max_delay" ]; do delay=$((2 * delay)) doublings=$((doublings + 1)); done
    [ "$delay" -le "$max_delay" ] || delay=$max_delay
    choose_random "$((delay / 2 + 1))"
    read_uptime
    printf '%s %s\n' "$((up + delay - delay / 2 + random))" "$((failures + 1))" >"$RUN/retry"
}

# send_once: send over a new connection, since there is none to this destination.
send_once() {
    # shellcheck disable=SC2086 # one word a file
    answer=$(awk -f "$LIB/format_update.awk" $files | run_push_ssh timeout -k 1 "$GPUBOARD_LIMIT") || code=$?
    case $answer in
        *ok) code=0 ;;
        *refused\ *) printf 'the web host refuses it: %s\n' "${answer##*refused }" >&2 && return 1 ;;
        *) [ "$code" != 0 ] || code=1 ;;
    esac
    return "$code"
}

# push_to_ssh: send new_files; print errors on stderr.
push_to_ssh() {
    parse_ssh_destination
    code=0 fresh='' files=''
    for file in $new_files; do files="$files $SPOOL/$file"; done
    if ! join_session "$GPUBOARD_DEST"; then
        if [ "$mode" = once ]; then
            send_once && rm -f "$RUN/retry" # it works now, so the loops need not wait
            return
        fi
        wait_before_connecting || exit 0 # the reason is stored already
        fresh=1
        start_session "$GPUBOARD_DEST" run_push_ssh
    fi
    # shellcheck disable=SC2086 # one word a file
    timeout -k 1 "$GPUBOARD_LIMIT" "$LIB/send_update.sh" $files || code=$?
    [ -z "$fresh" ] || [ "$code" = 0 ] || schedule_retry
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
