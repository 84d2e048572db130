# shellcheck shell=sh disable=SC2034 # used by the scripts that read this one
# What every host script shares: settings, names, folders, time limits, the form of a snapshot.

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

# load_settings: KEY=value lines of gpuboard.conf; what the environment says already wins; nothing is executed.
load_settings() {
    if [ -z "${HOME:-}" ]; then
        HOME=$(getent passwd "$(id -u)" | cut -d: -f6) || HOME=
        export HOME
    fi
    if [ -z "${GPUBOARD_CONF:-}" ]; then
        for conf in "$PWD/gpuboard.conf" "$HOME/.config/gpuboard/gpuboard.conf" /etc/gpuboard/gpuboard.conf; do
            [ -f "$conf" ] && GPUBOARD_CONF=$conf && break
        done
    fi
    if [ -n "${GPUBOARD_CONF:-}" ]; then
        [ -r "$GPUBOARD_CONF" ] || die "cannot read the settings file $GPUBOARD_CONF"
        read_conf <"$GPUBOARD_CONF"
        export GPUBOARD_CONF
    fi
    GPUBOARD_GPUS_EVERY=${GPUBOARD_GPUS_EVERY:-20}
    GPUBOARD_PROCESSES_EVERY=${GPUBOARD_PROCESSES_EVERY:-20}
    GPUBOARD_PS_EVERY=${GPUBOARD_PS_EVERY:-10}
    GPUBOARD_LIMIT=${GPUBOARD_LIMIT:-10}
    for key in GPUBOARD_GPUS_EVERY GPUBOARD_PROCESSES_EVERY GPUBOARD_PS_EVERY GPUBOARD_LIMIT; do
        eval "value=\$$key"
        # shellcheck disable=SC2154 # value is set by the eval
        case $value in
            '' | *[!0-9]* | 0* | ?????*) die "$key is '$value', but must be whole seconds from 1 to 9999" ;;
        esac
    done
    export GPUBOARD_LIMIT
}

# set_every TASK: sets every to its interval.
set_every() {
    case $1 in
        1) every=$GPUBOARD_GPUS_EVERY ;;
        2) every=$GPUBOARD_PROCESSES_EVERY ;;
        3) every=$GPUBOARD_PS_EVERY ;;
    esac
}

# read_conf: takes the settings of the host side from stdin, leaving those that are set.
read_conf() {
    cr=$(printf '\r')
    while IFS= read -r line || [ -n "$line" ]; do
        key=${line%%=*}
        case $key in
            GPUBOARD_DEST | GPUBOARD_SPOOL | GPUBOARD_LIMIT | GPUBOARD_DISK_USE | GPUBOARD_SSH_CONFIG) ;;
            GPUBOARD_GPUS_EVERY | GPUBOARD_PROCESSES_EVERY | GPUBOARD_PS_EVERY) ;;
            *) continue ;;
        esac
        eval "[ -n \"\${$key+set}\" ]" && continue
        value=${line#*=}
        value=${value%"$cr"}
        eval "$key=\$value"
    done
}

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
    esac
    [ ${#1} -le 63 ] || die "'$1' is not a host name: it has more than 63 characters"
}

# spool_root: the folder of this user's spools, on a local disk.
spool_root() {
    GPUBOARD_SPOOL=${GPUBOARD_SPOOL:-/var/tmp/gpuboard-$(id -u)}
    case $GPUBOARD_SPOOL in
        *[!A-Za-z0-9/._-]* | [!/]*) die "GPUBOARD_SPOOL is '$GPUBOARD_SPOOL', but must be an absolute path of letters, digits and / . _ -" ;;
    esac
    export GPUBOARD_SPOOL # saves each tick the question
}

# open_spool NAME: sets HOST, SPOOL and RUN, and makes the folders; RUN is for locks and pipes.
open_spool() {
    check_host "$1"
    spool_root
    HOST=$1
    SPOOL=$GPUBOARD_SPOOL/$HOST
    RUN=$SPOOL/run
    export HOST RUN
    [ -d "$RUN" ] && return
    (umask 077 && mkdir -p "$RUN") || die "cannot make the folder $RUN"
    # /var/tmp is everybody's: somebody else may have put a folder or a link of that name there
    [ -n "$(find "$GPUBOARD_SPOOL" -prune -type d -user "$(id -u)")" ] || die "$GPUBOARD_SPOOL is not a folder of this user: remove it, or set GPUBOARD_SPOOL"
    chmod 0700 "$GPUBOARD_SPOOL"
}

# seconds_up: sets up to the seconds since boot, a clock that nobody sets back.
seconds_up() {
    read -r up _ </proc/uptime
    up=${up%.*}
}

# holders PATTERN: the pids of this user's processes that have a file of that name open.
holders() {
    find /proc/[0-9]*/fd -lname "$1" 2>/dev/null | cut -d/ -f3 | sort -un
}
