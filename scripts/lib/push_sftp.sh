# shellcheck shell=sh disable=SC2154 # new_files, mode: set by the script that reads this one
# Push over sftp, in one session that stays open; RUN/ssh is the control socket of the connection.
# shellcheck source=scripts/lib/session.sh
. "$LIB/session.sh"

# parse_sftp_destination: set target and path from user@web:/path/data, user@[::1]:/path/data or web:data.
parse_sftp_destination() {
    case $GPUBOARD_DEST in
        *\]:*) target=${GPUBOARD_DEST%%\]:*}] path=${GPUBOARD_DEST#*\]:} ;;
        *) target=${GPUBOARD_DEST%%:*} path=${GPUBOARD_DEST#*:} ;;
    esac
    path=${path#\~/} # sftp starts in the home folder and does not expand ~
    folder=${path:-.}/$HOST
    quoted=$(printf '%s\n' "$folder" | sed 's/[\\"]/\\&/g')
}

# run_push_sftp MASTER PREFIX...: run sftp, for the session and for `once`, which uses the connection of the session if there is one.
run_push_sftp() {
    control=$RUN/ssh
    [ ${#control} -le 85 ] || control=none # the name of a socket has at most 107 characters, and ssh adds some
    master=$1
    shift
    "$@" sftp -b - ${GPUBOARD_SSH_CONFIG:+-F "$GPUBOARD_SSH_CONFIG"} -o BatchMode=yes -o LogLevel=ERROR -o StrictHostKeyChecking=yes \
        -o ConnectTimeout="$GPUBOARD_LIMIT" -o ServerAliveInterval=5 -o ServerAliveCountMax=2 \
        -o ControlMaster="$master" -o ControlPath="$control" -o ControlPersist=no "$target" >/dev/null
}

# print_put_commands: upload each file under another name, then rename it (posix-rename).
print_put_commands() {
    for file in $new_files; do
        printf 'put "%s" "%s/.%s.new"\nchmod 0640 "%s/.%s.new"\nrename "%s/.%s.new" "%s/%s"\n' \
            "$SPOOL/$file" "$quoted" "$file" "$quoted" "$file" "$quoted" "$file" "$quoted" "$file"
    done
}

# print_mkdir_commands: create the folder of this host, where nobody else may put a link that sftp would follow. The 2 keeps the group of data/.
print_mkdir_commands() { printf -- '-mkdir "%s"\n-chmod 2750 "%s"\n' "$quoted" "$quoted"; }

# push_to_sftp: send new_files; print errors on stderr.
push_to_sftp() {
    parse_sftp_destination
    if [ "$mode" = once ]; then
        { print_mkdir_commands && print_put_commands; } | run_push_sftp no timeout -k 1 "$GPUBOARD_LIMIT"
        return
    fi
    join_session "$target" || {
        start_session "$target" run_push_sftp yes env SHELL=/bin/sh
        print_mkdir_commands >&4
    }
    { print_put_commands && printf '!echo %s 1<>%s\n' "$$" "$RUN/ack"; } >&4
    code=0
    # shellcheck disable=SC2016 # for the inner shell
    timeout -k 1 "$GPUBOARD_LIMIT" sh -c 'while read -r word; do case $word in "$1") exit 0 ;; gone) exit 1 ;; esac; done; exit 1' - "$$" <&5 || code=$?
    [ "$code" != 0 ] || return 0
    cat "$RUN/session.err" >&2 || :
    end_session
    return "$code"
}
