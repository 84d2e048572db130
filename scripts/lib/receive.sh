#!/bin/sh
# lib/receive.sh HOST SECONDS: takes updates from stdin, in the data folder, and ends after the first that comes later than SECONDS.
# An update is a line `gpuboard 1 push SIZE`, then SIZE bytes: one to four snapshot files, one after the other.
# Each is answered by `ok`, or by `refused` and a sentence. `read` takes no byte too many, nor does `head -c`.
set -eu
umask 027
export LC_ALL=C
HOST=$1 until=$2
case $0 in */*) LIB=${0%/*} ;; *) LIB=. ;; esac
# shellcheck source=scripts/lib/refuse.sh
. "$LIB/refuse.sh"
MOST=8388608
new=.receive/$HOST
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
    [ ! -s "$new/last" ] || read -r last <"$new/last" || :
    case $last in *[!0-9]*) last= ;; esac
    if [ -n "$last" ] && [ "$last" -le "$now" ] && [ "$((now - last))" -lt 100 ]; then
        rest=$((200 - now + last))
        [ "$rest" -lt 200 ] || rest=199
        sleep "0.${rest#1}"
        hundredths
    fi
    printf '%s\n' "$now" >"$new/last"
}

# take SIZE: the files of one update, checked and then renamed. What is wrong with them costs the update, not the connection.
take() {
    head -c "$1" | awk -v host="$HOST" -v size="$1" -v new="$new" -f "$LIB/receive.awk" >"$new/said" 2>/dev/null || :
    word='' words=''
    read -r word words <"$new/said" || :
    case $word in
        files) ;;
        wrong) refuse "$words" && return ;;
        cut) exit 1 ;;
        *) refuse 'it could not be written on the web host: is its disk full?' && exit 1 ;;
    esac
    [ -d "$HOST" ] || mkdir "$HOST" 2>/dev/null || : # it was forgotten meanwhile, and is here again
    # shellcheck disable=SC2086 # one word a file
    if [ -h "$HOST" ] || ! (cd "$new" && exec mv -f $words "../../$HOST/") 2>"$new/said"; then
        refuse "the files could not be put into data/$HOST on the web host: $(tail -n 1 "$new/said")"
        return
    fi
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
