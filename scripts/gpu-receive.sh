#!/bin/sh
# gpu-receive.sh: on the web host, take the snapshots of one GPU host over ssh.
# It is the command of that host's key (gpu-enrol.sh writes the line), and lets
# it replace the four files of HOST, whole or not at all, and nothing else.
#
#   gpu-receive.sh [--data FOLDER] [--idle SECONDS] HOST
#
# FOLDER is the data folder, GPUBOARD_DATA of gpuboard.conf by default. An
# update has at most 8 MiB, and there is at most one a second. A connection
# that brings none for SECONDS, 300 by default, is ended. A new connection
# takes the place of an older one of the same HOST.
# What is refused is told to the sender, and stands in FOLDER/receive.log.
set -eu
case $0 in */*) HERE=${0%/*} ;; *) HERE=. ;; esac
[ ! -h "$0" ] || HERE=$(dirname "$(readlink -f "$0")")
case $HERE in /*) LIB=$HERE/lib ;; *) LIB=$PWD/$HERE/lib ;; esac # we go elsewhere
# shellcheck source=scripts/lib/common.sh
. "$LIB/common.sh"
# shellcheck source=scripts/lib/refuse.sh
. "$LIB/refuse.sh"

# enter_data: from here on all names are seen from the data folder, whatever becomes of its path. It is never made here.
enter_data() {
    data=$given
    if [ -z "$data" ]; then
        more_key=GPUBOARD_DATA
        load_settings
        data=${GPUBOARD_DATA:-}
    fi
    case $data in
        /*) ;;
        *) die "the data folder is '$data', but must be absolute: set GPUBOARD_DATA, or give --data" ;;
    esac
    CDPATH='' cd -P -- "$data" 2>/dev/null || {
        echo "refused the folder $data is not there on the web host (not mounted?)"
        exit 1
    }
}

# make_folders: the host's own, and .receive/HOST for what is not whole yet; a link in their place may lead anywhere, and is not followed.
make_folders() {
    for folder in .receive ".receive/$HOST" "$HOST"; do
        [ ! -h "$folder" ] || { refuse "data/$folder is a link on the web host, and links are not followed" && exit 1; }
        [ -d "$folder" ] || mkdir "$folder" 2>/dev/null || [ -d "$folder" ] || { refuse "the folder data/$folder cannot be made on the web host: is its disk full?" && exit 1; }
    done
}

# take_over: one connection a host; an older one hangs, or is of a host with the same name. Whoever holds the lock also has the file open.
take_over() {
    exec 9>>".receive/$HOST/lock"
    if flock -n 9; then return; fi
    kill_holders "$PWD/.receive/$HOST/lock"
    flock -w 5 9 || { refuse 'an older connection of this host cannot be ended' && exit 1; }
    note 'a new connection has taken the place of an older one'
}

given='' idle=300
while [ $# -gt 0 ]; do
    case $1 in
        -h | --help) print_help "$0" && exit ;;
        --data | --idle) [ $# -ge 2 ] || die "$1 needs a word behind it: see gpu-receive.sh --help" ;;
    esac
    case $1 in
        --data) given=$2 && shift ;;
        --idle) idle=$2 && shift ;;
        -*) die "there is no option $1: see gpu-receive.sh --help" ;;
        *) break ;;
    esac
    shift
done
[ $# = 1 ] || die 'one HOST is needed: see gpu-receive.sh --help'
check_host "$1"
case $idle in '' | *[!0-9]* | 0* | ??????*) die "--idle is '$idle', but must be whole seconds" ;; esac
HOST=$1
enter_data
case ${SSH_ORIGINAL_COMMAND:-gpu-receive.sh} in
    gpu-receive.sh) ;;
    *) refuse "this key takes snapshots of $HOST and no commands" && exit 1 ;;
esac
make_folders
take_over
rm -f ".receive/$HOST/"*.csv ".receive/$HOST/"*.txt # of one that was killed
code=0
# the time limit starts anew about five times within it, and only after a whole update
while :; do
    timeout -k 1 "$idle" "$LIB/receive.sh" "$HOST" "$((idle / 5))" || code=$?
    [ "$code" = 0 ] || break
done
[ "$code" != 124 ] || note "the connection brought no whole update within $idle s, and was ended"
