# shellcheck shell=sh disable=SC2153,SC2154 # variables of user.sh
# ./install.sh remove: take back what host and web did on this machine, and nothing else.

# others: the notes of other machines that share this home.
others() {
    for note in "$SHARE/installed"/*; do
        case $note in "$NOTE" | *.new) ;; *) [ ! -f "$note" ] || printf '%s\n' "${note##*/}" ;; esac
    done
}

# remove_host: the loops that the crontab started; those that somebody started by hand, under another name, go on.
remove_host() {
    spool=$(spool_in_force)
    names=$(noted_names)
    for name in ${names:-$(own_name)}; do
        end_loops "$name" || failed=yes
    done
    remove_keys
    [ ! -d "$spool" ] || rmdir "$spool" 2>/dev/null || tell "$spool holds more than ours, and stays."
}

# remove_keys: those that we made for the names of this host, and that nobody uses any more.
remove_keys() {
    [ -f "$MADE" ] || return 0
    own=$(conf_value GPUBOARD_SSH_KEY)
    sed -n 's/^key //p' "$MADE" >"$work/keys"
    for name in ${names:-$(own_name)}; do
        for key in "$KEYS/$name" "$own"; do
            ! grep -qxF -e "$key" "$work/keys" || rm -f "$key" "$key.pub"
        done
    done
}

# remove_all_keys: of names that this host had once, too, and what `gpuboard deploy` let it know of the web host.
remove_all_keys() {
    [ -f "$MADE" ] || return 0
    sed -n 's/^key //p' "$MADE" >"$work/keys"
    while IFS= read -r key; do rm -f "$key" "$key.pub"; done <"$work/keys"
}

# remove_web: builder, server and bot of ours; those that others started, or from elsewhere, go on, and are told.
remove_web() {
    { conf_value GPUBOARD_STATE && sed -n 's/^setting GPUBOARD_STATE=//p' "$MADE"; } 2>/dev/null | grep . | sort -u >"$work/states"
    while IFS= read -r state; do
        end_ours "$state/lock" || failed=yes
        for lock in "$state/serve.lock" "$state/slack.lock"; do
            if end_ours "$lock"; then rm -f "$lock"; else failed=yes; fi
        done
    done <"$work/states"
    [ ! -x "$SCRIPTS/gpu-enrol.sh" ] || "$SCRIPTS/gpu-enrol.sh" remove --all || failed=yes
}

# remove_link PLACE FILE: if it is still ours.
remove_link() { [ "$(readlink "$1" || :)" != "$2" ] || rm -f "$1"; }

# remove_programs: when no machine needs them any more.
remove_programs() {
    remove_link "$LINK" "$VENV/bin/gpuboard"
    beside_link remove_link
    forget_conf
    rm -rf "$SCRIPTS" "$VENV" "$VENV.new" "$SHARE/venvs"
    remove_all_keys
    [ ! -f "$MADE" ] || sed -n 's/^folder //p' "$MADE" | sort -ru >"$work/folders"
    rm -rf "$SHARE/installed" "$MADE"
    rm -f "$SHARE/lock" # last: who waits for it begins anew
    rmdir "$SHARE" 2>/dev/null || :
    [ -f "$work/folders" ] || return 0
    while IFS= read -r place; do rmdir "$place" 2>/dev/null || :; done <"$work/folders"
    tell_what_stays
}

# tell_what_stays: of the folders that we made, the outermost that hold what people put there.
tell_what_stays() {
    stays='' last=// places=$SHARE/:$CONF:$LINK
    beside_link add_place
    sort "$work/folders" >"$work/outermost"
    while IFS= read -r place; do
        [ -d "$place" ] || continue
        case $places in "$place"/* | *:"$place"/*) continue ;; esac
        case $place in "$last"/*) continue ;; esac
        last=$place
        stays="$stays $(shown_path "$place")"
    done <"$work/outermost"
    [ -z "$stays" ] || tell "Bookings, history and site stay; to remove them too: rm -r$stays"
}

# add_place PLACE FILE: one that was ours.
add_place() { places=$places:$1; }

# shown_path PATH: for a person's shell, where a % is no matter.
shown_path() { quoted "$1" | sed 's/\\%/%/g'; }

# remove_host_alone: the board that this machine builds too goes on, with its programs, settings and keys of others.
remove_host_alone() {
    [ -n "$host" ] || { tell "Nothing to remove: $MACHINE sends no snapshots for $(id -un)." && return; }
    change_crontab host ''
    remove_host
    { grep -v '^host\( \|$\)' "$NOTE" || :; } >"$NOTE.new"
    mv -f "$NOTE.new" "$NOTE"
}

# install_remove [host]: with that word, as `gpuboard deploy --remove` gives it, a web host stays one.
install_remove() {
    case $#:${1:-} in 0: | 1:host) ;; *) die "remove takes no words: see ./install.sh --help" ;; esac
    failed=no
    until [ ! -d "$SHARE" ] || take_turn; do try_again; done
    : >"$work/before"
    ! command -v crontab >/dev/null || read_crontab
    host='' web=''
    ! has_block host || host=1
    ! has_block web || web=1
    [ -z "$(noted host)" ] || host=1
    [ -z "$(noted web)" ] || web=1
    if [ -z "$host$web" ] && { [ ! -d "$SHARE" ] || [ -n "$(others)" ]; }; then
        tell "Nothing to remove: gpuboard is not installed here for $(id -un)."
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
    if [ -z "$(others)" ]; then
        remove_programs
    else
        rm -f "$NOTE"
        tell "Scripts, programs and settings stay for: $(others | tr '\n' ' ')"
    fi
    [ "$failed" = no ] || { say "gpuboard is removed from $MACHINE for $(id -un), but for what still runs" && exit 1; }
    tell "gpuboard is removed from $MACHINE for $(id -un)."
}
