# shellcheck shell=sh disable=SC2154 # variables of user.sh
# Install the host scripts, and the receiver on the web host, where cron and sshd find them.

# copy_scripts: copy each file completely or not at all, the library first: running loops use the new files at their next tick.
copy_scripts() {
    make_folder 0755 "$SCRIPTS/lib"
    (cd "$ROOT/scripts" && find lib -type f ! -name '.*' ! -name '*~' && find . -maxdepth 1 -name '*.sh' | cut -c3-) >"$work/files" ||
        die "the list of scripts could not be written: is the disk of ${work%/*} full?"
    while IFS= read -r path; do
        ! is_same_file "$ROOT/scripts/$path" "$SCRIPTS/$path" || continue
        replace_file "$ROOT/scripts/$path" "$SCRIPTS/$path" || die "$SCRIPTS/$path could not be written: is the disk full?"
    done <"$work/files"
    (cd "$SCRIPTS" && find . -type f | cut -c3- | grep -vxF -f "$work/files" | while IFS= read -r path; do rm -f "$path"; done)
}

# replace_file FROM TO: replace a file.
replace_file() { cp -f "$1" "$2.new" && chmod u+rw,go-w "$2.new" && mv -f "$2.new" "$2"; }

# is_same_file OLD NEW: whether content and execute permission are the same.
is_same_file() {
    cmp -s "$1" "$2" || return 1
    if [ -x "$1" ]; then [ -x "$2" ]; else [ ! -x "$2" ]; fi
}
