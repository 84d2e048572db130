# shellcheck shell=sh disable=SC2154 # variables come from gpu-doctor.sh
# Checks of the push to the web host: the destination, the folder, the clock, what arrived last.

transport='' web_time='' asked_at=0

# inspect_dest: whether the destination is valid; set transport to folder, ssh or consul, and for ssh target and port.
inspect_dest() {
    require_settings || return 0
    if ! message=$( (check_destination) 2>&1); then
        report_failure "${message#"${0##*/}: "}" './install.sh host --dest DEST sets it'
        return
    fi
    case $GPUBOARD_DEST in
        /*) transport=folder ;;
        consul://*) transport=consul ;;
        ssh://*)
            transport=ssh
            # shellcheck source=scripts/lib/push_ssh.sh
            . "$LIB/push_ssh.sh"
            parse_ssh_destination
            ;;
        *)
            transport=ssh port=
            # shellcheck source=scripts/lib/push_sftp.sh
            . "$LIB/push_sftp.sh"
            parse_sftp_destination
            ;;
    esac
    report_pass "snapshots go to $GPUBOARD_DEST"
}

# require_transport TRANSPORT: skip the check unless snapshots go that way.
require_transport() { [ "$transport" = "$1" ] || { report_not_applicable "snapshots use another transport" && return 1; }; }

# inspect_folder: whether the folder is there and can be written.
inspect_folder() {
    require_transport folder || return 0
    run_with_timeout stat -c '%F' "$GPUBOARD_DEST"
    if is_timed_out; then
        report_failure "$GPUBOARD_DEST does not answer within $GPUBOARD_LIMIT s" 'the network file system hangs: check its server'
        return
    elif [ "$(cat "$out")" != directory ] && [ ! -d "$GPUBOARD_DEST/" ]; then
        report_failure "the folder $GPUBOARD_DEST does not exist" 'mount it, or create it on the web host; it is never created here'
        return
    fi
    place=$GPUBOARD_DEST/$HOST
    [ -d "$place" ] || place=$GPUBOARD_DEST
    if [ -w "$place" ] && [ -x "$place" ]; then
        report_pass "$place can be written"
        # the time of the file is by the clock of the machine that has the folder
        run_with_timeout stat -c '%Z' "$GPUBOARD_DEST/$HOST/host.txt"
        web_time=$(cat "$out")
        asked_at=$(sed -n '1s/.* time=\([0-9]*\) .*/\1/p' "$GPUBOARD_DEST/$HOST/host.txt" 2>/dev/null || :)
        # an old file says nothing about the clock now
        seconds_old=$(($(date +%s) - ${asked_at:-0}))
        [ "${seconds_old#-}" -lt 600 ] || asked_at=
    else
        report_failure "this user cannot write to $place" 'give it to this user, or to a group of this user with the sticky bit (chgrp, chmod g+rwx,+t)'
    fi
}

# inspect_clock: compare the clock with that of the machine that has data/, by what earlier checks read; else ask who sets this clock.
inspect_clock() {
    if [ -n "$web_time" ] && [ -n "$asked_at" ] && [ "$asked_at" != 0 ]; then
        offset=$((asked_at - web_time))
        direction=ahead
        [ "$offset" -ge 0 ] || { offset=$((-offset)) && direction=behind; }
        if [ "$offset" -gt 60 ]; then
            report_warning "the clock of this host is $offset s $direction of the web host's" 'synchronise both with NTP (chrony, systemd-timesyncd)'
        else
            report_pass "the clock of this host is within a minute of the web host's ($offset s)"
        fi
        return
    fi
    run_with_timeout chronyc -n tracking
    if [ "$rc" = 0 ] && grep -q '^Leap status  *: Normal' "$out"; then
        report_pass "chrony synchronises the clock:$(sed -n 's/^System time *://p' "$out")"
        return
    fi
    run_with_timeout timedatectl show -p NTPSynchronized --value
    case $rc:$(cat "$out") in
        0:yes) report_pass 'the clock is synchronised with NTP' ;;
        0:no) report_warning 'the clock of this host is not synchronised with NTP' 'as root: timedatectl set-ntp true' ;;
        *) report_skip 'cannot tell whether the clock is right: neither the web host nor chrony nor timedatectl says so' ;;
    esac
}

# inspect_push: whether the loops report that snapshots arrive.
inspect_push() {
    require_checks settings tools dest folder ssh-key ssh consul loops || return 0
    arrived_up='' dest=''
    [ ! -s "$SPOOL/sent" ] || read -r arrived_up dest <"$SPOOL/sent" || :
    read_uptime
    set_hang_limit "$GPUBOARD_PS_EVERY"
    if [ ! -d "$RUN" ]; then
        report_skip 'the loops have never been started here'
    elif [ -e "$SPOOL/push.failed" ]; then
        report_failure "the last push failed: $(cat "$SPOOL/push.failed")" 'see the checks above; the loops keep trying'
    elif [ -z "$arrived_up" ]; then
        report_failure 'nothing has arrived yet' "wait 20 s; then see the checks above, and $HERE/gpu-check.sh status"
    elif [ $((up - arrived_up)) -gt "$hang_limit" ]; then
        report_failure "nothing has arrived at $dest for $((up - arrived_up)) s" "see the checks above, and $HERE/gpu-check.sh status"
    else
        report_pass "the last push arrived $((up - arrived_up)) s ago at $dest"
    fi
}
