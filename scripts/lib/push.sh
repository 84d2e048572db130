# shellcheck shell=sh disable=SC2154 # up: set by the script that reads this one
# The push: what is new in the spool goes to GPUBOARD_DEST.
# A file that was sent already is not sent again, so that it never looks fresh. One push at a time: one that hangs keeps the lock.

# choose_new: sets new to the files that GPUBOARD_DEST does not have yet, and headers to the first lines of all.
choose_new() {
    new='' headers='' known='' known_dest=''
    if [ "$mode" != once ] && [ -s "$SPOOL/sent" ]; then
        {
            read -r _ known_dest
            while IFS= read -r line; do known="$known$line;"; done
        } <"$SPOOL/sent"
        [ "$known_dest" = "$GPUBOARD_DEST" ] || known=
    fi
    for file in gpus.csv processes.csv ps.txt host.txt; do
        [ -s "$SPOOL/$file" ] || continue
        IFS= read -r line <"$SPOOL/$file"
        headers="$headers$line
"
        case $known in *"$line;"*) ;; *) new="$new $file" ;; esac
    done
}

# arrived: what the loops sent is remembered, with the time and the place; `once` is another matter.
arrived() {
    if [ "$mode" = once ]; then
        renew_check
        exit 0
    fi
    seconds_up
    printf '%s %s\n%s' "$up" "$GPUBOARD_DEST" "$headers" >"$SPOOL/sent" # only the next push reads it, and that waits for our lock
    [ ! -e "$SPOOL/push.failed" ] || rm -f "$SPOOL/push.failed"
    exec 7>&- # an agent that hangs must not hold up the next push
    renew_check
    exit 0
}

# renew_check: Consul hears of it, where gpu-check.sh --register asked for that.
renew_check() {
    [ -e "$SPOOL/registered" ] || return 0
    # shellcheck source=scripts/lib/register.sh
    . "$LIB/register.sh"
    (renew) 2>/dev/null || :
}

# failed: its reason, the last words on its stderr, is kept for `gpu-check.sh status`; the next tick tries again.
failed() {
    # sftp ends with "Connection closed" whatever the cause, and our own mkdir and chmod of a folder that is there are no cause
    reason=$(awk 'NF && (last == "" || !/^(Connect(ed|ion closed)|remote (mkdir|setstat)|Couldn.t (create directory|setstat))/) {last = $0} END {print substr(last, 1, 300)}' "$stderr")
    case $reason in
        *'Host key verification failed'*) reason="the key of $GPUBOARD_DEST is not known here: log in there once by hand, or add it to known_hosts" ;;
        *gpu-receive.sh:*'not found'*) reason="the key of this host is not enrolled at $GPUBOARD_DEST, but opens a shell there: call gpu-enrol.sh on the web host" ;;
    esac
    reason=${reason:-the connection was cut}
    if [ "$mode" = once ]; then
        say "the snapshot did not arrive at $GPUBOARD_DEST: $reason"
    else
        printf '%s\n' "$reason" >"$RUN/push.failed" && mv -f "$RUN/push.failed" "$SPOOL/push.failed"
    fi
    exit 1
}

# push loop|once: with `once` all four files go, and the exit code tells. Runs in a subshell: it ends by exit.
push() {
    mode=$1
    stderr=$RUN/push.stderr
    exec 7>>"$RUN/push"
    if [ "$mode" = once ]; then
        flock -w "$((GPUBOARD_LIMIT + 7))" 7 || die "an earlier push to $GPUBOARD_DEST hangs"
    else
        flock -n 7 || exit 0
    fi
    (check_dest) 2>"$stderr" || failed # the settings file may have changed under the loops
    choose_new
    [ -n "$new" ] || exit 0
    status=0
    deliver 2>"$stderr" || status=$?
    case $status in
        0) arrived ;;
        124 | 137) echo "no answer within $GPUBOARD_LIMIT s" >>"$stderr" ;;
    esac
    failed
}

# deliver: the files in $new, by the way that GPUBOARD_DEST names.
deliver() {
    case $GPUBOARD_DEST in
        /*)
            # shellcheck disable=SC2086 # one word a file
            timeout -k 1 "$GPUBOARD_LIMIT" "$LIB/to-folder.sh" "$GPUBOARD_DEST" "$HOST" "$SPOOL" $new
            ;;
        ssh://*)
            # shellcheck source=scripts/lib/to-ssh.sh
            . "$LIB/to-ssh.sh"
            to_ssh
            ;;
        consul://*)
            # shellcheck source=scripts/lib/to-consul.sh
            . "$LIB/to-consul.sh"
            to_consul
            ;;
        *)
            # shellcheck source=scripts/lib/to-sftp.sh
            . "$LIB/to-sftp.sh"
            to_sftp
            ;;
    esac
}
