# shellcheck shell=sh disable=SC2154 # query_all: set by the script that reads this one
# Task 3, first half: the GPU processes, their children and parents, with user, command and container, in ps.txt.
# One awk makes one pass over /proc, and queries users, containers and commands that it does not know yet: `ps -p` would walk all of /proc too,
# and read four files per process where one is enough.

# collect_ps: write ps.txt.
collect_ps() {
    begin_snapshot ps
    read -r up_exact _ <"$PROC/uptime"
    export DETAILS_SH="$LIB/process_details.sh"
    end_snapshot ps ps.txt 0 -v proc="$PROC" -v up="$up_exact" -v processes="$SPOOL/processes.csv" -v previous="$SPOOL/ps.txt" -v query_all="$query_all" \
        -f "$LIB/proc_stat.awk" -f "$LIB/cgroup.awk" -f "$LIB/process_tree.awk" -f "$LIB/ps.awk" -f "$LIB/snapshot.awk" "$PROC"/[0-9]* </dev/null
}
