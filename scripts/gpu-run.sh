#!/bin/sh
# gpu-run.sh: take snapshots of this GPU host.
#
#   gpu-run.sh 1      loop: the GPUs, every 20 s by default
#   gpu-run.sh 2      loop: the processes on them, every 20 s
#   gpu-run.sh 3      loop: users, commands and the host, every 10 s, and push
#                     everything
#   gpu-run.sh once   take and push one full snapshot now; exit 0 if it arrived,
#                     even if it reports a failure
#
# HOST is this host's name on the board, `hostname -s` by default.
# GPUBOARD_DEST is where snapshots go: ssh://user@web, a folder,
# user@web:/path/data, or consul://addr:port/prefix.
# Settings come from the environment or gpuboard.conf; docs/hosts.md lists them.
# gpu-check.sh starts and watches the three loops; do not start them by hand.
set -eu
case $0 in */*) HERE=${0%/*} ;; *) HERE=. ;; esac
[ ! -h "$0" ] || HERE=$(dirname "$(readlink -f "$0")")
LIB=$HERE/lib
# shellcheck source=scripts/lib/common.sh
. "$LIB/common.sh"

# take_snapshots TASK: write the snapshots of a task, each complete or not at all.
take_snapshots() {
    read_clock
    set_interval "$1"
    snapshot_files='' write_failed=''
    # shellcheck source=/dev/null
    case $1 in
        1) . "$LIB/collect.sh" && collect_gpus ;;
        2) . "$LIB/collect.sh" && collect_processes ;;
        3) . "$LIB/slow_facts.sh" && update_slow_facts && . "$LIB/ps.sh" && collect_ps && . "$LIB/host.sh" && collect_host ;;
    esac
    # shellcheck disable=SC2086 # one word a file
    [ -z "$snapshot_files" ] || mv -f $snapshot_files "$SPOOL/"
}

# open_work_folder FOLDER: write snapshots in FOLDER, from which they are moved. A loop always uses the same one, so that a killed tick leaves nothing behind.
open_work_folder() {
    # shellcheck source=scripts/lib/snapshot.sh
    . "$LIB/snapshot.sh"
    NEW=$1
    [ -d "$NEW" ] || mkdir "$NEW"
    ulimit -f 16384 # no file of ours grows past 8 MiB
}

# run_tick TASK: take one round of snapshots. It runs in its own process, so that a failure never ends the loop, and a change of settings or
# scripts takes effect at the next tick.
run_tick() {
    open_work_folder "$RUN/new.$1"
    take_snapshots "$1"
    read_uptime
    [ -n "$write_failed" ] || printf '%s %s %s\n' "$PPID" "$up" "$every" >"$RUN/$1"
    if [ "$1" = 3 ]; then
        (push_from_spool loop) >/dev/null 2>&1 & # in the background, so that a push that hangs delays nothing
    fi
}

# run_loop TASK: run ticks for ever. RUN/TASK is the lock of the loop (fd 9, not inherited), marks every process that it starts (fd 8),
# and holds the loop's pid, the time of its last snapshot (seconds since boot) and its interval.
run_loop() {
    exec 9>>"$RUN/$1"
    flock -w 1 9 || die "the loop of task $1 is already running for $HOST"
    chmod 0700 "$GPUBOARD_SPOOL"
    kill_holders "$RUN/$1" # we have the lock, so any other process with this file open was started by a dead loop
    exec 8<"$RUN/$1"
    read_uptime
    set_interval "$1"
    printf '%s %s %s\n' "$$" "$up" "$every" >"$RUN/$1"
    first_delay= # shorten the first wait at random, so that hosts that cron starts in the same second do not push in the same second for ever
    [ "$1" != 3 ] || first_delay=$(od -An -N2 -tu2 /dev/urandom 9>&-) || :
    while :; do
        read_uptime
        began_up=$up
        "$HERE/gpu-run.sh" tick "$1" 2>"$RUN/$1.err" 9>&- || :
        # shellcheck disable=SC3013 # -ef: in every sh that we know, and in POSIX since 2024
        [ "$RUN/$1" -ef /dev/fd/9 ] || exit 0 # the spool was removed: the next gpu-check.sh starts again
        every=
        read -r _ _ every <"$RUN/$1" || :
        read_uptime
        remaining=$((began_up + ${every:-20} - up - ${first_delay:-0} % ${every:-20}))
        first_delay=
        [ "$remaining" -ge 1 ] || remaining=1
        sleep "$remaining" 9>&-
    done
}

# push_from_spool loop|once: push the snapshots in the spool; ends by exit.
push_from_spool() {
    # shellcheck source=scripts/lib/push.sh
    . "$LIB/push.sh"
    push_snapshots "$1"
}

# run_once: take all snapshots now, and push them.
run_once() {
    check_destination
    for folder in "$RUN"/once.*; do
        [ -d "/proc/${folder##*.}" ] || rm -rf "$folder" # left by one that was killed
    done
    trap 'rm -rf "$RUN/once.$$"' EXIT
    trap 'exit 143' TERM INT HUP
    open_work_folder "$RUN/once.$$"
    for task in 1 2 3; do
        take_snapshots "$task"
        [ -z "$write_failed" ] || die "the snapshot could not be written to $SPOOL: is its disk full?" # an old snapshot must not be sent as new
    done
    (push_from_spool once)
}

case ${1:-}:$# in
    1:1 | 2:1 | 3:1 | once:1) ;;
    tick:2 | push:1) ;; # internal
    -h:* | --help:*) print_help "$0" && exit ;;
    *) print_help "$0" >&2 && exit 2 ;;
esac
load_settings
open_spool "${HOST:-$(print_own_name)}"
case $1 in
    once) run_once ;;
    tick) run_tick "$2" ;;
    push) push_from_spool loop ;;
    *) run_loop "$1" ;;
esac
