# shellcheck shell=sh disable=SC2154 # out, err: set by the script that reads this one
# Task 3, first half: the GPU processes, their children and parents, with user, command and container, in ps.txt.
# Everything comes from one pass over /proc: `ps -p` walks all of it, and reads four files a process where one tells the family.

take_ps() {
    begin_snapshot ps
    read -r up _ <"$PROC/uptime"
    rc=0
    rows=$RUN/ps.rows.$$ names=$RUN/ps.names.$$ commands=$RUN/ps.commands.$$
    : >"$names"
    : >"$commands"
    awk -v proc="$PROC" -v up="$up" -v processes="$SPOOL/processes.csv" -v before="$SPOOL/ps.txt" \
        -f "$LIB/container.awk" -f "$LIB/family.awk" "$PROC"/[0-9]* >"$rows" 2>"$err" || rc=$?
    { read -r pids && read -r uids; } <"$rows" || pids=
    if [ -n "$pids" ]; then
        # shellcheck disable=SC2086 # one word a uid
        limited getent 1 getent passwd $uids >"$names" 2>>"$err" || : # 2: one of them has no name
        set --
        for pid in $pids; do set -- "$@" "$PROC/$pid/cmdline"; done
        # every argument becomes a line behind its file's name; a newline in one becomes a space, any other control character a ?
        limited commands 1 grep -asHz '' "$@" 2>>"$err" | tr '\000\012\001-\011\013-\037\177' '\012\040?' >"$commands"
    fi
    awk -v proc="$PROC" -f "$LIB/mask.awk" -f "$LIB/ps.awk" stage=names "$names" stage=commands "$commands" stage=rows "$rows" >"$out" 2>>"$err" || rc=$?
    end_snapshot ps ps.txt "$GPUBOARD_PS_EVERY" "$rc"
}
