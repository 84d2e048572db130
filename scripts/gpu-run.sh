#!/bin/sh
# gpu-run.sh: take snapshots of this GPU host.
#
#   gpu-run.sh 1      loop: the GPUs, every 20 s by default
#   gpu-run.sh 2      loop: the processes on them, every 20 s
#   gpu-run.sh 3      loop: users, commands and the host, every 10 s, and push
#                     everything
#   gpu-run.sh once   one full snapshot now, pushed to GPUBOARD_DEST; exit 0 if
#                     it arrived, also when it tells of a failure
#
# HOST is this host's name on the board, `hostname -s` by default.
# GPUBOARD_DEST says where snapshots go: ssh://user@web, a folder,
# user@web:/path/data, or consul://addr:port/prefix.
# Settings come from the environment or gpuboard.conf; docs/hosts.md lists them.
# gpu-check.sh keeps the three loops alive; nobody needs to start them by hand.
set -eu
case $0 in */*) HERE=${0%/*} ;; *) HERE=. ;; esac
[ ! -h "$0" ] || HERE=$(dirname "$(readlink -f "$0")")
LIB=$HERE/lib
# shellcheck source=scripts/lib/common.sh
. "$LIB/common.sh"

# take TASK: its snapshots, each whole or not at all.
take() {
    read_clock
    set_every "$1"
    made='' missed=''
    # shellcheck source=/dev/null
    case $1 in
        1) . "$LIB/told.sh" && take_gpus ;;
        2) . "$LIB/told.sh" && take_processes ;;
        3) . "$LIB/minute.sh" && ask_minute_facts && . "$LIB/ps.sh" && take_ps && . "$LIB/host.sh" && take_host ;;
    esac
    # shellcheck disable=SC2086 # one word a file
    [ -z "$made" ] || mv -f $made "$SPOOL/"
}

# start_work FOLDER: snapshots are written in FOLDER and moved from there; a loop always uses the same one, so a killed tick leaves nothing.
start_work() {
    # shellcheck source=scripts/lib/snapshot.sh
    . "$LIB/snapshot.sh"
    NEW=$1
    [ -d "$NEW" ] || mkdir "$NEW"
    ulimit -f 16384 # no file of ours grows past 8 MiB
}

# tick TASK: it is a process of its own, so that what goes wrong in it never ends the loop, and a change of the settings
# or of these scripts counts from the next tick on.
tick() {
    start_work "$RUN/new.$1"
    take "$1"
    seconds_up
    [ -n "$missed" ] || printf '%s %s %s\n' "$PPID" "$up" "$every" >"$RUN/$1"
    if [ "$1" = 3 ]; then
        (push_from_spool loop) >/dev/null 2>&1 & # in the background: a push that hangs delays nothing
    fi
}

# loop TASK: RUN/TASK is the lock of the loop (fd 9, in no child), the mark of all that it starts (fd 8),
# and holds the loop's pid, the time of its last snapshot (seconds since boot) and its interval.
loop() {
    exec 9>>"$RUN/$1"
    flock -w 1 9 || die "the loop of task $1 runs already for $HOST"
    chmod 0700 "$GPUBOARD_SPOOL"
    kill_holders "$RUN/$1" # we have the lock, so whatever else bears the mark was started by a loop that is dead
    exec 8<"$RUN/$1"
    seconds_up
    set_every "$1"
    printf '%s %s %s\n' "$$" "$up" "$every" >"$RUN/$1"
    early= # hosts that cron starts in the same second must not push in the same second for ever: the first wait is as short as chance will have it
    [ "$1" != 3 ] || early=$(od -An -N2 -tu2 /dev/urandom 9>&-) || :
    while :; do
        seconds_up
        began_up=$up
        "$HERE/gpu-run.sh" tick "$1" 2>"$RUN/$1.err" 9>&- || :
        # shellcheck disable=SC3013 # -ef: in every sh that we know, and in POSIX since 2024
        [ "$RUN/$1" -ef /dev/fd/9 ] || exit 0 # the spool was removed under us: the next gpu-check.sh begins anew
        every=
        read -r _ _ every <"$RUN/$1" || :
        seconds_up
        rest=$((began_up + ${every:-20} - up - ${early:-0} % ${every:-20}))
        early=
        [ "$rest" -ge 1 ] || rest=1
        sleep "$rest" 9>&-
    done
}

# push_from_spool loop|once: ends by exit.
push_from_spool() {
    # shellcheck source=scripts/lib/push.sh
    . "$LIB/push.sh"
    push "$1"
}

once() {
    check_dest
    for folder in "$RUN"/once.*; do
        [ -d "/proc/${folder##*.}" ] || rm -rf "$folder" # of one that was killed
    done
    trap 'rm -rf "$RUN/once.$$"' EXIT
    trap 'exit 143' TERM INT HUP
    start_work "$RUN/once.$$"
    for task in 1 2 3; do
        take "$task"
        [ -z "$missed" ] || die "the snapshot could not be written to $SPOOL: is its disk full?" # an old one must not go out as new
    done
    (push_from_spool once)
}

case ${1:-}:$# in
    1:1 | 2:1 | 3:1 | once:1) ;;
    tick:2 | push:1) ;; # for ourselves
    -h:* | --help:*) print_help "$0" && exit ;;
    *) print_help "$0" >&2 && exit 2 ;;
esac
load_settings
open_spool "${HOST:-$(own_name)}"
case $1 in
    once) once ;;
    tick) tick "$2" ;;
    push) push_from_spool loop ;;
    *) loop "$1" ;;
esac
