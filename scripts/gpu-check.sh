#!/bin/sh
# gpu-check.sh: keep the three loops of gpu-run.sh running on this GPU host.
# Cron runs it every minute.
#
#   gpu-check.sh [HOST] [DEST]   start loops that are not running; restart loops
#                                that hang or push to another DEST
#   gpu-check.sh status [HOST]   print the state of the loops; exit 0 only if all
#                                run, are fresh, and their snapshots arrive
#   gpu-check.sh kill [HOST]     stop the loops and everything they started
#   gpu-check.sh --register [HOST] [DEST]
#                                also register the host in Consul, with a check
#                                that every push renews
#   gpu-check.sh --deregister [HOST]
#                                undo --register; kill does not, so that Consul
#                                shows a stopped collector
#
# HOST is this host's name on the board, `hostname -s` by default. Without it,
# status and kill apply to every name that was ever started here.
# DEST is where snapshots go, GPUBOARD_DEST by default: ssh://user@web, a
# folder, user@web:/path/data, or consul://addr:port/prefix. --conf FILE names
# the settings file.
# A loop hangs when its last snapshot is older than three intervals and than
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

# acquire_host_lock: let one gpu-check.sh at a time work for a host.
acquire_host_lock() {
    exec 7>>"$SPOOL/check"
    flock -w 30 7 || die "another gpu-check.sh for $HOST has been running for 30 s; try again"
}

# start_missing_loops: start the loops that do not run. A DEST given to this call or in its environment is kept; if it changes, the loops are restarted.
start_missing_loops() {
    acquire_host_lock
    previous_dest=
    [ ! -r "$SPOOL/given" ] || IFS= read -r previous_dest <"$SPOOL/given" || :
    if [ -n "$requested_dest" ] && [ "$requested_dest" != "$previous_dest" ] && printf '%s\n' "$requested_dest" >"$SPOOL/given"; then
        end_holders "$RUN/*"
    fi
    code=0
    for task in 1 2 3; do
        read_loop_state "$task"
        case $state in
            running) continue ;;
            hung) end_holders "$RUN/$task" ;;
        esac
        start_loop "$task" || code=2
        [ ! -t 1 ] || echo "$HOST: task $task started"
    done
    return "$code"
}

# kill_loops: end all processes of HOST, and remove its pipes.
kill_loops() {
    acquire_host_lock
    end_holders "$RUN/*"
    rm -f "$RUN/in" "$RUN/ack" "$RUN/ssh" "$RUN/retry"
}

# change_registration register|deregister: register HOST as a service in Consul, or deregister it.
change_registration() {
    # shellcheck source=scripts/lib/consul_registration.sh
    . "$LIB/consul_registration.sh"
    "${1}_host" || exit 2
}

# deregister_if_registered: deregister HOST if it was registered.
deregister_if_registered() { [ ! -e "$SPOOL/registered" ] || (change_registration deregister) || code=2; }

# list_started_hosts: print the names that were ever started here.
list_started_hosts() {
    for folder in "$GPUBOARD_SPOOL"/*/run; do
        folder=${folder%/run}
        [ ! -d "$folder" ] || printf '%s ' "${folder##*/}"
    done
}

# run_for_hosts FUNCTION [NAME]: call the function for this name, or for every name that was ever started here; ends by exit.
run_for_hosts() {
    set_spool_root
    names=$(list_started_hosts)
    if [ $# -gt 1 ]; then
        check_host_name "$2"
        case " $names" in *" $2 "*) ;; *) say "the loops have never been started here for $2${names:+ (only for: $names)}" && exit 1 ;; esac
        names=$2
    fi
    [ -n "$names" ] || say 'the loops have never been started here'
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
        -*) die "unknown option $1: see gpu-check.sh --help" ;;
        kill | status)
            [ -z "$verb$host" ] || die "'$1' must come first: see gpu-check.sh --help"
            verb=$1
            ;;
        *)
            words=$((words + 1))
            case $words in 1) host=$1 ;; 2) dest=$1 ;; *) words=9 ;; esac
            ;;
    esac
    shift
done
[ "$words" -le 2 ] && [ -z "$verb" ] || [ "$words" -le 1 ] || die 'too many arguments: see gpu-check.sh --help'
[ -z "$verb" ] || [ "$registered" = no ] || die '--register cannot be combined with status, kill or --deregister'
[ -z "$dest" ] || export GPUBOARD_DEST="$dest"
requested_dest=${GPUBOARD_DEST:-}
load_settings
case $verb in
    status) run_for_hosts print_status ${host:+"$host"} ;;
    kill) run_for_hosts kill_loops ${host:+"$host"} ;;
    deregister) run_for_hosts deregister_if_registered ${host:+"$host"} ;;
esac
host=${host:-$(print_own_name)}
require_destination "$host"
check_destination
open_spool "$host"
rm -f "$SPOOL/check.failed"
start_missing_loops
[ "$registered" = no ] || change_registration register
