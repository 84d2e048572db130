# shellcheck shell=sh disable=SC2034 # used by the scripts that read this one
# What every host script shares: names, folders, the clock since boot, who has a file open. Reads settings.sh too.

umask 027 # snapshots name people and commands: the owner writes, the group (the web host's) reads
export LC_ALL=C
case ${PATH:-} in
    */usr/lib/wsl/lib) ;;
    *) export PATH="${PATH:+$PATH:}/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/lib/wsl/lib" ;; # cron's own is short
esac

GPUBOARD_VERSION=0.1.0
PROC=${GPUBOARD_PROC:-/proc}

# say WORDS...: one sentence to the person who runs this.
say() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }

# die WORDS...: wrong use, or nothing that can be done here.
die() {
    say "$@"
    exit 2
}

# print_help FILE: the comment at the head of a script is its help.
print_help() { sed -n '2,/^[^#]/{/^#/{s/^# \{0,1\}//;p;};}' "$1"; }

# own_name: this machine's short name, as `hostname -s` tells it, but without asking DNS.
own_name() {
    name=$(uname -n)
    printf '%s\n' "${name%%.*}"
}

# check_host NAME: a host name is a folder name in data/, so nothing else may pass for one.
check_host() {
    case $1 in
        [A-Za-z0-9]*) ;;
        *) die "'$1' is not a host name: it must begin with a letter or a digit" ;;
    esac
    case $1 in
        *[!A-Za-z0-9._-]*) die "'$1' is not a host name: only letters, digits and . _ - may stand in one" ;;
        *.json | *.txt | *.csv | *.log | *.log.1) die "'$1' is not a host name: files in the data folder are called so" ;;
        bookings) die "'$1' is not a host name: the folder for bookings is called so" ;;
    esac
    [ ${#1} -le 63 ] || die "'$1' is not a host name: it has more than 63 characters"
}

# spool_root: the folder of this user's spools, on a local disk.
spool_root() {
    GPUBOARD_SPOOL=${GPUBOARD_SPOOL:-/var/tmp/gpuboard-$(id -u)}
    case $GPUBOARD_SPOOL in
        *[!A-Za-z0-9/._-]* | [!/]*) die "GPUBOARD_SPOOL is '$GPUBOARD_SPOOL', but must be an absolute path of letters, digits and / . _ -" ;;
    esac
    export GPUBOARD_SPOOL # so that no tick has to call id
}

# open_spool NAME: sets HOST, SPOOL and RUN, and makes the folders; RUN is for locks and pipes.
open_spool() {
    check_host "$1"
    spool_root
    HOST=$1
    SPOOL=$GPUBOARD_SPOOL/$HOST
    RUN=$SPOOL/run
    export HOST RUN
    [ -e "$GPUBOARD_SPOOL" ] || (umask 077 && mkdir -p "$GPUBOARD_SPOOL") || die "cannot make the folder $GPUBOARD_SPOOL"
    # /var/tmp is everybody's: somebody else may have put a folder or a link of that name there
    # shellcheck disable=SC3067 # -O: in every sh that we know
    if [ -h "$GPUBOARD_SPOOL" ] || [ ! -O "$GPUBOARD_SPOOL" ]; then die "$GPUBOARD_SPOOL is not a folder of this user: remove it, or set GPUBOARD_SPOOL"; fi
    [ -d "$RUN" ] || (umask 077 && mkdir -p "$RUN") || die "cannot make the folder $RUN"
}

# seconds_up: sets up to the seconds since boot, a clock that nobody sets back.
seconds_up() {
    read -r up _ </proc/uptime
    up=${up%.*}
}

# holders PATTERN: the pids of this user's processes that have a file of that name open, or had it open when it was removed. Only behind
# the last / is it a pattern; the folder may lie behind a link, of which /proc knows nothing.
holders() {
    folder=$({ readlink -f "${1%/*}" || printf '%s\n' "${1%/*}"; } | sed 's/[][*?\\]/\\&/g')
    find /proc/[0-9]*/fd '(' -lname "$folder/${1##*/}" -o -lname "$folder/${1##*/} (deleted)" ')' 2>/dev/null | cut -d/ -f3 | sort -un
}

# kill_holders PATTERN: kills them, but not this shell; sets pids to who they were.
kill_holders() {
    pids=
    for pid in $(holders "$1"); do
        [ "$pid" != "$$" ] || continue
        kill -9 "$pid" 2>/dev/null || :
        pids="$pids $pid"
    done
}

# minute_passed SINCE: whether it is a minute ago; `up` is now. Nothing, or a time of another boot, is.
minute_passed() { [ -z "$1" ] || [ "$up" -lt "$1" ] || [ $((up - $1)) -ge 60 ]; }

# shellcheck source=scripts/lib/settings.sh
. "$LIB/settings.sh"
