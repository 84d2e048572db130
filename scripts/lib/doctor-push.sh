# shellcheck shell=sh disable=SC2154 # variables come from gpu-doctor.sh
# Checks of the way to the web host: the destination, the folder, the clock, what arrived last.

way='' web_time='' asked_at=0

# see_dest: sets way to folder, ssh or consul, and for ssh target and port.
see_dest() {
    need_settings || return 0
    if ! words=$( (check_dest) 2>&1); then
        fail "${words#"${0##*/}: "}" './install.sh host --dest DEST sets it'
        return
    fi
    case $GPUBOARD_DEST in
        /*) way=folder ;;
        consul://*) way=consul ;;
        ssh://*)
            way=ssh
            # shellcheck source=scripts/lib/to-ssh.sh
            . "$LIB/to-ssh.sh"
            parse_url
            ;;
        *)
            way=ssh port=
            # shellcheck source=scripts/lib/to-sftp.sh
            . "$LIB/to-sftp.sh"
            parse_dest
            ;;
    esac
    pass "snapshots go to $GPUBOARD_DEST"
}

# applies WAY: whether snapshots go that way; else the check is skipped.
applies() { [ "$way" = "$1" ] || { apart "snapshots do not go that way" && return 1; }; }

see_folder() {
    applies folder || return 0
    asked stat -c '%F' "$GPUBOARD_DEST"
    if timed_out; then
        fail "$GPUBOARD_DEST does not answer within $GPUBOARD_LIMIT s" 'the share hangs: see its server'
        return
    elif [ "$(cat "$out")" != directory ] && [ ! -d "$GPUBOARD_DEST/" ]; then
        fail "the folder $GPUBOARD_DEST is not there" 'mount it, or make it on the web host: it is never made here'
        return
    fi
    place=$GPUBOARD_DEST/$HOST
    [ -d "$place" ] || place=$GPUBOARD_DEST
    if [ -w "$place" ] && [ -x "$place" ]; then
        pass "$place can be written"
        # what stands there came by the clock of the machine that has the folder
        asked stat -c '%Z' "$GPUBOARD_DEST/$HOST/host.txt"
        web_time=$(cat "$out")
        asked_at=$(sed -n '1s/.* time=\([0-9]*\) .*/\1/p' "$GPUBOARD_DEST/$HOST/host.txt" 2>/dev/null || :)
        # what came long ago tells of the clock of then
        seconds_old=$(($(date +%s) - ${asked_at:-0}))
        [ "${seconds_old#-}" -lt 600 ] || asked_at=
    else
        fail "$place cannot be written by this user" 'give it to this user, or to a group of theirs with the sticky bit (chgrp, chmod g+rwx,+t)'
    fi
}

# see_clock: against the machine that has data/, by what the checks before this one heard; else by whoever sets this clock.
see_clock() {
    if [ -n "$web_time" ] && [ -n "$asked_at" ] && [ "$asked_at" != 0 ]; then
        off=$((asked_at - web_time))
        which=ahead
        [ "$off" -ge 0 ] || { off=$((-off)) && which=behind; }
        if [ "$off" -gt 60 ]; then
            warn "the clock of this host is $off s $which of the web host's" 'set both by NTP (chrony, systemd-timesyncd)'
        else
            pass "the clock of this host is within a minute of the web host's ($off s)"
        fi
        return
    fi
    asked chronyc -n tracking
    if [ "$rc" = 0 ] && grep -q '^Leap status  *: Normal' "$out"; then
        pass "chrony sets the clock:$(sed -n 's/^System time *://p' "$out")"
        return
    fi
    asked timedatectl show -p NTPSynchronized --value
    case $rc:$(cat "$out") in
        0:yes) pass 'the clock is set by NTP' ;;
        0:no) warn 'the clock of this host is not set by NTP' 'as root: timedatectl set-ntp true' ;;
        *) skip 'nobody here tells whether the clock is right: neither the web host, nor chrony, nor timedatectl' ;;
    esac
}

# see_push: what the loops themselves say of it.
see_push() {
    need_settings || return 0
    stamp='' dest=''
    [ ! -s "$SPOOL/sent" ] || read -r stamp dest <"$SPOOL/sent" || :
    seconds_up
    set_patience "$GPUBOARD_PS_EVERY"
    if [ ! -d "$RUN" ]; then
        skip 'nothing was ever started here'
    elif [ -e "$SPOOL/push.failed" ]; then
        fail "the last push failed: $(cat "$SPOOL/push.failed")" 'see the checks above; the loops try on by themselves'
    elif [ -z "$stamp" ]; then
        fail 'nothing has arrived yet' "wait 20 s; then see the checks above, and $HERE/gpu-check.sh status"
    elif [ $((up - stamp)) -gt "$patience" ]; then
        fail "nothing has arrived at $dest for $((up - stamp)) s" "see the checks above, and $HERE/gpu-check.sh status"
    else
        pass "last arrived $((up - stamp)) s ago at $dest"
    fi
}
