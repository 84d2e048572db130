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

# has_running_loop: whether one of the three loops runs.
has_running_loop() {
    [ -d "$RUN" ] || return 1
    for task in 1 2 3; do
        read_loop_state "$task"
        [ "$state" != running ] || return 0
    done
    return 1
}

# inspect_cron_daemon: whether a cron daemon runs.
inspect_cron_daemon() {
    cron_advice='as root: systemctl enable --now cron (or crond); or use systemd: docs/systemd.md'
    if is_started_by_systemd; then
        report_not_applicable 'systemd starts the loops, not cron'
    elif grep -qsxE 'cron|crond|cronie|fcron|systemd-cron|anacron' "$PROC"/[0-9]*/comm; then
        report_pass 'a cron daemon is running'
    elif is_proc_hidden; then
        report_skip 'cannot tell: the processes of other users are hidden here (hidepid)'
    elif has_running_loop; then
        report_warning 'no cron daemon is running: the loops run, but do not start again after a reboot' "$cron_advice"
        failed_checks="$failed_checks cron-daemon"
    else
        report_failure 'no cron daemon is running, so nothing starts the loops' "$cron_advice"
    fi
}

# inspect_cron_allowed: whether this user may have a crontab, by cron.allow and cron.deny; set table to a copy of it.
inspect_cron_allowed() {
    table=
    if is_started_by_systemd; then
        report_not_applicable 'systemd starts the loops, not cron'
    elif ! require_checks cron-daemon; then
        :
    elif ! command -v crontab >/dev/null; then
        report_failure 'there is no crontab command' 'install cron, or use systemd: docs/systemd.md'
    else
        run_with_timeout crontab -l
        if message=$(grep -i 'not allowed' "$err"); then
            report_failure "this user is not allowed to use cron: $message" 'as root, add the user to /etc/cron.allow, or remove it from /etc/cron.deny; or use systemd: docs/systemd.md'
        elif [ "$rc" = 0 ] || grep -qiE 'no crontab for|No such file' "$err"; then
            table=$work/crontab
            cp "$out" "$table"
            report_pass 'this user is allowed to use cron'
        else
            report_failure "the crontab cannot be read: $(print_last_line)" 'check that cron is installed correctly'
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
        report_pass 'systemd starts the loops'
    elif [ -z "$table" ]; then
        require_checks cron-daemon cron-allowed || :
    else
        line=$(grep -v '^[[:space:]]*#' "$table" | grep -F 'gpu-check.sh' | head -n 1 || :)
        find_crontab_script "$line"
        if [ -z "$line" ]; then
            report_warning "this user's crontab has no line for gpu-check.sh" 'run ./install.sh host as the user of the loops, and this script as the same user'
        elif [ -n "$script" ] && [ ! -x "$script" ]; then
            report_failure "the crontab starts $script, which does not exist" 'run ./install.sh host again'
        else
            report_pass "$line"
        fi
    fi
}

# inspect_linger: whether units of this user run without a login; else they end with the last session, and do not start at boot.
inspect_linger() {
    if ! is_started_by_systemd; then
        report_not_applicable 'cron starts the loops, not systemd'
    elif [ -e "/var/lib/systemd/linger/$(id -un)" ]; then
        report_pass 'units of this user run without a login session'
    else
        report_failure 'units of this user stop at logout and do not start at boot' "loginctl enable-linger $(id -un)"
    fi
}

# inspect_loops: whether all three loops run.
inspect_loops() {
    require_settings || return 0
    if [ ! -d "$RUN" ]; then
        report_failure "this user has never started the loops for $HOST here" "run $HERE/gpu-check.sh, which shows what is wrong, or ./install.sh host"
        return
    fi
    problems='' ages=''
    for task in 1 2 3; do
        read_loop_state "$task"
        case $state in
            running) ages="$ages, $age s" ;;
            hung) problems="$problems, loop $task hangs (pid ${pid:-unknown})" ;;
            stopped) problems="$problems, loop $task is not running" ;;
        esac
        [ "$state" = running ] || [ ! -s "$RUN/$task.err" ] || problems="$problems, and says: $(tail -n 1 "$RUN/$task.err")"
    done
    if [ -n "$problems" ] && [ -s "$SPOOL/check.failed" ]; then
        reason=$(tail -n 1 "$SPOOL/check.failed")
        report_failure "gpu-check.sh starts no loops: ${reason#*: }" "./install.sh host --dest DEST sets it; or write it behind HOST in the crontab's line"
    elif [ -n "$problems" ]; then
        report_failure "loop problems:${problems#,}" "run $HERE/gpu-check.sh, which restarts the loops and shows what is wrong"
    else
        report_pass "all three are running; their last snapshots are${ages#,} old"
    fi
}
