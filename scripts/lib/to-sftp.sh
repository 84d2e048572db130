# shellcheck shell=sh disable=SC2154 # new, mode: set by the script that reads this one
# Push over sftp, by one session that stays open; RUN/ssh is the connection's control socket.
# shellcheck source=scripts/lib/session.sh
. "$LIB/session.sh"

# parse_dest: user@web:/path/data, user@[::1]:/path/data, web:data
parse_dest() {
    case $GPUBOARD_DEST in
        *\]:*) target=${GPUBOARD_DEST%%\]:*}] path=${GPUBOARD_DEST#*\]:} ;;
        *) target=${GPUBOARD_DEST%%:*} path=${GPUBOARD_DEST#*:} ;;
    esac
    path=${path#\~/} # sftp starts in the home folder and knows no ~
    folder=${path:-.}/$HOST
    quoted=$(printf '%s\n' "$folder" | sed 's/[\\"]/\\&/g')
}

# sftp_to MASTER PREFIX...: the same call for the kept session and for `once`, which rides on its connection where there is one.
sftp_to() {
    control=$RUN/ssh
    [ ${#control} -le 85 ] || control=none # a socket's name has at most 107 characters, and ssh adds some
    master=$1
    shift
    "$@" sftp -b - ${GPUBOARD_SSH_CONFIG:+-F "$GPUBOARD_SSH_CONFIG"} -o BatchMode=yes -o LogLevel=ERROR -o StrictHostKeyChecking=yes \
        -o ConnectTimeout="$GPUBOARD_LIMIT" -o ServerAliveInterval=5 -o ServerAliveCountMax=2 \
        -o ControlMaster="$master" -o ControlPath="$control" -o ControlPersist=no "$target" >/dev/null
}

# put_commands: each file beside its place, then renamed over it (posix-rename).
put_commands() {
    for file in $new; do
        printf 'put "%s" "%s/.%s.new"\nchmod 0640 "%s/.%s.new"\nrename "%s/.%s.new" "%s/%s"\n' \
            "$SPOOL/$file" "$quoted" "$file" "$quoted" "$file" "$quoted" "$file" "$quoted" "$file"
    done
}

# make_commands: the folder of this host, in which nobody else may put a link: sftp would write through it. 2 keeps the group of data/.
make_commands() { printf -- '-mkdir "%s"\n-chmod 2750 "%s"\n' "$quoted" "$quoted"; }

# to_sftp: sends $new; what went wrong goes to stderr.
to_sftp() {
    parse_dest
    if [ "$mode" = once ]; then
        { make_commands && put_commands; } | sftp_to no timeout -k 1 "$GPUBOARD_LIMIT"
        return
    fi
    join_session "$target" || {
        start_session "$target" sftp_to yes env SHELL=/bin/sh
        make_commands >&4
    }
    { put_commands && printf '!echo %s 1<>%s\n' "$$" "$RUN/ack"; } >&4
    code=0
    # shellcheck disable=SC2016 # for the inner shell
    timeout -k 1 "$GPUBOARD_LIMIT" sh -c 'while read -r word; do case $word in "$1") exit 0 ;; gone) exit 1 ;; esac; done; exit 1' - "$$" <&5 || code=$?
    [ "$code" != 0 ] || return 0
    cat "$RUN/session.err" >&2 || :
    end_session
    return "$code"
}
