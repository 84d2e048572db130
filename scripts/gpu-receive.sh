#!/bin/sh
# gpu-receive.sh: on the web host, receive the snapshots of one GPU host by ssh.
# It is the only command of that host's key (gpu-enrol.sh writes the line): it
# replaces the four files of HOST, completely or not at all, and nothing else.
#
#   gpu-receive.sh [--data FOLDER] [--idle SECONDS] HOST
#
# FOLDER is the data folder, by default GPUBOARD_DATA in gpuboard.conf. An
# update has at most 8 MiB, and at most one per second is accepted. Connections
# that send none for SECONDS (default 300) are closed. A new connection replaces
# an older one of the same HOST.
# Refusals are reported to the sender and logged in receive.log, which is with
# the locks in the folder receive/ of GPUBOARD_STATE, or in
# ~/.local/state/gpuboard/receive if this account has no such folder. FOLDER
# must not be writable for other accounts, except with the sticky bit.
set -eu
case $0 in */*) HERE=${0%/*} ;; *) HERE=. ;; esac
[ ! -h "$0" ] || HERE=$(dirname "$(readlink -f "$0")")
case $HERE in /*) LIB=$HERE/lib ;; *) LIB=$PWD/$HERE/lib ;; esac # the current folder changes
# shellcheck source=scripts/lib/common.sh
. "$LIB/common.sh"
# shellcheck source=scripts/lib/reject_log.sh
. "$LIB/reject_log.sh"
# shellcheck source=scripts/lib/host_folder.sh
. "$LIB/host_folder.sh"

# find_data_folder: set data, and state to the state folder of the settings, if they name one.
find_data_folder() {
    web_keys=yes
    data=$data_option
    if [ -z "$data" ]; then
        load_settings
        data=${GPUBOARD_DATA:-} state=${GPUBOARD_STATE:-}
    else # invalid settings do not matter then
        state=$(load_settings 2>/dev/null && printf '%s\n' "${GPUBOARD_STATE:-}") || state=
    fi
    case $data in
        /*) ;;
        *) die "the data folder is '$data', but must be absolute: set GPUBOARD_DATA, or use --data" ;;
    esac
}

# open_private_folder: set PRIVATE to the folder of the log and the locks. It belongs to this account alone, so that nobody can put a link there.
open_private_folder() {
    case $state in
        /*) [ -d "$state" ] && [ -O "$state" ] || state= ;; # it belongs to another account's builder
        *) state= ;;
    esac
    if [ -z "$state" ]; then
        home=${HOME:-$(getent passwd "$(id -u)" | cut -d: -f6)}
        case ${XDG_STATE_HOME:-} in /*) state=$XDG_STATE_HOME/gpuboard ;; *) state=$home/.local/state/gpuboard ;; esac
    fi
    private=$state/receive
    [ -d "$private" ] || (umask 077 && mkdir -p "$private") 2>/dev/null || [ -d "$private" ] ||
        refuse_and_exit "the folder $private cannot be created on the web host: let $(id -un) write there, or set GPUBOARD_STATE"
    # shellcheck disable=SC2046 # two words
    if [ -h "$private" ] || [ ! -O "$private" ] || [ ! -O "$state" ] || can_others_write "$state" $(stat -c '%a %g' "$state/."); then mode=; else mode=$(stat -c %a "$private"); fi
    case $mode in
        *00) ;;
        *) refuse_and_exit "the folder $private on the web host must belong to $(id -un) alone and must not be a link: chmod go-w $state, chmod 0700 $private" ;;
    esac
    PRIVATE=$private
}

# refuse_and_exit MESSAGE...: refuse the connection.
refuse_and_exit() {
    refuse_update "$@"
    exit 1
}

# take_over_host: allow one connection per host: an older one hangs, or belongs to a host of the same name.
# Two boards of one account have separate locks, by the path of their data folders.
take_over_host() {
    host_private=$PRIVATE/$(printf '%s\n' "$data_path" | cksum | cut -d' ' -f1)/$HOST
    (umask 077 && mkdir -p "$host_private") 2>/dev/null || refuse_and_exit "the folder $host_private cannot be created on the web host: is its disk full?"
    exec 9>>"$host_private/lock"
    if flock -n 9; then return; fi
    kill_holders "$host_private/lock"
    flock -w 5 9 || refuse_and_exit 'an older connection of this host cannot be ended'
    log_event 'a new connection has replaced an older one'
}

data_option='' idle=300
while [ $# -gt 0 ]; do
    case $1 in
        -h | --help) print_help "$0" && exit ;;
        --data | --idle) [ $# -ge 2 ] || die "$1 needs a value: see gpu-receive.sh --help" ;;
    esac
    case $1 in
        --data) data_option=$2 && shift ;;
        --idle) idle=$2 && shift ;;
        -*) die "unknown option $1: see gpu-receive.sh --help" ;;
        *) break ;;
    esac
    shift
done
[ $# = 1 ] || die 'one HOST is needed: see gpu-receive.sh --help'
check_host_name "$1"
case $idle in '' | *[!0-9]* | 0* | ??????*) die "--idle is '$idle', but must be whole seconds" ;; esac
HOST=$1 PRIVATE=''
find_data_folder
open_private_folder
case ${SSH_ORIGINAL_COMMAND:-gpu-receive.sh} in
    gpu-receive.sh) ;;
    *) refuse_and_exit "this key takes snapshots of $HOST and no commands" ;;
esac
set_folder_sentences "$data"
enter_host_folder "$data" || refuse_and_exit "$rejection"
take_over_host
make_new_folder || refuse_and_exit "$rejection" # the old one has files of a receiver that was killed
code=0
# the time limit is restarted about five times within it, and only after a complete update
while :; do
    timeout -k 1 "$idle" "$LIB/receive.sh" "$HOST" "$((idle / 5))" "$data" "$PRIVATE" "$host_private" || code=$?
    [ "$code" = 0 ] || break
    is_in_host_folder "$data" || { enter_host_folder "$data" && make_new_folder; } || refuse_and_exit "$rejection"
done
[ "$code" != 124 ] || log_event "the connection sent no complete update within $idle s and was closed"
