# shellcheck shell=sh disable=SC2154 # variables come from gpu-doctor.sh
# Checks of what starts the loops, by cron or by a unit of systemd (docs/systemd.md), and of the loops.

# by_systemd: whether a unit of ours is enabled for this user; of one that was removed by hand, the link stays.
by_systemd() {
    for link in "${XDG_CONFIG_HOME:-$HOME/.config}"/systemd/user/*.wants/gpuboard-host.*; do
        [ ! -e "$link" ] || return 0
    done
    return 1
}

# hides_others: whether others' processes are hidden from us, so that nobody can tell whether a daemon runs.
hides_others() { ! (: <"$PROC/1/stat") 2>/dev/null; }

see_cron_daemon() {
    if by_systemd; then
        apart 'a unit of systemd starts the loops, and not cron'
    elif grep -qsxE 'cron|crond|cronie|fcron|systemd-cron|anacron' "$PROC"/[0-9]*/comm; then
        pass 'a cron daemon runs'
    elif hides_others; then
        skip "other people's processes are hidden here (hidepid), and with them a cron daemon"
    else
        fail 'no cron daemon runs: nobody starts the loops after a reboot' 'as root: systemctl enable --now cron (or crond); or let systemd start them: docs/systemd.md'
    fi
}

# see_cron_allowed: as crontab itself tells it, by cron.allow and cron.deny.
see_cron_allowed() {
    table=
    if by_systemd; then
        apart 'a unit of systemd starts the loops, and not cron'
    elif ! command -v crontab >/dev/null; then
        fail 'there is no crontab command here' 'install cron, or let systemd start the loops: docs/systemd.md'
    else
        asked crontab -l
        if words=$(grep -i 'not allowed' "$err"); then
            fail "this user may not have a crontab: $words" 'as root, add it to /etc/cron.allow, or take it out of /etc/cron.deny; or let systemd start the loops: docs/systemd.md'
        elif [ "$rc" = 0 ] || grep -qiE 'no crontab for|No such file' "$err"; then
            table=$work/crontab
            cp "$out" "$table"
            pass 'this user may have a crontab'
        else
            fail "the crontab cannot be read: $(last_words)" 'see whether cron is installed as it should be'
        fi
    fi
}

# script_of LINE: sets script to what a line of the crontab calls, in quotes or not; empty if nobody can tell where that is.
script_of() {
    script=$(printf '%s\n' "$1" | sed -e 's/gpu-check\.sh.*/gpu-check.sh/' -e 't path' -e ':path' -e "s/.*['\"]\(\/[^'\"]*\)\$/\1/" -e 't' -e 's/.*[[:space:];&|(]//' -e "s/^['\"]//")
    # shellcheck disable=SC2016,SC2088 # as they stand in the line
    case $script in
        /*) ;;
        '~/'* | '$HOME/'* | '${HOME}/'*) script=$HOME/${script#*/} ;;
        *) script= ;;
    esac
}

see_crontab() {
    if by_systemd; then
        pass 'a unit of systemd starts the loops'
    elif [ -z "$table" ]; then
        skip 'the crontab cannot be read'
    else
        line=$(grep -v '^[[:space:]]*#' "$table" | grep -F 'gpu-check.sh' | head -n 1 || :)
        script_of "$line"
        if [ -z "$line" ]; then
            warn 'the crontab of this user has no line for gpu-check.sh' 'call ./install.sh host as the user of the loops, and this as the same user'
        elif [ -n "$script" ] && [ ! -x "$script" ]; then
            fail "the crontab calls $script, which is not there" 'call ./install.sh host again'
        else
            pass "$line"
        fi
    fi
}

# see_linger: without it, the units of a user end with their last session, and do not begin at boot.
see_linger() {
    if ! by_systemd; then
        apart 'cron starts the loops, and not systemd'
    elif [ -e "/var/lib/systemd/linger/$(id -un)" ]; then
        pass 'units of this user run without a login'
    else
        fail 'units of this user end with their last login, and do not begin at boot' "loginctl enable-linger $(id -un)"
    fi
}

see_loops() {
    need_settings || return 0
    if [ ! -d "$RUN" ]; then
        fail "nothing was ever started here for $HOST by this user" "call $HERE/gpu-check.sh, which says what is wrong, or ./install.sh host"
        return
    fi
    bad='' ages=''
    for task in 1 2 3; do
        look "$task"
        case $state in
            running) ages="$ages, $age s" ;;
            hung) bad="$bad, $task hangs (pid ${pid:-unknown})" ;;
            stopped) bad="$bad, $task does not run" ;;
        esac
        [ "$state" = running ] || [ ! -s "$RUN/$task.err" ] || bad="$bad, and says: $(tail -n 1 "$RUN/$task.err")"
    done
    if [ -n "$bad" ]; then
        fail "of the loops${bad#,}" "call $HERE/gpu-check.sh, which starts them again, and says what is wrong"
    else
        pass "all three run; their last snapshots are${ages#,} old"
    fi
}
