# Processes of a GPU, in a /proc of our own, and what ps.txt tells of them.

# gpu_process PID...: they run on GPU 0.
gpu_process() {
    local pid
    for pid in "$@"; do echo "GPU-00000000-1111-2222-3333-444444444444, $pid, 512, python"; done >"$SMI/apps"
    [ ! -d "$TMP/proc" ] || export GPUBOARD_PROC=$TMP/proc
}

# fake PID PPID PGRP [STATE [AGE [UID]]]: a process in a /proc of our own; its arguments come NUL-separated from stdin.
fake() {
    local folder=$TMP/proc/$1
    mkdir -p "$folder"
    echo '10000.50 1.0' >"$TMP/proc/uptime"
    printf '%s (%s) %s %s %s %s 0 0 0 0 0 0 0 250 50 0 0 20 0 1 0 %s 0 0\n' "$1" "${COMM:-python}" "${4:-S}" "$2" "$3" "$3" "$(((10000 - ${5:-100}) * 100))" >"$folder/stat"
    printf 'Name:\tpython\nUid:\t1\t%s\t1\t1\nVmRSS:\t  2048 kB\n' "${6:-0}" >"$folder/status"
    printf '0::/user.slice\n' >"$folder/cgroup"
    sed -z '$ s/\n$//' >"$folder/cmdline" # a here-string ends in a newline, an argument does not
}

# column NAME PID: a cell of ps.txt.
column() {
    awk -F '\t' -v name="$1" -v pid="$2" 'NR == 2 {for (i = 1; i <= NF; i++) {sub(/ \[.*/, "", $i); c[$i] = i}} $1 == pid {print $c[name]}' "$SPOOL/ps.txt"
}

take() {
    "$RUN_SH" tick 2
    run_whole "$RUN_SH" tick 3
    whole "$SPOOL/ps.txt" ps 0
}
