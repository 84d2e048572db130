#!/bin/sh
# lib/receive.sh HOST SECONDS DATA PRIVATE HOST_PRIVATE: read updates from stdin, in DATA/HOST, and end after the first that comes later
# than SECONDS. PRIVATE has the log, and HOST_PRIVATE the files of this host.
# An update is a line `gpuboard 1 push SIZE`, then SIZE bytes: one to four snapshot files, concatenated.
# Each is answered by `ok`, or by `refused` and a sentence. `read` and `head -c` read no byte too many.
set -eu
umask 027
export LC_ALL=C
[ $# = 5 ] || exit 1 # called by a receiver of an older version: the host connects again
HOST=$1 max_seconds=$2 data=$3 PRIVATE=$4 host_private=$5
case $0 in */*) LIB=${0%/*} ;; *) LIB=. ;; esac
# shellcheck source=scripts/lib/reject_log.sh
. "$LIB/reject_log.sh"
# shellcheck source=scripts/lib/host_folder.sh
. "$LIB/host_folder.sh"
MAX_BYTES=8388608
ulimit -f 32768 # 16 MiB per file
# shellcheck disable=SC3045 # -v: in every sh that we know
ulimit -v 262144 2>/dev/null || : # KiB: an endless line does not fill the memory

# read_uptime_cs: set now_cs to the centiseconds since boot.
read_uptime_cs() {
    read -r now_cs _ </proc/uptime
    now_cs=${now_cs%.*}${now_cs#*.}
}

# limit_rate: take one update per second, over all connections of this host.
limit_rate() {
    last_cs=
    read_uptime_cs
    [ ! -s "$host_private/last" ] || read -r last_cs <"$host_private/last" || :
    case $last_cs in *[!0-9]*) last_cs= ;; esac
    if [ -n "$last_cs" ] && [ "$last_cs" -le "$now_cs" ] && [ "$((now_cs - last_cs))" -lt 100 ]; then
        rest=$((200 - now_cs + last_cs))
        [ "$rest" -lt 200 ] || rest=199
        sleep "0.${rest#1}"
        read_uptime_cs
    fi
    printf '%s\n' "$now_cs" >"$host_private/last"
}

# receive_update SIZE: check the files of one update in .new, then rename them. An invalid update is refused, and the connection stays.
receive_update() {
    is_in_host_folder "$data" || { set_folder_sentences "$data" && enter_host_folder "$data" && make_new_folder; } || { refuse_update "$rejection" && exit 1; }
    report=$(head -c "$1" | awk -v host="$HOST" -v size="$1" -v new=.new -f "$LIB/parse_update.awk" 2>/dev/null) || :
    word=${report%% *} details=${report#* }
    case $word in
        files) ;;
        wrong)
            refuse_update "$details"
            rm -f .new/*
            return
            ;;
        cut) exit 1 ;;
        *) refuse_update 'it could not be saved on the web host: is its disk full?' && exit 1 ;;
    esac
    # shellcheck disable=SC2086 # one word a file
    report=$(cd .new && exec mv -f $details .. 2>&1) || {
        refuse_update "the files could not be put into data/$HOST on the web host: $(printf '%s\n' "$report" | tail -n 1)"
        rm -f .new/*
        return
    }
    echo ok
}

read_uptime_cs
started_cs=$now_cs
while read -r word version verb size rest; do
    case $word.$version.$verb.$rest in
        gpuboard.1.push.) ;;
        *) refuse_update 'this version of gpu-receive.sh does not know this kind of update' && exit 1 ;;
    esac
    case $size in
        '' | *[!0-9]* | 0* | ?????????*) size=too-many ;;
        *) [ "$size" -le "$MAX_BYTES" ] || size=too-many ;;
    esac
    [ "$size" != too-many ] || { refuse_update "an update has at most $MAX_BYTES bytes" && exit 1; }
    limit_rate
    receive_update "$size"
    [ "$((now_cs - started_cs))" -lt "${max_seconds}00" ] || exit 0
done
exit 1
