# shellcheck shell=sh disable=SC2034 # used by host.sh, web.sh and remove.sh
# What host, web and remove share: the places in a home, notes of what was made there, the settings file.
# They use what cron will use: neither the folder nor the GPUBOARD_ variables of the caller.

export LC_ALL=C
for key in $(env | sed -n 's/^\(GPUBOARD_[A-Z_]*\)=.*/\1/p'); do unset "$key"; done
[ -n "${HOME:-}" ] || HOME=$(getent passwd "$(id -u)" | cut -d: -f6) || HOME=
export HOME

# escape_control TEXT: print it without control characters, so that a sentence stays on one line.
escape_control() { printf '%s' "$1" | tr '[:cntrl:]' '?'; }

# check_place WHAT PATH: refuse backslashes, which crons treat differently, newlines, which no crontab can hold, and relative paths.
check_place() {
    case $2 in
        *[\\[:cntrl:]]*) die "$1 is '$(escape_control "$2")', but must not contain backslashes or control characters" ;;
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

# run_for_extra_links COMMAND: call it with each place of a manual or completion in a home, and with our file for it.
run_for_extra_links() {
    "$1" "$HOME/.local/share/man/man1/gpuboard.1" "$VENV/share/man/man1/gpuboard.1"
    "$1" "$HOME/.local/share/bash-completion/completions/gpuboard" "$VENV/share/gpuboard.bash"
    "$1" "$HOME/.config/fish/completions/gpuboard.fish" "$VENV/share/gpuboard.fish"
}
MACHINE=$(uname -n)
NOTE=$SHARE/installed/$MACHINE
MADE=$SHARE/made # what was made elsewhere, for remove: `folder PATH`, `setting KEY=VALUE`, `before KEY=VALUE` or `before KEY`, `key PATH`
work=$(mktemp -d) || die 'cannot make a temporary folder: is the disk full?'
trap 'rm -rf "$work"' EXIT
trap 'exit 143' TERM INT HUP
# shellcheck source=install/crontab.sh
. "$ROOT/install/crontab.sh"
# shellcheck source=install/conf.sh
. "$ROOT/install/conf.sh"
# shellcheck source=install/scripts.sh
. "$ROOT/install/scripts.sh"

# acquire_install_lock: let one install.sh at a time run, also where machines share a home. Fail if a remove deleted the folder meanwhile.
acquire_install_lock() {
    { command exec 9>>"$SHARE/lock"; } 2>/dev/null || return 1
    flock -w 60 9 || die "another install.sh has been running in $SHARE for 60 s; try again"
    # shellcheck disable=SC3013 # -ef: in every sh that we know, and in POSIX since 2024
    [ "$SHARE/lock" -ef /dev/fd/9 ]
}

# check_home: check what can be checked before anything is changed.
check_home() {
    [ ! -f "$HOME/gpuboard.conf" ] || die "cron would read $HOME/gpuboard.conf instead of $CONF: move it there first"
    read_crontab
    (cd "$HOME" && load_settings) || exit 2
}

# wait_and_retry: wait a moment, but not for ever.
wait_and_retry() {
    tries=$((${tries:-20} - 1))
    [ "$tries" -gt 0 ] || die "cannot write in the folder $SHARE"
    sleep 0.1
}

# open_share_folder: create the folder, and take the lock in it.
open_share_folder() {
    until
        missing=$(list_missing_folders "$SHARE/installed")
        mkdir -p "$SHARE/installed" 2>/dev/null && acquire_install_lock
    do wait_and_retry; done
    note_folders "$missing"
}

# list_missing_folders FOLDER: print it and its parents as far as they do not exist, the outermost first.
list_missing_folders() {
    folder=$1 list=
    while [ ! -d "$folder" ]; do
        list="$folder
$list"
        folder=$(dirname "$folder")
    done
    printf '%s' "$list"
}

# note_folders LIST: note for remove that they did not exist.
note_folders() { [ -z "$1" ] || printf '%s\n' "$1" | sed 's/^/folder /' >>"$MADE"; }

# make_folder MODE FOLDER: note it, then create it, so that an install.sh that is killed leaves nothing unknown.
make_folder() {
    [ ! -d "$2" ] || return 0
    note_folders "$(list_missing_folders "$2")"
    { mkdir -p "$2" && chmod "$1" "$2"; } || die "cannot create the folder $2"
}

# note_role ROLE [NAME]: note that this machine has it, with the name if one was given.
note_role() {
    {
        [ ! -e "$NOTE" ] || grep -v "^$1\( \|\$\)" "$NOTE" || :
        printf '%s\n' "$*"
    } >"$NOTE.new"
    mv -f "$NOTE.new" "$NOTE"
}

# read_note ROLE: print its line, if this machine has it; host has two while the name is changed, the new one last.
read_note() { [ ! -e "$NOTE" ] || grep "^$1\( \|\$\)" "$NOTE" || :; }

# list_noted_names: print the names under which our loops may run here.
list_noted_names() { read_note host | while read -r _ name; do printf '%s\n' "${name:-$(print_own_name)}"; done; }

# print_absolute_path PATH: print it as seen from the caller's folder.
print_absolute_path() {
    case $1 in
        /*) printf '%s\n' "$1" ;;
        \~ | \~/*) printf '%s\n' "$HOME${1#\~}" ;;
        . | ./) printf '%s\n' "$CALLER" ;;
        ./*) printf '%s\n' "$CALLER/${1#./}" ;;
        *) printf '%s\n' "$CALLER/$1" ;;
    esac
}

# run_as_cron COMMAND...: run it in the folder of cron, with nothing to read.
run_as_cron() { (cd "$HOME" && exec "$@" </dev/null 9>&-); }

# start_in_background COMMAND...: do the same in the background, independent of this terminal.
start_in_background() { (cd "$HOME" && exec setsid "$@" </dev/null >/dev/null 2>&1 9>&- &) }

# is_own_process PID: whether it was started with our Python: a complete word of its command line.
is_own_process() { tr '\000' '\n' 2>/dev/null <"/proc/$1/cmdline" | grep -qxF "$VENV/bin/python"; }

# list_own_holders LOCK: print the pids of our programs that have this file open.
list_own_holders() {
    for pid in $(list_holders "$1"); do
        ! is_own_process "$pid" || printf '%s ' "$pid"
    done
}

# end_own_holders LOCK: end them, by TERM, then by KILL. Fail if somebody still holds the lock.
end_own_holders() {
    for signal in TERM TERM TERM TERM KILL KILL; do
        left=$(list_own_holders "$1")
        [ -n "$left" ] || break
        # shellcheck disable=SC2086 # one word a pid
        kill -"$signal" $left 2>/dev/null || :
        sleep 0.5
    done
    if [ ! -e "$1" ] || flock -n "$1" true; then return 0; fi
    left=$(list_holders "$1" | tr '\n' ' ')
    say "$1 is still held, by pid ${left:-unknown, of another user}: end that by hand"
    return 1
}

# wait_for_checks: wait for a gpu-check.sh that cron has just started, or it would start the loops again.
wait_for_checks() {
    for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
        grep -qsF "$SCRIPTS/gpu-check.sh" /proc/[0-9]*/cmdline || return 0
        sleep 0.5
    done
}

# end_loops NAME: end them, and remove their files in the spool by name: the setting may name any folder, with anything else in it.
end_loops() {
    wait_for_checks
    place=$(find_spool)/$1
    [ -d "$place/run" ] || return 0
    print_line "Stopping the loops of $1"
    for _ in 1 2 3; do # the first kill may miss what is just being started
        run_as_cron "$ROOT/scripts/gpu-check.sh" kill "$1" || return 1
        left=$(list_holders "$place/run/*")
        [ -n "$left" ] || break
    done
    [ -z "$left" ] || return 1
    [ ! -e "$place/registered" ] || run_as_cron "$ROOT/scripts/gpu-check.sh" --deregister "$1" || print_line "Consul still lists $1: deregister it by hand."
    (cd "$place" && rm -rf run check check.failed given clock fields sent push.failed registered register.failed minute minute.err minute.time xids xids.pause gpus.csv processes.csv ps.txt host.txt mig amd amd.names amd.static containers topology topology.tried refused.*)
    rmdir "$place" 2>/dev/null || print_line "$place contains other files and is kept."
}

# find_spool: print the folder where the loops of this user have their locks.
find_spool() (cd "$HOME" && load_settings && set_spool_root && printf '%s\n' "$GPUBOARD_SPOOL")

# is_cron_running: whether a cron daemon runs; yes if processes of others are hidden.
is_cron_running() { [ ! -r /proc/1/comm ] || ! (: </proc/1/stat) 2>/dev/null || grep -qsxE 'cron|crond|cronie|fcron|systemd-cron' /proc/[0-9]*/comm; }
