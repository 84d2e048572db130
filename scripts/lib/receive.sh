#!/bin/sh
# lib/receive.sh HOST SECONDS DATA PRIVATE OWN: takes updates from stdin, in DATA/HOST, and ends after the first that comes later than
# SECONDS. PRIVATE has the log, and OWN in it what is of this host.
# An update is a line `gpuboard 1 push SIZE`, then SIZE bytes: one to four snapshot files, one after the other.
# Each is answered by `ok`, or by `refused` and a sentence. `read` takes no byte too many, nor does `head -c`.
set -eu
umask 027
export LC_ALL=C
[ $# = 5 ] || exit 1 # of a connection that is older than this version: the host opens another
HOST=$1 until=$2 data=$3 PRIVATE=$4 own=$5
case $0 in */*) LIB=${0%/*} ;; *) LIB=. ;; esac
# shellcheck source=scripts/lib/refuse.sh
. "$LIB/refuse.sh"
# shellcheck source=scripts/lib/protect.sh
. "$LIB/protect.sh"
MOST=8388608
ulimit -f 32768 # 16 MiB a file
# shellcheck disable=SC3045 # -v: in every sh that we know
ulimit -v 262144 2>/dev/null || : # KiB: a line without end does not fill the memory

# hundredths: sets now to the hundredths of a second since boot.
hundredths() {
    read -r now _ </proc/uptime
    now=${now%.*}${now#*.}
}

# keep_pace: one update a second, over all connections of this host.
keep_pace() {
    last=
    hundredths
    [ ! -s "$own/last" ] || read -r last <"$own/last" || :
    case $last in *[!0-9]*) last= ;; esac
    if [ -n "$last" ] && [ "$last" -le "$now" ] && [ "$((now - last))" -lt 100 ]; then
        rest=$((200 - now + last))
        [ "$rest" -lt 200 ] || rest=199
        sleep "0.${rest#1}"
        hundredths
    fi
    printf '%s\n' "$now" >"$own/last"
}

# take SIZE: the files of one update, checked in .new and then renamed. What is wrong with them costs the update, not the connection.
take() {
    is_inside "$data" || { set_words "$data" && enter_host "$data" && make_new; } || { refuse "$wrong" && exit 1; }
    report=$(head -c "$1" | awk -v host="$HOST" -v size="$1" -v new=.new -f "$LIB/receive.awk" 2>/dev/null) || :
    word=${report%% *} words=${report#* }
    case $word in
        files) ;;
        wrong)
            refuse "$words"
            rm -f .new/*
            return
            ;;
        cut) exit 1 ;;
        *) refuse 'it could not be written on the web host: is its disk full?' && exit 1 ;;
    esac
    # shellcheck disable=SC2086 # one word a file
    report=$(cd .new && exec mv -f $words .. 2>&1) || {
        refuse "the files could not be put into data/$HOST on the web host: $(printf '%s\n' "$report" | tail -n 1)"
        rm -f .new/*
        return
    }
    echo ok
}

hundredths
began=$now
while read -r word version verb size rest; do
    case $word.$version.$verb.$rest in
        gpuboard.1.push.) ;;
        *) refuse 'this is not an update that this version of gpu-receive.sh knows' && exit 1 ;;
    esac
    case $size in
        '' | *[!0-9]* | 0* | ?????????*) size=too-many ;;
        *) [ "$size" -le "$MOST" ] || size=too-many ;;
    esac
    [ "$size" != too-many ] || { refuse "an update has at most $MOST bytes" && exit 1; }
    keep_pace
    take "$size"
    [ "$((now - began))" -lt "${until}00" ] || exit 0
done
exit 1
