# shellcheck shell=sh disable=SC2154 # variables of user.sh
# The host scripts, and the receiver on the web host, in the place where cron and sshd find them.

# copy_scripts: each file whole or not at all, the library first: loops that run take what is new at their next tick.
copy_scripts() {
    make_folder 0755 "$SCRIPTS/lib"
    (cd "$ROOT/scripts" && find lib -type f ! -name '.*' ! -name '*~' && find . -maxdepth 1 -name '*.sh' | cut -c3-) >"$work/files" ||
        die "the list of scripts could not be written: is the disk of ${work%/*} full?"
    while IFS= read -r path; do
        ! same_file "$ROOT/scripts/$path" "$SCRIPTS/$path" || continue
        put_file "$ROOT/scripts/$path" "$SCRIPTS/$path" || die "$SCRIPTS/$path could not be written: is the disk full?"
    done <"$work/files"
    (cd "$SCRIPTS" && find . -type f | cut -c3- | grep -vxF -f "$work/files" | while IFS= read -r path; do rm -f "$path"; done)
}

put_file() { cp -f "$1" "$2.new" && chmod u+rw,go-w "$2.new" && mv -f "$2.new" "$2"; }

# same_file OLD NEW: in content, and in whether it can be started.
same_file() {
    cmp -s "$1" "$2" || return 1
    if [ -x "$1" ]; then [ -x "$2" ]; else [ ! -x "$2" ]; fi
}
