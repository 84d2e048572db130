# shellcheck shell=sh disable=SC2034 # used by the scripts that read this one
# What all host scripts share: names, folders, uptime, processes with a file open. Reads settings.sh too.

umask 027 # snapshots name people and commands: only the owner writes, only the group (the web host's) reads
export LC_ALL=C
case ${PATH:-} in
    */usr/lib/wsl/lib) ;;
    *) export PATH="${PATH:+$PATH:}/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/lib/wsl/lib" ;; # cron's is short
esac

GPUBOARD_VERSION=0.1.0
PROC=${GPUBOARD_PROC:-/proc}

# say MESSAGE...: print one sentence to the person who runs this.
say() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }

# die MESSAGE...: end because of wrong use, or because nothing can be done.
die() {
    say "$@"
    exit 2
}

# print_help FILE: print the comment at the head of a script.
print_help() { sed -n '2,/^[^#]/{/^#/{s/^# \{0,1\}//;p;};}' "$1"; }

# print_own_name: print this machine's short name, like `hostname -s` but without DNS.
print_own_name() {
    name=$(uname -n)
    printf '%s\n' "${name%%.*}"
}

# check_host_name NAME: refuse what cannot be a host name; it is a folder name in data/.
check_host_name() {
    case $1 in
        [A-Za-z0-9]*) ;;
        *) die "'$1' is not a host name: it must start with a letter or a digit" ;;
    esac
    case $1 in
        *[!A-Za-z0-9._-]*) die "'$1' is not a host name: only letters, digits and . _ - are allowed" ;;
        *.json | *.txt | *.csv | *.log | *.log.1) die "'$1' is not a host name: files in the data folder use it" ;;
        bookings) die "'$1' is not a host name: the bookings folder uses it" ;;
    esac
    [ ${#1} -le 63 ] || die "'$1' is not a host name: it has more than 63 characters"
}

# set_spool_root: set GPUBOARD_SPOOL, the folder of this user's spools, on a local disk.
set_spool_root() {
    GPUBOARD_SPOOL=${GPUBOARD_SPOOL:-/var/tmp/gpuboard-$(id -u)}
    case $GPUBOARD_SPOOL in
        *[!A-Za-z0-9/._-]* | [!/]*) die "GPUBOARD_SPOOL is '$GPUBOARD_SPOOL', but must be an absolute path of letters, digits and / . _ -" ;;
    esac
    export GPUBOARD_SPOOL # so that ticks need not call id
}

# open_spool NAME: set HOST, SPOOL and RUN, and create the folders; RUN is for locks and pipes.
open_spool() {
    check_host_name "$1"
    set_spool_root
    HOST=$1
    SPOOL=$GPUBOARD_SPOOL/$HOST
    RUN=$SPOOL/run
    export HOST RUN
    [ -e "$GPUBOARD_SPOOL" ] || (umask 077 && mkdir -p "$GPUBOARD_SPOOL") || die "cannot create the folder $GPUBOARD_SPOOL"
    # anybody can write to /var/tmp: somebody else may have made a folder or a link of that name
    # shellcheck disable=SC3067 # -O: in every sh that we know
    if [ -h "$GPUBOARD_SPOOL" ] || [ ! -O "$GPUBOARD_SPOOL" ]; then die "$GPUBOARD_SPOOL is not a folder of this user: remove it, or set GPUBOARD_SPOOL"; fi
    [ -d "$RUN" ] || (umask 077 && mkdir -p "$RUN") || die "cannot create the folder $RUN"
}

# read_uptime: set up to the seconds since boot, a clock that is never set back.
read_uptime() {
    read -r up _ </proc/uptime
    up=${up%.*}
}

# list_holders PATTERN: print the pids of this user's processes that have a file of that name open, even if it was removed since. Only the part
# after the last / is a pattern; the folder may be behind a link, which /proc does not show.
list_holders() {
    folder=$({ readlink -f "${1%/*}" || printf '%s\n' "${1%/*}"; } | sed 's/[][*?\\]/\\&/g')
    find /proc/[0-9]*/fd '(' -lname "$folder/${1##*/}" -o -lname "$folder/${1##*/} (deleted)" ')' 2>/dev/null | cut -d/ -f3 | sort -un
}

# kill_holders PATTERN: kill these processes, but not this shell; set pids to them.
kill_holders() {
    pids=
    for pid in $(list_holders "$1"); do
        [ "$pid" != "$$" ] || continue
        kill -9 "$pid" 2>/dev/null || :
        pids="$pids $pid"
    done
}

# is_minute_old SINCE: whether SINCE is at least a minute before `up`, empty, or from another boot.
is_minute_old() { [ -z "$1" ] || [ "$up" -lt "$1" ] || [ $((up - $1)) -ge 60 ]; }

# shellcheck source=scripts/lib/settings.sh
. "$LIB/settings.sh"
