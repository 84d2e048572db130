#!/bin/sh
# gpu-enrol.sh: on the web host, say which key may bring the snapshots of which
# GPU host. It writes the account's authorized_keys, and only lines of its own.
#
#   gpu-enrol.sh [--data FOLDER] add HOST   the public key comes on stdin; it
#                                           takes the place of HOST's last one
#   gpu-enrol.sh remove HOST | --all        HOST can send no more, or none can
#                                           that calls this gpu-receive.sh
#   gpu-enrol.sh list                       a line a host: its name and its key
#
# A key that is enrolled can do one thing: replace the snapshot of its HOST, by
# gpu-receive.sh beside this script. FOLDER is the data folder, GPUBOARD_DATA
# of gpuboard.conf by default. --file FILE names another authorized_keys.
# Exit 0 if it is done, 2 if not.
set -eu
case $0 in */*) HERE=${0%/*} ;; *) HERE=. ;; esac
[ ! -h "$0" ] || HERE=$(dirname "$(readlink -f "$0")")
HERE=$(CDPATH='' cd -- "$HERE" && pwd) && LIB=$HERE/lib
# shellcheck source=scripts/lib/common.sh
. "$LIB/common.sh"

# quoted TEXT: one word for a shell, within the quotes of authorized_keys, where only \" is not itself.
quoted() {
    case $1 in
        *[\\[:cntrl:]]*) die "'$(printf '%s' "$1" | tr '[:cntrl:]' '?')' may hold neither backslashes nor control characters" ;;
        *[!A-Za-z0-9/._+:@%,=-]*) printf "'%s'\n" "$(printf '%s\n' "$1" | sed "s/'/'\"'\"'/g")" | sed 's/"/\\"/g' ;;
        *) printf '%s\n' "$1" ;;
    esac
}

# check_data: a folder that can never work is told now, not at every push.
check_data() {
    folder=$data
    if [ -z "$folder" ]; then
        web_keys=yes
        load_settings
        folder=${GPUBOARD_DATA:-}
        [ -n "$folder" ] || die 'GPUBOARD_DATA is not set: call ./install.sh web first, or give --data FOLDER'
    fi
    case $folder in /*) ;; *) die "the data folder is '$folder', but must be absolute" ;; esac
    [ -d "$folder" ] || die "the data folder $folder is not there"
}

# read_key: sets key to TYPE and BASE64 of the one public key on stdin; ssh-keygen has the last word. Nothing else of the line is taken over.
read_key() {
    type='' blob='' lines=0
    while IFS= read -r line || [ -n "$line" ]; do
        case $line in '' | '#'*) continue ;; esac
        lines=$((lines + 1))
        type=${line%% *} blob=${line#* } && blob=${blob%% *}
        [ "$lines" = 1 ] || break
    done
    [ "$lines" = 1 ] || die "one public key is needed on stdin, a line, as in $(printf 'keys/%s.pub' "$HOST")"
    case $type in
        ssh-ed25519 | ecdsa-sha2-nistp256 | ecdsa-sha2-nistp384 | ecdsa-sha2-nistp521 | ssh-rsa) ;;
        *) die 'this is not a public key: it must begin with ssh-ed25519, and have no options before it' ;;
    esac
    case $blob in *[!A-Za-z0-9+/=]* | '') die 'this is not a public key: its second word is not base64' ;; esac
    key="$type $blob"
    printf '%s\n' "$key" | ssh-keygen -l -f - >/dev/null 2>&1 || die 'this is not a public key: ssh-keygen does not know it'
}

# other_lines: all but HOST's, or all but those with our own receiver. A line is ours by its last two words and its first. 1e1 is not 10.
other_lines() {
    HOST=$HOST OURS="restrict,command=\"$receiver " awk '
        !(NF > 3 && $(NF - 1) == "gpuboard" && index($0, "restrict,command=\"") == 1 &&
            (ENVIRON["HOST"] == "--all" ? index($0, ENVIRON["OURS"]) == 1 : $NF "" == ENVIRON["HOST"] ""))' "$file"
}

# check_unused: sshd takes the first line of a key, so a key that stands elsewhere too would not do what its own line says.
check_unused() {
    other_lines | awk -v blob="$blob" '
        !/^#/ {for (n = 1; n <= NF; n++) if ($n == blob) {print ($(NF - 1) == "gpuboard" ? $NF : ""); exit 1}}' >"$file.found" && return
    owner=$(cat "$file.found")
    [ -z "$owner" ] || die "this key is enrolled for $owner already: each host needs a key of its own"
    die "this key stands in $file already, and not for gpuboard alone: take that line out first, or make a key for gpuboard"
}

# begin: our turn, and a file to read; some keep theirs elsewhere, and a link here.
begin() {
    [ -d "${file%/*}" ] || (umask 077 && mkdir -p "${file%/*}") || die "cannot make the folder ${file%/*}"
    exec 9>>"$file.gpuboard"
    flock -w 30 9 || die "another gpu-enrol.sh has been at work on $file for 30 s; try again"
    chmod 0600 "$file.gpuboard"
    file=$(readlink -f "$file")
    trap 'rm -f "$file.new" "$file.found"' EXIT
    trap 'exit 143' TERM INT HUP
    [ -e "$file" ] || (umask 077 && : >"$file")
    if [ ! -r "$file" ] || [ ! -f "$file" ]; then die "cannot read $file"; fi
}

full() { die "$file could not be written: is the disk full?"; }

# replace: what is in FILE.found takes the place of the file, with its owner and mode; then whoever came by a key that is gone is put out.
replace() {
    ! cmp -s "$file" "$file.found" || return 0
    { cp -p "$file" "$file.new" && cat "$file.found" >"$file.new" && mv -f "$file.new" "$file"; } || full
    [ "$HOST" != --all ] || HOST='*'
    for pid in $(find /proc/[0-9]*/fd -lname "*/receive/*/$HOST/lock" 2>/dev/null | cut -d/ -f3 | sort -un); do
        ! tr '\000' ' ' 2>/dev/null <"/proc/$pid/cmdline" | grep -qF "$HERE/" || kill -9 "$pid" 2>/dev/null || : # another board's stays
    done
}

add() {
    check_data
    read_key
    [ -z "$data" ] || data=$(quoted "$data")
    begin
    check_unused
    { other_lines && printf 'restrict,command="%s%s %s" %s gpuboard %s\n' "$receiver" "${data:+ --data $data}" "$HOST" "$key" "$HOST"; } >"$file.found" || full
    replace
}

remove() {
    [ -e "$file" ] || exit 0
    begin
    other_lines >"$file.found" || full
    replace
}

list() { [ ! -e "$file" ] || awk 'NF > 3 && $(NF - 1) == "gpuboard" && index($0, "restrict,command=\"") == 1 {print $NF, $(NF - 3), $(NF - 2)}' "$file"; }

data='' file=''
while [ $# -gt 0 ]; do
    case $1 in
        -h | --help) print_help "$0" && exit ;;
        --data | --file) [ $# -ge 2 ] || die "$1 needs a word behind it: see gpu-enrol.sh --help" ;;
    esac
    case $1 in
        --data) data=$2 && shift ;;
        --file) file=$2 && shift ;;
        -*) die "there is no option $1: see gpu-enrol.sh --help" ;;
        *) break ;;
    esac
    shift
done
[ -n "${HOME:-}" ] || HOME=$(getent passwd "$(id -u)" | cut -d: -f6)
file=${file:-$HOME/.ssh/authorized_keys}
case ${1:-}:$# in
    add:2 | remove:2)
        HOST=$2
        [ "$*" = 'remove --all' ] || check_host "$HOST"
        receiver=$(quoted "$HERE/gpu-receive.sh")
        "$1"
        ;;
    list:1) list ;;
    *) print_help "$0" >&2 && exit 2 ;;
esac
