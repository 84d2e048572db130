# shellcheck shell=sh disable=SC2034 # used by host.sh, web.sh and remove.sh
# What host, web and remove share: the places in a home, notes of what was made there, the settings file.
# They see what cron will see: neither the folder nor the GPUBOARD_ variables of who calls.

export LC_ALL=C
for key in $(env | sed -n 's/^\(GPUBOARD_[A-Z_]*\)=.*/\1/p'); do unset "$key"; done
[ -n "${HOME:-}" ] || HOME=$(getent passwd "$(id -u)" | cut -d: -f6) || HOME=
export HOME

# shown TEXT: for a sentence that stays one line.
shown() { printf '%s' "$1" | tr '[:cntrl:]' '?'; }

# check_place WHAT PATH: a backslash means different things to different crons, and no line of a crontab can hold a newline.
check_place() {
    case $2 in
        *[\\[:cntrl:]]*) die "$1 is '$(shown "$2")', but may hold neither backslashes nor control characters" ;;
        /*) ;;
        *) die "$1 is '$2', but must be an absolute path" ;;
    esac
}
check_place HOME "$HOME"
SHARE=$HOME/.local/share/gpuboard # not below XDG_DATA_HOME: remove may be called without it
SCRIPTS=$SHARE/scripts
VENV=$SHARE/venv
CONF=$HOME/.config/gpuboard/gpuboard.conf
KEYS=$HOME/.config/gpuboard/keys
LINK=$HOME/.local/bin/gpuboard
# beside_link COMMAND: calls it with each other place in a home where people's programs look, and with our file for it.
beside_link() {
    "$1" "$HOME/.local/share/man/man1/gpuboard.1" "$VENV/share/man/man1/gpuboard.1"
    "$1" "$HOME/.local/share/bash-completion/completions/gpuboard" "$VENV/share/gpuboard.bash"
    "$1" "$HOME/.config/fish/completions/gpuboard.fish" "$VENV/share/gpuboard.fish"
}
MACHINE=$(uname -n)
NOTE=$SHARE/installed/$MACHINE
MADE=$SHARE/made # what we made beside it, for remove: `folder PATH`, `setting KEY=VALUE`, `before KEY=VALUE` or `before KEY`, `key PATH`
work=$(mktemp -d) || die 'cannot make a temporary folder: is the disk full?'
trap 'rm -rf "$work"' EXIT
trap 'exit 143' TERM INT HUP
# shellcheck source=install/crontab.sh
. "$ROOT/install/crontab.sh"
# shellcheck source=install/conf.sh
. "$ROOT/install/conf.sh"
# shellcheck source=install/scripts.sh
. "$ROOT/install/scripts.sh"

# take_turn: one install.sh at a time, also where machines share a home. It fails if a remove took the folder away meanwhile.
take_turn() {
    { command exec 9>>"$SHARE/lock"; } 2>/dev/null || return 1
    flock -w 60 9 || die "another install.sh has been at work in $SHARE for 60 s; try again"
    # shellcheck disable=SC3013 # -ef: in every sh that we know, and in POSIX since 2024
    [ "$SHARE/lock" -ef /dev/fd/9 ]
}

# check_home: what can be told before anything is changed.
check_home() {
    [ ! -f "$HOME/gpuboard.conf" ] || die "cron would read $HOME/gpuboard.conf instead of $CONF: move it there first"
    read_crontab
    (cd "$HOME" && load_settings) || exit 2
}

# try_again: after a moment, but not for ever.
try_again() {
    tries=$((${tries:-20} - 1))
    [ "$tries" -gt 0 ] || die "cannot write in the folder $SHARE"
    sleep 0.1
}

# begin: the folder of it all, and our turn in it.
begin() {
    until
        missing=$(missing_folders "$SHARE/installed")
        mkdir -p "$SHARE/installed" 2>/dev/null && take_turn
    do try_again; done
    note_folders "$missing"
}

# missing_folders FOLDER: it and its parents, as far as they are not there, the outermost first.
missing_folders() {
    folder=$1 list=
    while [ ! -d "$folder" ]; do
        list="$folder
$list"
        folder=$(dirname "$folder")
    done
    printf '%s' "$list"
}

# note_folders LIST: so that remove knows that they were not there.
note_folders() { [ -z "$1" ] || printf '%s\n' "$1" | sed 's/^/folder /' >>"$MADE"; }

# make_folder MODE FOLDER: it is noted before it is made: one that is killed in between has made nothing that nobody knows of.
make_folder() {
    [ ! -d "$2" ] || return 0
    note_folders "$(missing_folders "$2")"
    { mkdir -p "$2" && chmod "$1" "$2"; } || die "cannot make the folder $2"
}

# note_role ROLE [NAME]: that this machine has it, with the name if one was given.
note_role() {
    {
        [ ! -e "$NOTE" ] || grep -v "^$1\( \|\$\)" "$NOTE" || :
        printf '%s\n' "$*"
    } >"$NOTE.new"
    mv -f "$NOTE.new" "$NOTE"
}

# noted ROLE: the line of it, if this machine has it; of host there are two while the name is changed, the new one last.
noted() { [ ! -e "$NOTE" ] || grep "^$1\( \|\$\)" "$NOTE" || :; }

# noted_names: those under which loops of ours may run here.
noted_names() { noted host | while read -r _ name; do printf '%s\n' "${name:-$(own_name)}"; done; }

# absolute PATH: where it is, seen from the caller's folder.
absolute() {
    case $1 in
        /*) printf '%s\n' "$1" ;;
        \~ | \~/*) printf '%s\n' "$HOME${1#\~}" ;;
        . | ./) printf '%s\n' "$CALLER" ;;
        ./*) printf '%s\n' "$CALLER/${1#./}" ;;
        *) printf '%s\n' "$CALLER/$1" ;;
    esac
}

# as_cron COMMAND...: runs it where cron will, with nothing to read.
as_cron() { (cd "$HOME" && exec "$@" </dev/null 9>&-); }

# in_background COMMAND...: the same, for as long as it likes, whatever becomes of this terminal.
in_background() { (cd "$HOME" && exec setsid "$@" </dev/null >/dev/null 2>&1 9>&- &) }

# ours PID: it was started with our own Python: a whole word of its command line says so.
ours() { tr '\000' '\n' 2>/dev/null <"/proc/$1/cmdline" | grep -qxF "$VENV/bin/python"; }

# running LOCK: the pids of our programs that have this file open.
running() {
    for pid in $(holders "$1"); do
        ! ours "$pid" || printf '%s ' "$pid"
    done
}

# end_ours LOCK: ends them: politely, then by force. It fails if somebody has the lock even then.
end_ours() {
    for signal in TERM TERM TERM TERM KILL KILL; do
        left=$(running "$1")
        [ -n "$left" ] || break
        # shellcheck disable=SC2086 # one word a pid
        kill -"$signal" $left 2>/dev/null || :
        sleep 0.5
    done
    if [ ! -e "$1" ] || flock -n "$1" true; then return 0; fi
    left=$(holders "$1" | tr '\n' ' ')
    say "$1 is still held, by pid ${left:-unknown, of another user}: end that by hand"
    return 1
}

# checks_end: waits for a gpu-check.sh that cron started a moment ago, or it would start the loops again behind us.
checks_end() {
    for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
        grep -qsF "$SCRIPTS/gpu-check.sh" /proc/[0-9]*/cmdline || return 0
        sleep 0.5
    done
}

# end_loops NAME: and removes what they keep in the spool, by its names: the setting may name any folder, with anything else in it.
end_loops() {
    checks_end
    place=$(spool_in_force)/$1
    [ -d "$place/run" ] || return 0
    tell "Stopping the loops of $1"
    for _ in 1 2 3; do # what was just being started is not among those that the first kill sees
        as_cron "$ROOT/scripts/gpu-check.sh" kill "$1" || return 1
        left=$(holders "$place/run/*")
        [ -n "$left" ] || break
    done
    [ -z "$left" ] || return 1
    [ ! -e "$place/registered" ] || as_cron "$ROOT/scripts/gpu-check.sh" --deregister "$1" || tell "Consul still lists $1: deregister it by hand."
    (cd "$place" && rm -rf run check given clock fields sent push.failed registered register.failed minute minute.err minute.time gpus.csv processes.csv ps.txt host.txt mig amd amd.names amd.static containers refused.*)
    rmdir "$place" 2>/dev/null || tell "$place holds more than ours, and stays."
}

# spool_in_force: where the loops of this user have their locks.
spool_in_force() (cd "$HOME" && load_settings && spool_root && printf '%s\n' "$GPUBOARD_SPOOL")

# cron_runs: whether a cron daemon is to be seen; where others' processes are hidden nobody knows, and we say yes.
cron_runs() { [ ! -r /proc/1/comm ] || ! (: </proc/1/stat) 2>/dev/null || grep -qsxE 'cron|crond|cronie|fcron|systemd-cron' /proc/[0-9]*/comm; }
