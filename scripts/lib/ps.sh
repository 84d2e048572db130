# shellcheck shell=sh disable=SC2154 # ask_all: set by the script that reads this one
# Task 3, first half: the GPU processes, their children and parents, with user, command and container, in ps.txt.
# One awk makes one pass over /proc, and asks for users, containers and commands where it does not know them yet: `ps -p` walks all of /proc too, and
# reads four files a process where one tells the family.

take_ps() {
    begin_snapshot ps
    read -r up_exact _ <"$PROC/uptime"
    export ASK_SH="$LIB/ask.sh"
    end_snapshot ps ps.txt 0 -v proc="$PROC" -v up="$up_exact" -v processes="$SPOOL/processes.csv" -v before="$SPOOL/ps.txt" -v ask_all="$ask_all" \
        -f "$LIB/proc.awk" -f "$LIB/container.awk" -f "$LIB/family.awk" -f "$LIB/ps.awk" -f "$LIB/snapshot.awk" "$PROC"/[0-9]* </dev/null
}
