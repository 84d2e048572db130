#!/bin/sh
# gpu-check.sh: keep the three loops of gpu-run.sh alive on this GPU host.
# Cron calls it every minute.
#
#   gpu-check.sh [HOST] [DEST]   start whichever loop does not run, restart one
#                                that hangs, or that pushes elsewhere than DEST
#   gpu-check.sh status [HOST]   print their state; exit 0 only if all run, are
#                                fresh, and what they take arrives
#   gpu-check.sh kill [HOST]     stop them, and all that they started
#   gpu-check.sh --register [HOST] [DEST]
#                                the same as without, and register the host in
#                                Consul, with a check that every push renews
#   gpu-check.sh --deregister [HOST]
#                                take that back; kill does not, so that Consul
#                                shows a stopped collector
#
# HOST is this host's name on the board, `hostname -s` by default. status and
# kill without it are about every name that was ever started here.
# DEST is where snapshots go, GPUBOARD_DEST by default: ssh://user@web, a
# folder, user@web:/path/data, or consul://addr:port/prefix. --conf FILE names
# the settings file.
# A loop hangs when its last snapshot is older than three intervals, and than
# three time limits. docs/hosts.md lists the settings.
set -eu
case $0 in */*) HERE=${0%/*} ;; *) HERE=. ;; esac
[ ! -h "$0" ] || HERE=$(dirname "$(readlink -f "$0")")
LIB=$HERE/lib
# shellcheck source=scripts/lib/common.sh
. "$LIB/common.sh"
# shellcheck source=scripts/lib/loops.sh
. "$LIB/loops.sh"
# shellcheck source=scripts/lib/status.sh
. "$LIB/status.sh"

# take_turn: one gpu-check.sh at a time for a host.
take_turn() {
    exec 7>>"$SPOOL/check"
    flock -w 30 7 || die "another gpu-check.sh for $HOST has been at work for 30 s; try again"
}

# start_missing: starts the loops that are not there. The DEST of a call (or its environment) is theirs for life: with another one they begin anew.
start_missing() {
    take_turn
    given_before=
    [ ! -r "$SPOOL/given" ] || IFS= read -r given_before <"$SPOOL/given" || :
    if [ -n "$given" ] && [ "$given" != "$given_before" ] && printf '%s\n' "$given" >"$SPOOL/given"; then
        end_holders "$RUN/*"
    fi
    code=0
    for task in 1 2 3; do
        look "$task"
        case $state in
            running) continue ;;
            hung) end_holders "$RUN/$task" ;;
        esac
        start_loop "$task" || code=2
        [ ! -t 1 ] || echo "$HOST: task $task started"
    done
    return "$code"
}

# kill_loops: ends all that runs for HOST, and removes its pipes.
kill_loops() {
    take_turn
    end_holders "$RUN/*"
    rm -f "$RUN/in" "$RUN/ack" "$RUN/ssh" "$RUN/retry"
}

# in_consul register|deregister: HOST as a service of Consul's.
in_consul() {
    # shellcheck source=scripts/lib/register.sh
    . "$LIB/register.sh"
    "$1" || exit 2
}

# take_back: it is one no longer.
take_back() { [ ! -e "$SPOOL/registered" ] || (in_consul deregister) || code=2; }

# spooled: the names that were ever started here.
spooled() {
    for folder in "$GPUBOARD_SPOOL"/*/run; do
        folder=${folder%/run}
        [ ! -d "$folder" ] || printf '%s ' "${folder##*/}"
    done
}

# for_each FUNCTION [NAME]: for this name, or for all that were ever started here.
for_each() {
    spool_root
    names=$(spooled)
    if [ $# -gt 1 ]; then
        check_host "$2"
        case " $names" in *" $2 "*) ;; *) say "nothing was ever started here for $2${names:+ (but for: $names)}" && exit 1 ;; esac
        names=$2
    fi
    [ -n "$names" ] || say 'nothing was ever started here'
    code=0
    [ -n "$names" ] || [ "$1" = kill_loops ] || code=1
    for name in $names; do
        open_spool "$name"
        "$1"
    done
    exit "$code"
}

verb='' host='' dest='' words=0 registered=no
while [ $# -gt 0 ]; do
    case $1 in
        -h | --help) print_help "$0" && exit ;;
        --conf)
            [ $# -ge 2 ] || die '--conf needs a file'
            GPUBOARD_CONF=$2
            shift
            ;;
        --register) registered=yes ;;
        --deregister) verb=deregister ;;
        -*) die "there is no option $1: see gpu-check.sh --help" ;;
        kill | status)
            [ -z "$verb$host" ] || die "'$1' comes first: see gpu-check.sh --help"
            verb=$1
            ;;
        *)
            words=$((words + 1))
            case $words in 1) host=$1 ;; 2) dest=$1 ;; *) words=9 ;; esac
            ;;
    esac
    shift
done
[ "$words" -le 2 ] && [ -z "$verb" ] || [ "$words" -le 1 ] || die 'too many words: see gpu-check.sh --help'
[ -z "$verb" ] || [ "$registered" = no ] || die '--register goes with neither status, kill nor --deregister'
[ -z "$dest" ] || export GPUBOARD_DEST="$dest"
given=${GPUBOARD_DEST:-}
load_settings
case $verb in
    status) for_each print_status ${host:+"$host"} ;;
    kill) for_each kill_loops ${host:+"$host"} ;;
    deregister) for_each take_back ${host:+"$host"} ;;
esac
check_dest
open_spool "${host:-$(own_name)}"
start_missing
[ "$registered" = no ] || in_consul register
