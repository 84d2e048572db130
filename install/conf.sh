# shellcheck shell=sh disable=SC2034,SC2153,SC2154 # variables of user.sh, and for web.sh
# The settings file: one key at a time is changed, every other byte stays.

SYSTEM_CONF=/etc/gpuboard/gpuboard.conf
conf_changed=no

# conf_in_force: the file that cron's programs will find, or one that is not there.
conf_in_force() { if [ -f "$CONF" ] || [ ! -f "$SYSTEM_CONF" ]; then echo "$CONF"; else echo "$SYSTEM_CONF"; fi; }

# conf_value KEY: what the file says, or nothing; the first line of a key counts.
conf_value() {
    conf=$(conf_in_force)
    [ ! -f "$conf" ] || KEY=$1 awk 'index($0, ENVIRON["KEY"] "=") == 1 {sub(/\r$/, ""); print substr($0, length(ENVIRON["KEY"]) + 2); exit}' "$conf"
}

conf_has() { grep -qs "^$1=" "$(conf_in_force)"; }

# write_conf KEY VALUE [drop]: beside the file, with its owner and mode; then it is renamed.
write_conf() {
    file=$(readlink -f "$CONF") # some keep their settings elsewhere, and a link here
    new_conf "$@" 2>"$work/words" || {
        rm -f "$file.new"
        die "$file could not be written, and is as it was: $(tail -n 1 "$work/words")"
    }
    mv -f "$file.new" "$file"
}

new_conf() {
    rm -f "$file.new" || return
    source=/dev/null whole=1
    if [ -f "$file" ]; then
        source=$file
        cp -p "$file" "$file.new" || return
        [ -z "$(tail -c 1 "$file")" ] || whole=0
    else
        (umask 077 && : >"$file.new") || return
    fi
    # twice, since busybox awk does not tell of a full disk
    conf_text "$@" >"$file.new" && conf_text "$@" | cmp - "$file.new" >&2
}

conf_text() { KEY=$1 VALUE=$2 awk -v whole="$whole" -v drop="${3:+1}" -f "$ROOT/install/conf.awk" "$source"; }

# wrote KEY VALUE: whether that is of ours.
wrote() { grep -qsxF "setting $1=$2" "$MADE"; }

# set_conf KEY VALUE: what is so already is not written. It is noted before it is: remove must know of all that we may have written, and
# of what was there before.
set_conf() {
    ! conf_has "$1" || [ "$(conf_value "$1")" != "$2" ] || return 0
    [ -e "$CONF" ] || [ ! -e "$SYSTEM_CONF" ] || tell "From now on $CONF counts for this user, and $SYSTEM_CONF no longer."
    conf_changed=yes
    make_folder 0755 "${CONF%/*}"
    before=$1
    if [ -f "$CONF" ] && conf_has "$1"; then before=$1=$(conf_value "$1"); fi
    wrote "$1" "${before#*=}" || printf 'before %s\n' "$before" >>"$MADE"
    printf 'setting %s=%s\n' "$1" "$2" >>"$MADE"
    write_conf "$1" "$2"
}

# forget_conf: what we wrote becomes what it was before, unless somebody changed it since; a file with nothing else in it goes.
forget_conf() {
    if [ ! -f "$CONF" ] || [ ! -f "$MADE" ]; then return 0; fi
    sed -n 's/^setting \([A-Z_]*\)=.*/\1/p' "$MADE" | sort -u >"$work/keys"
    while read -r key; do
        wrote "$key" "$(conf_value "$key")" || continue
        before=$(sed -n "s/^before \($key\)\$/\1/p; s/^before \($key=.*\)/\1/p" "$MADE" | tail -n 1)
        case $before in
            *=*) write_conf "$key" "${before#*=}" ;;
            *) write_conf "$key" '' drop ;;
        esac
    done <"$work/keys"
    [ -s "$CONF" ] || rm -f "$CONF"
}
