#!/bin/sh
# gpu-check.sh: keep the three loops of gpu-run.sh alive on this GPU host. Cron calls it every minute.
#
#   gpu-check.sh [--conf FILE] [HOST] [DEST]   start whichever loop does not run, restart one that hangs
#   gpu-check.sh status [HOST]                 tell how they do; exit 0 only if all run, are fresh and arrive
#   gpu-check.sh kill [HOST]                   stop them, and all that they started
#
# HOST is this host's name on the board, `hostname -s` by default; kill alone stops the loops of every name.
# DEST is where snapshots go, GPUBOARD_DEST by default: a folder, or user@web:/path/data.
# A loop hangs when its last snapshot is older than three intervals. docs/hosts.md lists the settings.
set -eu
case $0 in */*) HERE=${0%/*} ;; *) HERE=. ;; esac
[ ! -h "$0" ] || HERE=$(dirname "$(readlink -f "$0")")
LIB=$HERE/lib
# shellcheck source=scripts/lib/common.sh
. "$LIB/common.sh"
# shellcheck source=scripts/lib/loops.sh
. "$LIB/loops.sh"

# check: starts what is not there, in turn with any other gpu-check.sh at work.
check() {
    [ -n "${GPUBOARD_DEST:-}" ] || die "GPUBOARD_DEST is not set: say where snapshots go, for example gpu-check.sh $HOST web:/srv/gpuboard/data"
    failed=0
    for task in 1 2 3; do
        look "$task"
        case $state in
            running) continue ;;
            hung) end_all "$RUN/$task" ;;
        esac
        start "$task" || failed=2
        [ ! -t 1 ] || echo "$HOST: task $task started"
    done
    return "$failed"
}

# report: a line a loop and one for the push.
report() {
    good=0
    for task in 1 2 3; do
        look "$task"
        case $task in 1) what='1 GPUs' ;; 2) what='2 processes' ;; 3) what='3 ps, host' ;; esac
        case $state in
            running) words="runs (pid $pid), last snapshot $age s ago" ;;
            hung) words="hangs (pid ${pid:-unknown}), last snapshot ${age:-unknown} s ago" ;;
            stopped) words='does not run' ;;
        esac
        [ "$state" = running ] || good=1
        printf '%-12s %s%s\n' "$what" "$words" "$(last_words "$RUN/$task.err")"
    done
    if [ -e "$SPOOL/push.err" ]; then
        good=1
        printf '%-12s fails: %s\n' push "$(cat "$SPOOL/push.err")"
    elif [ -s "$SPOOL/sent" ]; then
        read -r stamp <"$SPOOL/sent"
        seconds_up
        printf '%-12s last arrived %s s ago at %s\n' push "$((up - stamp))" "${GPUBOARD_DEST:-its destination}"
    else
        printf '%-12s nothing was sent yet\n' push
    fi
    return "$good"
}

last_words() { [ ! -s "$1" ] || printf '; it says: %s' "$(tail -n 1 "$1")"; }

# take_turn: one gpu-check.sh at a time for a host.
take_turn() {
    exec 7>>"$SPOOL/check"
    flock -w 30 7 || die "another gpu-check.sh for $HOST does not end"
}

# stop NAME...: ends all that runs for each, and removes its pipes.
stop() {
    for name in "$@"; do
        check_host "$name"
        spool_root
        [ -d "$GPUBOARD_SPOOL/$name" ] || continue
        open_spool "$name"
        take_turn
        end_all "$RUN/*"
        rm -f "$RUN/in" "$RUN/ack" "$RUN/ssh"
    done
}

# spooled: the names that have a spool here.
spooled() {
    spool_root
    for folder in "$GPUBOARD_SPOOL"/*/run; do
        folder=${folder%/run}
        [ ! -d "$folder" ] || printf '%s\n' "${folder##*/}"
    done
}

verb=start
while [ $# -gt 0 ]; do
    case $1 in
        -h | --help) print_help "$0" && exit ;;
        --conf) GPUBOARD_CONF=${2:?--conf needs a file} && shift ;;
        --) shift && break ;;
        -*) die "there is no option $1: see gpu-check.sh --help" ;;
        *) break ;;
    esac
    shift
done
case ${1:-} in kill | status) verb=$1 && shift ;; esac
[ $# -le 2 ] || die "too many words: see gpu-check.sh --help"
[ -z "${2:-}" ] || export GPUBOARD_DEST="$2"
load_settings
if [ "$verb" = kill ]; then
    # shellcheck disable=SC2046 # one word a name
    [ $# -gt 0 ] || set -- $(spooled)
    stop "$@"
    exit
fi
open_spool "${1:-$(own_name)}"
case $verb in
    start) take_turn && check ;;
    status) report ;;
esac
