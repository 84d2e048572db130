#!/bin/sh
# shellcheck disable=SC2154 # what stands before it
# What `gpuboard pull` runs on a GPU host: it comes over ssh to the stdin of a shell there, so that nothing is installed, and it leaves nothing.
# Before it stand HOST, GPUBOARD_LIMIT, the intervals, and `patience`: the seconds after which silence means that the web host is gone.
# Installed on a host, `lib/pull.sh HOST` is the forced command of a key that can do this and nothing else.
# It says, each on a line that begins with `gpuboard-pull`, and answers each `go` with one snapshot:
#   scripts                          it needs ours: their size on a line, then so many bytes of tar.gz
#   ready                            now it waits for `go`
#   files CODE SIZES                 what gpu-run.sh once ended with; sizes of gpus.csv, processes.csv, ps.txt, host.txt and of what it said; they follow
#   plain TIME RC RC SIZES           where no folder can be written: what nvidia-smi said of GPUs and processes, ps of people, /proc of the host

umask 077
export LC_ALL=C PATH="${PATH:+$PATH:}/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/lib/wsl/lib"
FIELDS=index,uuid,name,driver_version,memory.total,memory.used,utilization.gpu,utilization.memory,temperature.gpu,power.draw,power.limit

# open_place: sets place, which all pulls of this user share, so that an nvidia-smi that hangs is known to the next one; and mine, in it.
open_place() {
    for tool in awk find flock grep gzip tar timeout; do command -v "$tool" >/dev/null || return 1; done
    for base in /var/tmp /tmp /dev/shm; do
        place=$base/gpuboard-pull-$(id -u)
        mine=$place/$$
        for _ in 1 2 3; do
            mkdir "$place" 2>/dev/null || :
            # shellcheck disable=SC3067 # -O: in every sh that we know
            if [ -h "$place" ] || [ ! -O "$place" ]; then break; fi
            command exec 9>>"$place/lock" || break
            flock -s 9
            # shellcheck disable=SC3013 # -ef: the same
            if [ ! "$place/lock" -ef /dev/fd/9 ]; then continue; fi # somebody took all away just before we had the lock
            rm -rf "$mine"
            if mkdir "$mine" && echo '#!/bin/sh' >"$mine/probe" && chmod 0700 "$mine/probe" && [ -x "$mine/probe" ]; then return 0; fi
            close_place # no space left, or programs may not run there
            break
        done
    done 2>/dev/null
    return 1
}

# close_place: takes ours away, and what is shared if nobody else has it: another pull, or an nvidia-smi that hangs, holds the lock.
close_place() {
    rm -rf "$mine"
    if flock -n 9; then rm -rf "$place"; fi
    exec 9>&-
}

# take_scripts: ours, for as long as this lasts.
take_scripts() {
    scripts=$mine/scripts
    mkdir "$scripts"
    echo 'gpuboard-pull scripts'
    read -r size || exit 0
    dd bs=1 count="$size" 2>/dev/null | gzip -dc | tar xof - -C "$scripts"
}

# next: waits until the web host wants another one.
next() {
    if command -v timeout >/dev/null; then
        word=$(timeout "$patience" dd bs=1 count=3 2>/dev/null) || :
    else
        read -r word || word=
    fi
    [ "$word" = go ]
}

# take_files: the four files of a push, taken as for a push, with a spool of our own: loops of this host are not disturbed.
take_files() {
    code=0
    rm -rf "$mine/data"
    mkdir "$mine/data"
    GPUBOARD_DEST=$mine/data GPUBOARD_SPOOL=$place/spool "$scripts/gpu-run.sh" once </dev/null >/dev/null 2>"$mine/said" || code=$?
    set -- "$mine/said"
    if [ "$code" = 0 ]; then
        folder=$mine/data/$HOST
        set -- "$folder/gpus.csv" "$folder/processes.csv" "$folder/ps.txt" "$folder/host.txt" "$mine/said"
    fi
    # shellcheck disable=SC2046 # one word a size
    echo gpuboard-pull files "$code" $(for file in "$@"; do wc -c <"$file"; done)
    cat "$@"
}

# ask_plainly FIELDS...: sets said to what nvidia-smi says, and rc. One that waits in the kernel for longer than it may
# take is perhaps an earlier one of ours; for a moment, every one does.
ask_plainly() {
    rc=0
    hangs=$(ps -C nvidia-smi -o stat=,etimes= 2>/dev/null | while read -r stat age; do case $stat in D*) [ "$age" -le "$GPUBOARD_LIMIT" ] || echo "$age" ;; esac done)
    if [ -n "$hangs" ]; then
        rc=200 said='an nvidia-smi hangs on this host; no other is started'
    else
        said=$($limit nvidia-smi "$@" --format=csv,nounits 2>&1) || rc=$?
    fi
}

# take_plain: no file is written, and of commands only the program is told, so that no secret can travel.
take_plain() {
    limit=
    if command -v timeout >/dev/null; then limit="timeout -k 1 $GPUBOARD_LIMIT"; fi
    now=$(date '+%s')
    ask_plainly "--query-gpu=$FIELDS"
    gpus=$said gpus_rc=$rc
    ask_plainly --query-compute-apps=gpu_uuid,pid,used_gpu_memory
    pids=$(printf '%s\n' "$said" | while IFS=', ' read -r _ pid _; do case $pid in '' | *[!0-9]*) ;; *) printf '%s,' "$pid" ;; esac done)
    people=
    if [ -n "$pids" ]; then people=$(ps -ww -o pid=,ppid=,pgid=,uid=,etimes=,pcpu=,rss=,stat=,user:32=,comm= -p "${pids%,}" 2>/dev/null) || :; fi
    facts=$(cat /proc/loadavg /proc/uptime /proc/sys/kernel/osrelease && date '+%z %Z' && grep -c '^processor' /proc/cpuinfo && grep -E '^(Mem|Swap)' /proc/meminfo) || :
    echo gpuboard-pull plain "$now" "$gpus_rc" "$rc" "${#gpus}" "${#said}" "${#people}" "${#facts}"
    printf '%s' "$gpus" "$said" "$people" "$facts"
}

# obey HOST: what is sent to be run is read to its last line, and not run; only whole numbers are taken from it.
obey() {
    export HOST="$1" GPUBOARD_LIMIT=5
    patience=120
    case $0 in */lib/*) own=${0%/lib/*} ;; *) own=.. ;; esac
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

main() {
    scripts=
    if open_place; then
        trap close_place EXIT
        trap 'exit 143' TERM HUP INT PIPE
        scripts=${own:-$HOME/.local/share/gpuboard/scripts}
        [ -n "${own:-}" ] || [ -x "$scripts/gpu-run.sh" ] || take_scripts
    fi
    echo 'gpuboard-pull ready'
    while next; do
        if [ -n "$scripts" ]; then take_files; else take_plain; fi
    done
    exit 0
}

[ $# = 0 ] || obey "$1"
main
