# shellcheck shell=sh disable=SC2154 # up: set by the script that reads this one
# The push: what is new in the spool goes to GPUBOARD_DEST.
# A file that was sent already is not sent again, so that it never looks fresh. One push at a time: one that hangs keeps the lock.

# choose_new: sets new to the files that the last good push did not have, and headers to the first lines of all.
choose_new() {
    new='' headers='' known=''
    if [ "$mode" != once ] && [ -r "$SPOOL/sent" ]; then
        while IFS= read -r line; do known="$known$line;"; done <"$SPOOL/sent"
    fi
    for file in gpus.csv processes.csv ps.txt host.txt; do
        [ -s "$SPOOL/$file" ] || continue
        IFS= read -r line <"$SPOOL/$file"
        headers="$headers$line
"
        case $known in *"$line;"*) ;; *) new="$new $file" ;; esac
    done
}

# arrived: what was sent is remembered, with the time.
arrived() {
    seconds_up
    printf '%s\n%s' "$up" "$headers" >"$SPOOL/sent" # nobody reads it but the next push, which has to wait for our lock
    [ ! -e "$SPOOL/push.err" ] || rm -f "$SPOOL/push.err"
    exit 0
}

# failed: its reason, the last words in $err, is kept for `gpu-check.sh status`; the next tick tries again.
failed() {
    # sftp ends with "Connection closed" whatever the cause, and our own mkdir of a folder that is there is no cause
    reason=$(awk 'NF && (last == "" || !/^(Connect(ed|ion closed)|remote mkdir|Couldn.t create directory)/) {last = $0} END {print substr(last, 1, 300)}' "$err")
    case $reason in
        *'Host key verification failed'*) reason="the key of $GPUBOARD_DEST is not known here: log in there once by hand, or add it to known_hosts" ;;
    esac
    [ "$mode" != once ] || say "the snapshot did not arrive at $GPUBOARD_DEST: $reason"
    printf '%s\n' "$reason" >"$RUN/push.why" && mv -f "$RUN/push.why" "$SPOOL/push.err"
    exit 1
}

# push loop|once: with `once` all four files go, and the exit code tells. Runs in a subshell: it ends by exit.
push() {
    mode=$1
    err=$RUN/push.err
    exec 7>>"$RUN/push"
    if [ "$mode" = once ]; then
        flock -w "$((GPUBOARD_LIMIT + 2))" 7 || die "an earlier push to $GPUBOARD_DEST hangs"
    else
        flock -n 7 || exit 0
    fi
    choose_new
    [ -n "$new" ] || exit 0
    status=0
    deliver 2>"$err" || status=$?
    case $status in
        0) arrived ;;
        124 | 137) echo "no answer within $GPUBOARD_LIMIT s" >>"$err" ;;
    esac
    failed
}

# deliver: the files in $new, by the way that GPUBOARD_DEST names.
deliver() {
    case ${GPUBOARD_DEST:-} in
        '') echo 'GPUBOARD_DEST is not set' >&2 && return 2 ;;
        *://*) echo "GPUBOARD_DEST is '$GPUBOARD_DEST', which this version does not know: give a folder or user@web:/path/data" >&2 && return 2 ;;
        /* | ./* | ../*)
            # shellcheck disable=SC2086 # one word a file
            timeout -k 1 "$GPUBOARD_LIMIT" "$LIB/to-folder.sh" "$GPUBOARD_DEST" "$HOST" "$SPOOL" $new
            ;;
        *:*)
            # shellcheck source=scripts/lib/to-sftp.sh
            . "$LIB/to-sftp.sh"
            to_sftp
            ;;
        *) echo "GPUBOARD_DEST is '$GPUBOARD_DEST', but must be an absolute folder or user@web:/path/data" >&2 && return 2 ;;
    esac
}
