# shellcheck shell=sh disable=SC2034,SC2154 # variables of user.sh and host.sh
# ./install.sh key NAME DEST ADDRESS, which `gpuboard deploy` calls before host: make the key of this host, and print its public key,
# so that it is enrolled before the first snapshot is sent. The keys of the web host come on stdin, as lines of known_hosts for ADDRESS.
# shellcheck source=install/host.sh
. install/host.sh
KNOWN_HOSTS=${CONF%/*}/known_hosts

# store_known_hosts ADDRESS: replace the known keys of the address by those on stdin.
store_known_hosts() {
    {
        [ ! -f "$KNOWN_HOSTS" ] || ADDRESS=$1 awk '$1 != ENVIRON["ADDRESS"]' "$KNOWN_HOSTS"
        cat
    } >"$work/known"
    ! cmp -s "$work/known" "$KNOWN_HOSTS" || return 0
    grep -qsxF "key $KNOWN_HOSTS" "$MADE" || printf 'key %s\n' "$KNOWN_HOSTS" >>"$MADE"
    { cp "$work/known" "$KNOWN_HOSTS.new" && chmod 0644 "$KNOWN_HOSTS.new" && mv -f "$KNOWN_HOSTS.new" "$KNOWN_HOSTS"; } || die "$KNOWN_HOSTS could not be written: is the disk full?"
}

# install_key NAME DEST ADDRESS: do all of it.
install_key() {
    [ $# = 3 ] || die 'key needs a NAME, a DEST and an ADDRESS'
    check_host_name "$1"
    board_name=$1 dest=$2
    check_home
    open_share_folder
    make_folder 0755 "${CONF%/*}"
    store_known_hosts "$3"
    make_key
    cat "$public"
}
