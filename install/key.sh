# shellcheck shell=sh disable=SC2034,SC2154 # variables of user.sh and host.sh
# ./install.sh key NAME DEST ADDRESS, which `gpuboard deploy` calls before host: the key of this host is made here, and its public half printed,
# so that the web host takes it before the first snapshot is sent. The web host's own keys come on stdin, as lines of known_hosts for ADDRESS.
# shellcheck source=install/host.sh
. install/host.sh
KNOWN=${CONF%/*}/known_hosts

# know ADDRESS: the keys on stdin take the place of those that were known of it.
know() {
    {
        [ ! -f "$KNOWN" ] || ADDRESS=$1 awk '$1 != ENVIRON["ADDRESS"]' "$KNOWN"
        cat
    } >"$work/known"
    ! cmp -s "$work/known" "$KNOWN" || return 0
    grep -qsxF "key $KNOWN" "$MADE" || printf 'key %s\n' "$KNOWN" >>"$MADE"
    { cp "$work/known" "$KNOWN.new" && chmod 0644 "$KNOWN.new" && mv -f "$KNOWN.new" "$KNOWN"; } || die "$KNOWN could not be written: is the disk full?"
}

install_key() {
    [ $# = 3 ] || die 'key needs a NAME, a DEST and an ADDRESS'
    check_host "$1"
    board_name=$1 dest=$2
    check_home
    begin
    make_folder 0755 "${CONF%/*}"
    know "$3"
    make_key
    cat "$public"
}
