#!/bin/sh
# gpu-enrol.sh: on the web host, choose which ssh keys may push the snapshots of
# which GPU host. It changes only its own lines in authorized_keys.
#
#   gpu-enrol.sh [--data FOLDER] add HOST   read a public key from stdin; it
#                                           replaces the previous key of HOST
#   gpu-enrol.sh remove HOST | --all        revoke the key of HOST, or all keys
#                                           that use this gpu-receive.sh
#   gpu-enrol.sh list                       list each host with its key
#
# An enrolled key can do one thing: replace the snapshot of its HOST, through
# the gpu-receive.sh next to this script. FOLDER is the data folder, by default
# GPUBOARD_DATA in gpuboard.conf. --file FILE names another authorized_keys.
# Exit 0 on success, 2 on failure.
set -eu
case $0 in */*) HERE=${0%/*} ;; *) HERE=. ;; esac
[ ! -h "$0" ] || HERE=$(dirname "$(readlink -f "$0")")
HERE=$(CDPATH='' cd -- "$HERE" && pwd) && LIB=$HERE/lib
# shellcheck source=scripts/lib/common.sh
. "$LIB/common.sh"

# quote_word TEXT: quote a word for a shell, within the double quotes of authorized_keys, where only " needs a backslash.
quote_word() {
    case $1 in
        *[\\[:cntrl:]]*) die "'$(printf '%s' "$1" | tr '[:cntrl:]' '?')' must not contain backslashes or control characters" ;;
        *[!A-Za-z0-9/._+:@%,=-]*) printf "'%s'\n" "$(printf '%s\n' "$1" | sed "s/'/'\"'\"'/g")" | sed 's/"/\\"/g' ;;
        *) printf '%s\n' "$1" ;;
    esac
}

# check_data_folder: refuse a data folder that can never work now, not at every push.
check_data_folder() {
    folder=$data_option
    if [ -z "$folder" ]; then
        web_keys=yes
        load_settings
        folder=${GPUBOARD_DATA:-}
        [ -n "$folder" ] || die 'GPUBOARD_DATA is not set: run ./install.sh web first, or use --data FOLDER'
    fi
    case $folder in /*) ;; *) die "the data folder is '$folder', but must be absolute" ;; esac
    [ -d "$folder" ] || die "the data folder $folder does not exist"
}

# read_key: set key to TYPE and BASE64 of the one public key on stdin, checked by ssh-keygen. The rest of the line is dropped.
read_key() {
    type='' blob='' lines=0
    while IFS= read -r line || [ -n "$line" ]; do
        case $line in '' | '#'*) continue ;; esac
        lines=$((lines + 1))
        type=${line%% *} blob=${line#* } && blob=${blob%% *}
        [ "$lines" = 1 ] || break
    done
    [ "$lines" = 1 ] || die "expected one public key on stdin, in one line, as in $(printf 'keys/%s.pub' "$HOST")"
    case $type in
        ssh-ed25519 | ecdsa-sha2-nistp256 | ecdsa-sha2-nistp384 | ecdsa-sha2-nistp521 | ssh-rsa) ;;
        *) die 'this is not a public key: it must start with ssh-ed25519, without options before it' ;;
    esac
    case $blob in *[!A-Za-z0-9+/=]* | '') die 'this is not a public key: its second word is not base64' ;; esac
    key="$type $blob"
    printf '%s\n' "$key" | ssh-keygen -l -f - >/dev/null 2>&1 || die 'this is not a public key: ssh-keygen does not recognise it'
}

# print_other_lines: print all lines but those of HOST, or of our receiver, known by their first and last two words. Names are text: 1e1 is not 10.
print_other_lines() {
    HOST=$HOST OURS="restrict,command=\"$receiver " awk '
        !(NF > 3 && $(NF - 1) == "gpuboard" && index($0, "restrict,command=\"") == 1 &&
            (ENVIRON["HOST"] == "--all" ? index($0, ENVIRON["OURS"]) == 1 : $NF "" == ENVIRON["HOST"] ""))' "$keys_file"
}

# check_key_unused: refuse a key that has another line: sshd uses the first line of a key.
check_key_unused() {
    print_other_lines | awk -v blob="$blob" '
        !/^#/ {for (n = 1; n <= NF; n++) if ($n == blob) {print ($(NF - 1) == "gpuboard" ? $NF : ""); exit 1}}' >"$keys_file.found" && return
    owner=$(cat "$keys_file.found")
    [ -z "$owner" ] || die "this key is enrolled for $owner already: each host needs its own key"
    die "this key is in $keys_file already, without the restriction to gpuboard: remove that line first, or create a separate key"
}

# open_keys_file: take the lock, and make sure that the file is there; it may be a link.
open_keys_file() {
    [ -d "${keys_file%/*}" ] || (umask 077 && mkdir -p "${keys_file%/*}") || die "cannot create the folder ${keys_file%/*}"
    exec 9>>"$keys_file.gpuboard"
    flock -w 30 9 || die "another gpu-enrol.sh has been working on $keys_file for 30 s; try again"
    chmod 0600 "$keys_file.gpuboard"
    keys_file=$(readlink -f "$keys_file")
    trap 'rm -f "$keys_file.new" "$keys_file.found"' EXIT
    trap 'exit 143' TERM INT HUP
    [ -e "$keys_file" ] || (umask 077 && : >"$keys_file")
    if [ ! -r "$keys_file" ] || [ ! -f "$keys_file" ]; then die "cannot read $keys_file"; fi
}

die_of_full_disk() { die "$keys_file could not be written: is the disk full?"; }

# replace_keys_file: replace the file by FILE.found, with its owner and mode; then end the connections of keys that were removed.
replace_keys_file() {
    ! cmp -s "$keys_file" "$keys_file.found" || return 0
    { cp -p "$keys_file" "$keys_file.new" && cat "$keys_file.found" >"$keys_file.new" && mv -f "$keys_file.new" "$keys_file"; } || die_of_full_disk
    [ "$HOST" != --all ] || HOST='*'
    for pid in $(find /proc/[0-9]*/fd -lname "*/receive/*/$HOST/lock" 2>/dev/null | cut -d/ -f3 | sort -un); do
        ! tr '\000' ' ' 2>/dev/null <"/proc/$pid/cmdline" | grep -qF "$HERE/" || kill -9 "$pid" 2>/dev/null || : # not those of another board
    done
}

# enrol_host: let the key on stdin send the snapshots of HOST.
enrol_host() {
    check_data_folder
    read_key
    [ -z "$data_option" ] || data_option=$(quote_word "$data_option")
    open_keys_file
    check_key_unused
    { print_other_lines && printf 'restrict,command="%s%s %s" %s gpuboard %s\n' "$receiver" "${data_option:+ --data $data_option}" "$HOST" "$key" "$HOST"; } >"$keys_file.found" || die_of_full_disk
    replace_keys_file
}

# revoke_host: remove the key of HOST, or all keys.
revoke_host() {
    [ -e "$keys_file" ] || exit 0
    open_keys_file
    print_other_lines >"$keys_file.found" || die_of_full_disk
    replace_keys_file
}

# list_hosts: print the name and key of each enrolled host.
list_hosts() { [ ! -e "$keys_file" ] || awk 'NF > 3 && $(NF - 1) == "gpuboard" && index($0, "restrict,command=\"") == 1 {print $NF, $(NF - 3), $(NF - 2)}' "$keys_file"; }

data_option='' keys_file=''
while [ $# -gt 0 ]; do
    case $1 in
        -h | --help) print_help "$0" && exit ;;
        --data | --file) [ $# -ge 2 ] || die "$1 needs a value: see gpu-enrol.sh --help" ;;
    esac
    case $1 in
        --data) data_option=$2 && shift ;;
        --file) keys_file=$2 && shift ;;
        -*) die "unknown option $1: see gpu-enrol.sh --help" ;;
        *) break ;;
    esac
    shift
done
[ -n "${HOME:-}" ] || HOME=$(getent passwd "$(id -u)" | cut -d: -f6)
keys_file=${keys_file:-$HOME/.ssh/authorized_keys}
case ${1:-}:$# in
    add:2 | remove:2)
        [ "$*" = 'remove --all' ] || check_host_name "$2"
        HOST=$2 receiver=$(quote_word "$HERE/gpu-receive.sh")
        case $1 in add) enrol_host ;; remove) revoke_host ;; esac
        ;;
    list:1) list_hosts ;;
    *) print_help "$0" >&2 && exit 2 ;;
esac
