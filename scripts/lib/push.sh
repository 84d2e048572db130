#!/bin/sh
# lib/push.sh [once]: send what is new in the spool to GPUBOARD_DEST. Task 3 starts it; with `once` all four files go, and the exit code tells.
# A file that was sent already is not sent again, so that it never looks fresh. One push at a time: one that hangs keeps the lock.
set -eu
LIB=${0%/*}
# shellcheck source=scripts/lib/common.sh
. "$LIB/common.sh"

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
    printf '%s\n%s' "$up" "$headers" >"$RUN/push.sent.$$" && mv -f "$RUN/push.sent.$$" "$SPOOL/sent"
    rm -f "$SPOOL/push.err"
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
    printf '%s\n' "$reason" >"$RUN/push.why.$$" && mv -f "$RUN/push.why.$$" "$SPOOL/push.err"
    exit 1
}

mode=${1:-loop}
load_settings
open_spool "$HOST"
err=$RUN/push.err.$$
trap 'rm -f "$RUN"/*.$$' EXIT
exec 7>>"$RUN/push"
if [ "$mode" = once ]; then
    flock -w "$((GPUBOARD_LIMIT + 2))" 7 || die "an earlier push to ${GPUBOARD_DEST:-} hangs"
else
    flock -n 7 || exit 0
fi
choose_new
[ -n "$new" ] || exit 0
status=0
case ${GPUBOARD_DEST:-} in
    '')
        echo 'GPUBOARD_DEST is not set' >"$err"
        status=2
        ;;
    *://*)
        echo "GPUBOARD_DEST is '$GPUBOARD_DEST', which this version does not know: give a folder or user@web:/path/data" >"$err"
        status=2
        ;;
    /* | ./* | ../*)
        # shellcheck disable=SC2086 # one word a file
        timeout -k 1 "$GPUBOARD_LIMIT" "$LIB/to-folder.sh" "$GPUBOARD_DEST" "$HOST" "$SPOOL" $new 2>"$err" || status=$?
        ;;
    *:*)
        # shellcheck source=scripts/lib/to-sftp.sh
        . "$LIB/to-sftp.sh"
        to_sftp 2>"$err" || status=$?
        ;;
    *)
        echo "GPUBOARD_DEST is '$GPUBOARD_DEST', but must be an absolute folder or user@web:/path/data" >"$err"
        status=2
        ;;
esac
case $status in
    0) arrived ;;
    124 | 137) echo "no answer within $GPUBOARD_LIMIT s" >>"$err" ;;
esac
failed
