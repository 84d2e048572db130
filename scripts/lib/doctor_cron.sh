# shellcheck shell=sh disable=SC2154 # variables come from gpu-doctor.sh
# Checks of what starts the loops, cron or a unit of systemd (docs/systemd.md), and of the loops.

# is_started_by_systemd: whether a unit of ours is enabled for this user; the link of one that was removed by hand stays, and does not count.
is_started_by_systemd() {
    for link in "${XDG_CONFIG_HOME:-$HOME/.config}"/systemd/user/*.wants/gpuboard-host.*; do
        [ ! -e "$link" ] || return 0
    done
    return 1
}

# is_proc_hidden: whether processes of other users are hidden, so that nobody can say whether a daemon runs.
is_proc_hidden() { ! (: <"$PROC/1/stat") 2>/dev/null; }

# inspect_cron_daemon: whether a cron daemon runs.
inspect_cron_daemon() {
    if is_started_by_systemd; then
        report_not_applicable 'a unit of systemd starts the loops, and not cron'
    elif grep -qsxE 'cron|crond|cronie|fcron|systemd-cron|anacron' "$PROC"/[0-9]*/comm; then
        report_pass 'a cron daemon runs'
    elif is_proc_hidden; then
        report_skip "other people's processes are hidden here (hidepid), and with them a cron daemon"
    else
        report_failure 'no cron daemon runs: nobody starts the loops after a reboot' 'as root: systemctl enable --now cron (or crond); or let systemd start them: docs/systemd.md'
    fi
}

# inspect_cron_allowed: whether this user may have a crontab, by cron.allow and cron.deny; set table to a copy of it.
inspect_cron_allowed() {
    table=
    if is_started_by_systemd; then
        report_not_applicable 'a unit of systemd starts the loops, and not cron'
    elif ! command -v crontab >/dev/null; then
        report_failure 'there is no crontab command here' 'install cron, or let systemd start the loops: docs/systemd.md'
    else
        run_with_timeout crontab -l
        if message=$(grep -i 'not allowed' "$err"); then
            report_failure "this user may not have a crontab: $message" 'as root, add it to /etc/cron.allow, or take it out of /etc/cron.deny; or let systemd start the loops: docs/systemd.md'
        elif [ "$rc" = 0 ] || grep -qiE 'no crontab for|No such file' "$err"; then
            table=$work/crontab
            cp "$out" "$table"
            report_pass 'this user may have a crontab'
        else
            report_failure "the crontab cannot be read: $(print_last_line)" 'see whether cron is installed as it should be'
        fi
    fi
}

# find_crontab_script LINE: set script to the path that a line of the crontab calls, in quotes or not; empty if it is not known.
find_crontab_script() {
    script=$(printf '%s\n' "$1" | sed -e 's/gpu-check\.sh.*/gpu-check.sh/' -e 't path' -e ':path' -e "s/.*['\"]\(\/[^'\"]*\)\$/\1/" -e 't' -e 's/.*[[:space:];&|(]//' -e "s/^['\"]//")
    # shellcheck disable=SC2016,SC2088 # as they stand in the line
    case $script in
        /*) ;;
        '~/'* | '$HOME/'* | '${HOME}/'*) script=$HOME/${script#*/} ;;
        *) script= ;;
    esac
}

# inspect_crontab: whether the crontab calls gpu-check.sh.
inspect_crontab() {
    if is_started_by_systemd; then
        report_pass 'a unit of systemd starts the loops'
    elif [ -z "$table" ]; then
        report_skip 'the crontab cannot be read'
    else
        line=$(grep -v '^[[:space:]]*#' "$table" | grep -F 'gpu-check.sh' | head -n 1 || :)
        find_crontab_script "$line"
        if [ -z "$line" ]; then
            report_warning 'the crontab of this user has no line for gpu-check.sh' 'call ./install.sh host as the user of the loops, and this as the same user'
        elif [ -n "$script" ] && [ ! -x "$script" ]; then
            report_failure "the crontab calls $script, which is not there" 'call ./install.sh host again'
        else
            report_pass "$line"
        fi
    fi
}

# inspect_linger: whether units of this user run without a login; else they end with the last session, and do not start at boot.
inspect_linger() {
    if ! is_started_by_systemd; then
        report_not_applicable 'cron starts the loops, and not systemd'
    elif [ -e "/var/lib/systemd/linger/$(id -un)" ]; then
        report_pass 'units of this user run without a login'
    else
        report_failure 'units of this user end with their last login, and do not begin at boot' "loginctl enable-linger $(id -un)"
    fi
}

# inspect_loops: whether all three loops run.
inspect_loops() {
    require_settings || return 0
    if [ ! -d "$RUN" ]; then
        report_failure "nothing was ever started here for $HOST by this user" "call $HERE/gpu-check.sh, which says what is wrong, or ./install.sh host"
        return
    fi
    problems='' ages=''
    for task in 1 2 3; do
        read_loop_state "$task"
        case $state in
            running) ages="$ages, $age s" ;;
            hung) problems="$problems, $task hangs (pid ${pid:-unknown})" ;;
            stopped) problems="$problems, $task does not run" ;;
        esac
        [ "$state" = running ] || [ ! -s "$RUN/$task.err" ] || problems="$problems, and says: $(tail -n 1 "$RUN/$task.err")"
    done
    if [ -n "$problems" ]; then
        report_failure "of the loops${problems#,}" "call $HERE/gpu-check.sh, which starts them again, and says what is wrong"
    else
        report_pass "all three run; their last snapshots are${ages#,} old"
    fi
}
