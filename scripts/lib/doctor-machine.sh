# shellcheck shell=sh disable=SC2154 # variables come from gpu-doctor.sh
# Checks of the machine: settings, name, programs, what of /proc is hidden, the spool.

see_settings() {
    if [ -n "$wrong" ]; then
        fail "$wrong" 'correct it, then call this again: what needs the settings is skipped below'
    elif [ -z "${GPUBOARD_CONF:-}" ]; then
        pass 'there is no gpuboard.conf: environment and defaults count'
    elif grep -q '^CONSUL_HTTP_TOKEN=.' "$GPUBOARD_CONF" && readable_for_all "$GPUBOARD_CONF"; then
        warn "$GPUBOARD_CONF has a token in it, and everybody here can read it" "chmod o-r $GPUBOARD_CONF"
    else
        pass "$GPUBOARD_CONF"
    fi
}

readable_for_all() { case $(stat -L -c %a "$1") in *[4567]) return 0 ;; *) return 1 ;; esac }

see_name() {
    if words=$( (check_host "$HOST") 2>&1); then
        pass "this host is $HOST on the board"
    else
        fail "${words#"${0##*/}: "}" 'choose another: ./install.sh host --name NAME'
    fi
}

see_tools() {
    needed='awk cut date df find flock getent grep id mktemp mv ps readlink sed setsid sort stat tail timeout tr'
    case ${GPUBOARD_DEST:-} in
        consul://*) needed="$needed gzip" ;;
        ssh://*) needed="$needed ssh ssh-keygen" ;;
        [!/]*:*) needed="$needed ssh sftp ssh-keygen" ;;
    esac
    missing=
    for tool in $needed; do command -v "$tool" >/dev/null || missing="$missing $tool"; done
    case ${GPUBOARD_DEST:-} in consul://*) command -v curl >/dev/null || wget --help 2>&1 | grep -q -e --method || missing="$missing curl" ;; esac
    if [ -n "$missing" ]; then
        fail "not found here:$missing" 'install them (coreutils, util-linux, findutils, procps; ssh: openssh-client)'
    elif ! find / -maxdepth 0 -lname x >/dev/null 2>&1; then
        fail 'find is not that of GNU, and cannot tell who has a file open' 'install findutils'
    else
        pass 'all programs that the scripts call are here'
    fi
}

# see_hidepid: what is hidden from this user is missing on the board.
see_hidepid() {
    hides=$(awk '$2 == "/proc" && $3 == "proc" && match($4, /hidepid=[^,]+/) {
        hide = substr($4, RSTART + 8, RLENGTH - 8)
        if (hide != "0" && hide != "off") print hide, match($4, /gid=[0-9]+/) ? substr($4, RSTART + 4, RLENGTH - 4) : "-"
    }' "$PROC/mounts" 2>/dev/null | tail -n 1)
    is_member=
    case " $(id -G) " in *" ${hides##* } "*) is_member=yes ;; esac
    case $hides in 4\ * | ptraceable\ *) is_member='' hides="${hides%% *} -" ;; esac # there no group helps
    if [ -z "$hides" ] || [ "$(id -u)" = 0 ] || [ -n "$is_member" ]; then
        pass "this user sees everybody's processes"
    else
        advice='run the loops as root'
        [ "${hides##* }" = - ] || advice="let this user be in the group ${hides##* }, as root: usermod -aG $(getent group "${hides##* }" | cut -d: -f1) $(id -un)"
        warn "/proc is mounted with hidepid=${hides%% *}: the board shows no user and no command of other people's processes" "$advice"
    fi
}

see_spool() {
    need_settings || return 0
    if [ ! -e "$GPUBOARD_SPOOL" ]; then
        skip "$GPUBOARD_SPOOL is not there yet: nothing was ever started here"
        return
    fi
    # shellcheck disable=SC3067 # -O: in every sh that we know
    if [ -h "$GPUBOARD_SPOOL" ] || [ ! -d "$GPUBOARD_SPOOL" ] || [ ! -O "$GPUBOARD_SPOOL" ]; then
        fail "$GPUBOARD_SPOOL is not a folder of this user" 'remove it, or set GPUBOARD_SPOOL'
        return
    fi
    if [ ! -w "$GPUBOARD_SPOOL" ]; then
        fail "$GPUBOARD_SPOOL cannot be written: is its disk mounted read-only?" 'look at dmesg; or set GPUBOARD_SPOOL to a folder on another disk'
        return
    fi
    asked stat -f -c '%T' "$GPUBOARD_SPOOL"
    kind=$(cat "$out")
    asked df -Pk "$GPUBOARD_SPOOL"
    room=$(awk 'NR == 2 {print int($4)}' "$out")
    asked df -Pi "$GPUBOARD_SPOOL"
    names=$(awk 'NR == 2 && $2 > 0 {print int($4)}' "$out")
    case $kind in
        nfs* | cifs | smb* | lustre | gpfs | ceph | *afs | beegfs | panfs | v9fs | 9p | ocfs2 | gfs*)
            fail "$GPUBOARD_SPOOL is on a network file system ($kind): hosts that share it would share locks" 'set GPUBOARD_SPOOL to a folder on a local disk'
            ;;
        *)
            if [ -z "$room" ]; then
                skip "df does not tell how much room $GPUBOARD_SPOOL has"
            elif [ "$room" -lt 1024 ] || [ "${names:-99}" -lt 20 ]; then
                fail "the disk of $GPUBOARD_SPOOL is full: $room KB and ${names:-enough} names are left" 'make room, or set GPUBOARD_SPOOL to a folder on another disk'
            elif [ "$room" -lt 65536 ]; then
                warn "the disk of $GPUBOARD_SPOOL is almost full: $((room / 1024)) MB are left" 'make room, or set GPUBOARD_SPOOL to a folder on another disk'
            else
                pass "$GPUBOARD_SPOOL is on a local disk, with $((room / 1024)) MB to spare"
            fi
            ;;
    esac
}
