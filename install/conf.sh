# shellcheck shell=sh disable=SC2034,SC2153,SC2154 # variables of user.sh, and for web.sh
# Change one key of the settings file at a time; every other byte stays.

SYSTEM_CONF=/etc/gpuboard/gpuboard.conf
conf_changed=no

# find_conf_file: print the file that programs started by cron will read; it may not exist yet.
find_conf_file() { if [ -f "$CONF" ] || [ ! -f "$SYSTEM_CONF" ]; then echo "$CONF"; else echo "$SYSTEM_CONF"; fi; }

# read_conf_value KEY: print its value in the file, or nothing; the first line of a key counts.
read_conf_value() {
    conf=$(find_conf_file)
    [ ! -f "$conf" ] || KEY=$1 awk 'index($0, ENVIRON["KEY"] "=") == 1 {sub(/\r$/, ""); print substr($0, length(ENVIRON["KEY"]) + 2); exit}' "$conf"
}

# has_conf_key KEY: whether the file has it.
has_conf_key() { grep -qs "^$1=" "$(find_conf_file)"; }

# write_conf KEY VALUE [drop]: write a new file with the same owner and mode, and rename it.
write_conf() {
    file=$(readlink -f "$CONF") # it may be a link
    write_new_conf "$@" 2>"$work/words" || {
        rm -f "$file.new"
        die "$file could not be written and is unchanged: $(tail -n 1 "$work/words")"
    }
    mv -f "$file.new" "$file"
}

# write_new_conf KEY VALUE [drop]: write the new file.
write_new_conf() {
    rm -f "$file.new" || return
    source=/dev/null ends_with_newline=1
    if [ -f "$file" ]; then
        source=$file
        cp -p "$file" "$file.new" || return
        [ -z "$(tail -c 1 "$file")" ] || ends_with_newline=0
    else
        (umask 077 && : >"$file.new") || return
    fi
    # twice, since busybox awk does not report a full disk
    print_new_conf "$@" >"$file.new" && print_new_conf "$@" | cmp - "$file.new" >&2
}

# print_new_conf KEY VALUE [drop]: print the new settings.
print_new_conf() { KEY=$1 VALUE=$2 awk -v ends_with_newline="$ends_with_newline" -v drop="${3:+1}" -f "$ROOT/install/conf.awk" "$source"; }

# is_own_setting KEY VALUE: whether install.sh wrote it.
is_own_setting() { grep -qsxF "setting $1=$2" "$MADE"; }

# set_conf KEY VALUE: set it if it differs. It is noted first: remove must know all that may have been written, and what was there before.
set_conf() {
    ! has_conf_key "$1" || [ "$(read_conf_value "$1")" != "$2" ] || return 0
    [ -e "$CONF" ] || [ ! -e "$SYSTEM_CONF" ] || print_line "From now on this user's settings are in $CONF; $SYSTEM_CONF no longer applies."
    conf_changed=yes
    make_folder 0755 "${CONF%/*}"
    before=$1
    if [ -f "$CONF" ] && has_conf_key "$1"; then before=$1=$(read_conf_value "$1"); fi
    is_own_setting "$1" "${before#*=}" || printf 'before %s\n' "$before" >>"$MADE"
    printf 'setting %s=%s\n' "$1" "$2" >>"$MADE"
    write_conf "$1" "$2"
}

# restore_conf: restore what was there before, unless somebody changed it since; remove a file with nothing else in it.
restore_conf() {
    if [ ! -f "$CONF" ] || [ ! -f "$MADE" ]; then return 0; fi
    sed -n 's/^setting \([A-Z_]*\)=.*/\1/p' "$MADE" | sort -u >"$work/keys"
    while read -r key; do
        is_own_setting "$key" "$(read_conf_value "$key")" || continue
        before=$(sed -n "s/^before \($key\)\$/\1/p; s/^before \($key=.*\)/\1/p" "$MADE" | tail -n 1)
        case $before in
            *=*) write_conf "$key" "${before#*=}" ;;
            *) write_conf "$key" '' drop ;;
        esac
    done <"$work/keys"
    [ -s "$CONF" ] || rm -f "$CONF"
}
