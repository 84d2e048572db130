# shellcheck shell=sh disable=SC2154 # up: set by the script that reads this one
# Push new files in the spool to GPUBOARD_DEST.
# A file that was sent already is not sent again, so that it never looks fresh. One push runs at a time: one that hangs keeps the lock.

# choose_new_files: set new_files to those that GPUBOARD_DEST does not have yet, and headers to the first lines of all.
choose_new_files() {
    new_files='' headers='' sent_headers='' sent_dest=''
    if [ "$mode" != once ] && [ -s "$SPOOL/sent" ]; then
        {
            read -r _ sent_dest
            while IFS= read -r line; do sent_headers="$sent_headers$line;"; done
        } <"$SPOOL/sent"
        [ "$sent_dest" = "$GPUBOARD_DEST" ] || sent_headers=
    fi
    for file in gpus.csv processes.csv ps.txt host.txt; do
        [ -s "$SPOOL/$file" ] || continue
        IFS= read -r line <"$SPOOL/$file"
        headers="$headers$line
"
        case $sent_headers in *"$line;"*) ;; *) new_files="$new_files $file" ;; esac
    done
}

# record_success: remember what was sent, when and where, unless it was sent by `once`; ends by exit.
record_success() {
    if [ "$mode" = once ]; then
        renew_registration_check
        exit 0
    fi
    read_uptime
    printf '%s %s\n%s' "$up" "$GPUBOARD_DEST" "$headers" >"$SPOOL/sent" # only the next push reads it, which waits for our lock
    [ ! -e "$SPOOL/push.failed" ] || rm -f "$SPOOL/push.failed"
    exec 7>&- # an agent that hangs must not hold up the next push
    renew_registration_check
    exit 0
}

# renew_registration_check: renew the check in Consul, if gpu-check.sh --register was called.
renew_registration_check() {
    [ -e "$SPOOL/registered" ] || return 0
    # shellcheck source=scripts/lib/consul_registration.sh
    . "$LIB/consul_registration.sh"
    (renew_registration) 2>/dev/null || :
}

# record_failure: store the reason, the last line on stderr, for `gpu-check.sh status`; the next tick tries again.
record_failure() {
    # sftp always ends with "Connection closed", and our own mkdir and chmod of an existing folder are not the cause
    reason=$(awk 'NF && (last == "" || !/^(Connect(ed|ion closed)|remote (mkdir|setstat)|Couldn.t (create directory|setstat))/) {last = $0} END {print substr(last, 1, 300)}' "$stderr")
    case $reason in
        *'Host key verification failed'*) reason="the host key of $GPUBOARD_DEST is not known here: log in there once by hand, or add it to known_hosts" ;;
        *gpu-receive.sh:*'not found'*) reason="the key of this host is not enrolled at $GPUBOARD_DEST, but opens a shell there: run gpu-enrol.sh on the web host" ;;
    esac
    reason=${reason:-the connection was cut}
    if [ "$mode" = once ]; then
        say "the snapshot did not arrive at $GPUBOARD_DEST: $reason"
    else
        printf '%s\n' "$reason" >"$RUN/push.failed" && mv -f "$RUN/push.failed" "$SPOOL/push.failed"
    fi
    exit 1
}

# push_snapshots loop|once: send new files; with `once` all four files, and print errors. Runs in a subshell: it ends by exit.
push_snapshots() {
    mode=$1
    stderr=$RUN/push.stderr
    exec 7>>"$RUN/push"
    if [ "$mode" = once ]; then
        flock -w "$((GPUBOARD_LIMIT + 7))" 7 || die "an earlier push to $GPUBOARD_DEST is hanging"
    else
        flock -n 7 || exit 0
    fi
    (check_destination) 2>"$stderr" || record_failure # the settings file may have changed since the loops started
    choose_new_files
    [ -n "$new_files" ] || exit 0
    status=0
    send_files 2>"$stderr" || status=$?
    case $status in
        0) record_success ;;
        124 | 137) echo "no answer within $GPUBOARD_LIMIT s" >>"$stderr" ;;
    esac
    record_failure
}

# send_files: send new_files by the transport that GPUBOARD_DEST names.
send_files() {
    case $GPUBOARD_DEST in
        /*)
            # shellcheck disable=SC2086 # one word a file
            timeout -k 1 "$GPUBOARD_LIMIT" "$LIB/push_folder.sh" "$GPUBOARD_DEST" "$HOST" "$SPOOL" $new_files
            ;;
        ssh://*)
            # shellcheck source=scripts/lib/push_ssh.sh
            . "$LIB/push_ssh.sh"
            push_to_ssh
            ;;
        consul://*)
            # shellcheck source=scripts/lib/push_consul.sh
            . "$LIB/push_consul.sh"
            push_to_consul
            ;;
        *)
            # shellcheck source=scripts/lib/push_sftp.sh
            . "$LIB/push_sftp.sh"
            push_to_sftp
            ;;
    esac
}
