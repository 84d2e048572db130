# shellcheck shell=sh disable=SC2153,SC2154 # variables of user.sh
# ./install.sh remove: undo what host and web did on this machine, and nothing else.

# list_other_machines: print the other machines that share this home.
list_other_machines() {
    for note in "$SHARE/installed"/*; do
        case $note in "$NOTE" | *.new) ;; *) [ ! -f "$note" ] || printf '%s\n' "${note##*/}" ;; esac
    done
}

# remove_host: end the loops that the crontab started; those started by hand, under another name, go on.
remove_host() {
    spool=$(find_spool)
    names=$(list_noted_names)
    for name in ${names:-$(print_own_name)}; do
        end_loops "$name" || failed=yes
    done
    remove_keys
    [ ! -d "$spool" ] || rmdir "$spool" 2>/dev/null || print_line "$spool contains other files and is kept."
}

# remove_keys: remove the keys that were made for the names of this host, and that nobody uses any more.
remove_keys() {
    [ -f "$MADE" ] || return 0
    own=$(read_conf_value GPUBOARD_SSH_KEY)
    sed -n 's/^key //p' "$MADE" >"$work/keys"
    for name in ${names:-$(print_own_name)}; do
        for key in "$KEYS/$name" "$own"; do
            ! grep -qxF -e "$key" "$work/keys" || rm -f "$key" "$key.pub"
        done
    done
}

# remove_all_keys: remove keys of previous names too, and the known keys of the web host from `gpuboard deploy`.
remove_all_keys() {
    [ -f "$MADE" ] || return 0
    sed -n 's/^key //p' "$MADE" >"$work/keys"
    while IFS= read -r key; do rm -f "$key" "$key.pub"; done <"$work/keys"
}

# remove_web: end our builder, server and bot; those of others, or from elsewhere, go on, and are reported.
remove_web() {
    { read_conf_value GPUBOARD_STATE && sed -n 's/^setting GPUBOARD_STATE=//p' "$MADE"; } 2>/dev/null | grep . | sort -u >"$work/states"
    while IFS= read -r state; do
        end_own_holders "$state/lock" || failed=yes
        for lock in "$state/serve.lock" "$state/slack.lock"; do
            if end_own_holders "$lock"; then rm -f "$lock"; else failed=yes; fi
        done
    done <"$work/states"
    [ ! -x "$SCRIPTS/gpu-enrol.sh" ] || "$SCRIPTS/gpu-enrol.sh" remove --all || failed=yes
}

# remove_link PLACE FILE: remove a link if it is still ours.
remove_link() { [ "$(readlink "$1" || :)" != "$2" ] || rm -f "$1"; }

# remove_programs: remove programs and settings when no machine needs them any more.
remove_programs() {
    remove_link "$LINK" "$VENV/bin/gpuboard"
    run_for_extra_links remove_link
    restore_conf
    rm -rf "$SCRIPTS" "$VENV" "$VENV.new" "$SHARE/venvs"
    remove_all_keys
    [ ! -f "$MADE" ] || sed -n 's/^folder //p' "$MADE" | sort -ru >"$work/folders"
    remove_empty_folders # while their list is still there for the next call, should this one be killed
    rm -rf "$SHARE/installed" "$MADE"
    rm -f "$SHARE/lock" # last: whoever waits for it starts again
    rmdir "$SHARE" 2>/dev/null || :
    remove_empty_folders
    print_what_stays
}

# remove_empty_folders: remove the folders that were made, as far as nothing is in them.
remove_empty_folders() {
    [ -f "$work/folders" ] || return 0
    while IFS= read -r place; do rmdir "$place" 2>/dev/null || :; done <"$work/folders"
}

# print_what_stays: print the outermost of the folders that were made which still have files of people.
print_what_stays() {
    [ -f "$work/folders" ] || return 0
    stays='' last=// places=$SHARE/:$CONF:$LINK
    run_for_extra_links add_place
    sort "$work/folders" >"$work/outermost"
    while IFS= read -r place; do
        [ -d "$place" ] || continue
        case $places in "$place"/* | *:"$place"/*) continue ;; esac
        case $place in "$last"/*) continue ;; esac
        last=$place
        stays="$stays $(quote_for_shell "$place")"
    done <"$work/outermost"
    [ -z "$stays" ] || print_line "Bookings, history and site are kept; to remove them too: rm -r$stays"
}

# add_place PLACE FILE: add a place that was ours.
add_place() { places=$places:$1; }

# quote_for_shell PATH: quote it for a person's shell, where a % is plain.
quote_for_shell() { quote_for_crontab "$1" | sed 's/\\%/%/g'; }

# remove_host_alone: remove the host part only; the board that this machine builds stays, with its programs, settings and keys.
remove_host_alone() {
    [ -n "$host" ] || { print_line "Nothing to remove: $MACHINE sends no snapshots for $(id -un)." && return; }
    change_crontab host ''
    remove_host
    { grep -v '^host\( \|$\)' "$NOTE" || :; } >"$NOTE.new"
    mv -f "$NOTE.new" "$NOTE"
}

# install_remove [host]: do all of it. With `host`, which `gpuboard deploy --remove` gives, a web host stays one.
install_remove() {
    case $#:${1:-} in 0: | 1:host) ;; *) die "remove takes no arguments: see ./install.sh --help" ;; esac
    failed=no
    until [ ! -d "$SHARE" ] || acquire_install_lock; do wait_and_retry; done
    : >"$work/before"
    ! command -v crontab >/dev/null || read_crontab
    host='' web=''
    ! has_crontab_block host || host=1
    ! has_crontab_block web || web=1
    [ -z "$(read_note host)" ] || host=1
    [ -z "$(read_note web)" ] || web=1
    if [ -z "$host$web" ] && { [ ! -d "$SHARE" ] || [ -n "$(list_other_machines)" ]; }; then
        print_line "Nothing to remove: gpuboard is not installed here for $(id -un)."
        return
    fi
    if [ -n "$web" ] && [ $# = 1 ]; then
        remove_host_alone
        [ "$failed" = no ] || exit 1
        return
    fi
    if command -v crontab >/dev/null; then
        change_crontab host ''
        change_crontab web ''
    fi
    [ -z "$host" ] || remove_host
    [ -z "$web" ] || remove_web
    if [ -z "$(list_other_machines)" ]; then
        remove_programs
    else
        rm -f "$NOTE"
        print_line "Scripts, programs and settings are kept for: $(list_other_machines | tr '\n' ' ')"
    fi
    [ "$failed" = no ] || { say "gpuboard is removed from $MACHINE for $(id -un)except for what is still running" && exit 1; }
    print_line "gpuboard is removed from $MACHINE for $(id -un)."
}
