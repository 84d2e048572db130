#!/bin/sh
# shellcheck disable=SC2154 # variables set before it
# What `gpuboard pull` runs on a GPU host: it is sent over ssh to the stdin of a shell, so that nothing is installed, and it leaves nothing behind.
# It is sent after HOST, GPUBOARD_LIMIT, the intervals, and `patience`: the seconds of silence after which the web host is gone.
# Installed on a host, `lib/pull.sh HOST` is the forced command of a key that can do this and nothing else.
# It answers each `go` with one snapshot. It prints lines that begin with `gpuboard-pull`:
#   scripts                          it needs the scripts: send their size on a line, then the bytes of a tar.gz
#   ready                            it waits for `go`
#   files CODE SIZES                 exit code of gpu-run.sh once; sizes of gpus.csv, processes.csv, ps.txt, host.txt and stderr, which follow
#   plain TIME RC RC SIZES           where no folder can be written: output of nvidia-smi for GPUs and processes, ps for people, /proc for the host

umask 077
export LC_ALL=C PATH="${PATH:+$PATH:}/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/lib/wsl/lib"
FIELDS=index,uuid,name,driver_version,memory.total,memory.used,utilization.gpu,utilization.memory,temperature.gpu,power.draw,power.limit

# open_work_folder: set shared_folder, which all pulls of this user share, so that the next one knows of an nvidia-smi that hangs; and own_folder, in it.
open_work_folder() {
    for tool in awk find flock grep gzip tar timeout; do command -v "$tool" >/dev/null || return 1; done
    for parent in /var/tmp /tmp /dev/shm; do
        shared_folder=$parent/gpuboard-pull-$(id -u)
        own_folder=$shared_folder/$$
        for _ in 1 2 3; do
            mkdir "$shared_folder" 2>/dev/null || :
            # shellcheck disable=SC3067 # -O: in every sh that we know
            if [ -h "$shared_folder" ] || [ ! -O "$shared_folder" ]; then break; fi
            command exec 9>>"$shared_folder/lock" || break
            flock -s 9
            # shellcheck disable=SC3013 # -ef: the same
            if [ ! "$shared_folder/lock" -ef /dev/fd/9 ]; then continue; fi # another pull removed it just before we had the lock
            rm -rf "$own_folder"
            if mkdir "$own_folder" && echo '#!/bin/sh' >"$own_folder/probe" && chmod 0700 "$own_folder/probe" && [ -x "$own_folder/probe" ]; then return 0; fi
            close_work_folder # no space left, or programs may not run there
            break
        done
    done 2>/dev/null
    return 1
}

# close_work_folder: remove our folder, and the shared one if no other pull and no hung nvidia-smi holds its lock.
close_work_folder() {
    rm -rf "$own_folder"
    if flock -n 9; then rm -rf "$shared_folder"; fi
    exec 9>&-
}

# receive_scripts: receive the scripts for this pull.
receive_scripts() {
    scripts=$own_folder/scripts
    mkdir "$scripts"
    echo 'gpuboard-pull scripts'
    read -r size || exit 0
    dd bs=1 count="$size" 2>/dev/null | gzip -dc | tar xof - -C "$scripts"
}

# wait_for_request: wait until the web host wants a snapshot.
wait_for_request() {
    if command -v timeout >/dev/null; then
        word=$(timeout "$patience" dd bs=1 count=3 2>/dev/null) || :
    else
        read -r word || word=
    fi
    [ "$word" = go ]
}

# send_snapshot: take the four files as for a push, with a separate spool, so that loops of this host are not disturbed, and send them.
send_snapshot() {
    code=0
    rm -rf "$own_folder/data"
    mkdir "$own_folder/data"
    GPUBOARD_DEST=$own_folder/data GPUBOARD_SPOOL=$shared_folder/spool "$scripts/gpu-run.sh" once </dev/null >/dev/null 2>"$own_folder/said" || code=$?
    set -- "$own_folder/said"
    if [ "$code" = 0 ]; then
        folder=$own_folder/data/$HOST
        set -- "$folder/gpus.csv" "$folder/processes.csv" "$folder/ps.txt" "$folder/host.txt" "$own_folder/said"
    fi
    # shellcheck disable=SC2046 # one word a size
    echo gpuboard-pull files "$code" $(for file in "$@"; do wc -c <"$file"; done)
    cat "$@"
}

# query_nvidia_plainly FIELDS...: set output and rc to those of nvidia-smi. None is started while one waits in the kernel for longer than
# the time limit: it may be an earlier one of ours. For a moment, every one does.
query_nvidia_plainly() {
    rc=0
    hung_ages=$(ps -C nvidia-smi -o stat=,etimes= 2>/dev/null | while read -r stat age; do case $stat in D*) [ "$age" -le "$GPUBOARD_LIMIT" ] || echo "$age" ;; esac done)
    if [ -n "$hung_ages" ]; then
        rc=200 output='an nvidia-smi hangs on this host; no other is started'
    else
        output=$($limit nvidia-smi "$@" --format=csv,nounits 2>&1) || rc=$?
    fi
}

# send_plain_snapshot: send a snapshot without writing files; of commands only the program, so that no secret is sent.
send_plain_snapshot() {
    limit=
    if command -v timeout >/dev/null; then limit="timeout -k 1 $GPUBOARD_LIMIT"; fi
    now=$(date '+%s')
    query_nvidia_plainly "--query-gpu=$FIELDS"
    gpus=$output gpus_rc=$rc
    query_nvidia_plainly --query-compute-apps=gpu_uuid,pid,used_gpu_memory
    pids=$(printf '%s\n' "$output" | while IFS=', ' read -r _ pid _; do case $pid in '' | *[!0-9]*) ;; *) printf '%s,' "$pid" ;; esac done)
    people=
    if [ -n "$pids" ]; then people=$(ps -ww -o pid=,ppid=,pgid=,uid=,etimes=,pcpu=,rss=,stat=,user:32=,comm= -p "${pids%,}" 2>/dev/null) || :; fi
    facts=$(cat /proc/loadavg /proc/uptime /proc/sys/kernel/osrelease && date '+%z %Z' && grep -c '^processor' /proc/cpuinfo && grep -E '^(Mem|Swap)' /proc/meminfo) || :
    echo gpuboard-pull plain "$now" "$gpus_rc" "$rc" "${#gpus}" "${#output}" "${#people}" "${#facts}"
    printf '%s' "$gpus" "$output" "$people" "$facts"
}

# read_forced_settings HOST: read the script that is sent to its last line, without running it; take only whole numbers from it.
read_forced_settings() {
    export HOST="$1" GPUBOARD_LIMIT=5
    patience=120
    case $0 in */lib/*) own_scripts=${0%/lib/*} ;; *) own_scripts=.. ;; esac
    set -f
    while IFS= read -r line && [ "$line" != main ]; do
        case $line in 'export HOST='* | patience=*) ;; *) continue ;; esac
        for word in $line; do
            case $word in
                *=*[!0-9]* | *= | *=?????*) ;;
                patience=*) patience=${word#*=} ;;
                GPUBOARD_LIMIT=* | GPUBOARD_GPUS_EVERY=* | GPUBOARD_PROCESSES_EVERY=* | GPUBOARD_PS_EVERY=*) export "${word?}" ;;
            esac
        done
    done
    set +f
}

# main: answer requests until the web host is gone.
main() {
    scripts=
    if open_work_folder; then
        trap close_work_folder EXIT
        trap 'exit 143' TERM HUP INT PIPE
        scripts=${own_scripts:-$HOME/.local/share/gpuboard/scripts}
        [ -n "${own_scripts:-}" ] || [ -x "$scripts/gpu-run.sh" ] || receive_scripts
    fi
    echo 'gpuboard-pull ready'
    while wait_for_request; do
        if [ -n "$scripts" ]; then send_snapshot; else send_plain_snapshot; fi
    done
    exit 0
}

[ $# = 0 ] || read_forced_settings "$1"
main
