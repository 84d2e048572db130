# shellcheck shell=sh disable=SC2154 # variables come from gpu-doctor.sh
# Checks of the machine: settings, name, programs, tools that hang, what is hidden in /proc, the spool.

# inspect_settings: whether the settings can be read, and a token in them is private.
inspect_settings() {
    if [ -n "$settings_error" ]; then
        report_failure "$settings_error" 'correct it, then run this again; checks that need the settings are skipped'
    elif [ -z "${GPUBOARD_CONF:-}" ]; then
        report_pass 'no gpuboard.conf: the environment and the defaults apply'
    elif grep -q '^CONSUL_HTTP_TOKEN=.' "$GPUBOARD_CONF" && is_world_readable "$GPUBOARD_CONF"; then
        report_warning "$GPUBOARD_CONF contains a token, and every user of this machine can read it" "chmod o-r $GPUBOARD_CONF"
    else
        report_pass "$GPUBOARD_CONF"
    fi
}

# is_world_readable FILE: whether everybody can read it.
is_world_readable() { case $(stat -L -c %a "$1") in *[4567]) return 0 ;; *) return 1 ;; esac }

# inspect_name: whether HOST can be a name on the board.
inspect_name() {
    if message=$( (check_host_name "$HOST") 2>&1); then
        report_pass "this host is $HOST on the board"
    else
        report_failure "${message#"${0##*/}: "}" 'choose another: ./install.sh host --name NAME'
    fi
}

# inspect_tools: whether all programs that the scripts call are here.
inspect_tools() {
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
        report_failure "missing programs:$missing" 'install them (coreutils, util-linux, findutils, procps; ssh: openssh-client)'
    elif ! find / -maxdepth 0 -lname x >/dev/null 2>&1; then
        report_failure 'find is not GNU find, which is needed to see who has a file open' 'install findutils'
    else
        report_pass 'all required programs are installed'
    fi
}

# list_hung_tools: print pid, name and age of each tool that waits in the kernel for longer than the time limit.
list_hung_tools() {
    awk -v limit="$GPUBOARD_LIMIT" '
        BEGIN {
            getline up < "/proc/uptime"
            for (i = 1; i < ARGC; i++) {
                if ((getline line < ARGV[i]) > 0 && match(line, / \((nvidia|amd|rocm)-smi\) D /)) {
                    pid = line + 0
                    name = substr(line, RSTART + 2, RLENGTH - 6)
                    sub(/.*\) /, "", line)
                    split(line, field, " ")
                    if (up - field[20] / 100 > limit) print pid, name, int(up - field[20] / 100)
                }
                close(ARGV[i])
            }
        }' "$PROC"/[0-9]*/stat
}

# inspect_hung: whether a tool hangs; checked first, since then no other is started. One that only waits for a moment is gone at the second try.
inspect_hung() {
    hung=$(list_hung_tools)
    [ -z "$hung" ] || { sleep 1 && hung=$(list_hung_tools); }
    if [ -z "$hung" ]; then
        report_pass 'no nvidia-smi or similar tool hangs in the driver'
    else
        hung_name=${hung#* }
        report_failure "${hung_name%% *} (pid ${hung%% *}) has been hanging in the driver for ${hung##* } s, and even kill -9 does not end it" 'search dmesg for Xid, then reboot; until then it is not started again'
    fi
}

# inspect_hidepid: whether processes of other users are hidden; they are missing on the board.
inspect_hidepid() {
    hidepid=$(awk '$2 == "/proc" && $3 == "proc" && match($4, /hidepid=[^,]+/) {
        hide = substr($4, RSTART + 8, RLENGTH - 8)
        if (hide != "0" && hide != "off") print hide, match($4, /gid=[0-9]+/) ? substr($4, RSTART + 4, RLENGTH - 4) : "-"
    }' "$PROC/mounts" 2>/dev/null | tail -n 1)
    is_member=
    case " $(id -G) " in *" ${hidepid##* } "*) is_member=yes ;; esac
    case $hidepid in 4\ * | ptraceable\ *) is_member='' hidepid="${hidepid%% *} -" ;; esac # no group helps then
    if [ -z "$hidepid" ] || [ "$(id -u)" = 0 ] || [ -n "$is_member" ]; then
        report_pass 'this user sees the processes of all users'
    else
        advice='run the loops as root'
        [ "${hidepid##* }" = - ] || advice="as root, add this user to the group ${hidepid##* }: usermod -aG $(getent group "${hidepid##* }" | cut -d: -f1) $(id -un)"
        report_warning "/proc is mounted with hidepid=${hidepid%% *}: the board shows no user and no command for processes of other users" "$advice"
    fi
}

# inspect_spool: whether the spool can be written, is on a local disk, and has room.
inspect_spool() {
    require_settings || return 0
    if [ ! -e "$GPUBOARD_SPOOL" ]; then
        report_skip "$GPUBOARD_SPOOL does not exist yet: the loops have never been started"
        return
    fi
    # shellcheck disable=SC3067 # -O: in every sh that we know
    if [ -h "$GPUBOARD_SPOOL" ] || [ ! -d "$GPUBOARD_SPOOL" ] || [ ! -O "$GPUBOARD_SPOOL" ]; then
        report_failure "$GPUBOARD_SPOOL is not a folder of this user" 'remove it, or set GPUBOARD_SPOOL'
        return
    fi
    if [ ! -w "$GPUBOARD_SPOOL" ]; then
        report_failure "$GPUBOARD_SPOOL cannot be written: is its disk mounted read-only?" 'check dmesg, or set GPUBOARD_SPOOL to a folder on another disk'
        return
    fi
    run_with_timeout stat -f -c '%T' "$GPUBOARD_SPOOL"
    file_system=$(cat "$out")
    run_with_timeout df -Pk "$GPUBOARD_SPOOL"
    free_kb=$(awk 'NR == 2 {print int($4)}' "$out")
    run_with_timeout df -Pi "$GPUBOARD_SPOOL"
    free_inodes=$(awk 'NR == 2 && $2 > 0 {print int($4)}' "$out")
    case $file_system in
        nfs* | cifs | smb* | lustre | gpfs | ceph | *afs | beegfs | panfs | v9fs | 9p | ocfs2 | gfs*)
            report_failure "$GPUBOARD_SPOOL is on a network file system ($file_system): hosts that share it would share locks" 'set GPUBOARD_SPOOL to a folder on a local disk'
            ;;
        *)
            if [ -z "$free_kb" ]; then
                report_skip "df does not show the free space of $GPUBOARD_SPOOL"
            elif [ "$free_kb" -lt 1024 ] || [ "${free_inodes:-99}" -lt 20 ]; then
                report_failure "the disk of $GPUBOARD_SPOOL is full: $free_kb KB and ${free_inodes:-enough} inodes left" 'free some space, or set GPUBOARD_SPOOL to a folder on another disk'
            elif [ "$free_kb" -lt 65536 ]; then
                report_warning "the disk of $GPUBOARD_SPOOL is almost full: $((free_kb / 1024)) MB left" 'free some space, or set GPUBOARD_SPOOL to a folder on another disk'
            else
                report_pass "$GPUBOARD_SPOOL is on a local disk with $((free_kb / 1024)) MB free"
            fi
            ;;
    esac
}
