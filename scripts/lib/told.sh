# shellcheck shell=sh disable=SC2034,SC2154 # variables come from the script that reads this one, and go back to it
# Tasks 1 and 2: every GPU in gpus.csv, every process on one in processes.csv, as the tool of each maker tells them.
# A maker is a file lib/MAKER.sh with MAKER_here, MAKER_gpus and MAKER_processes; each question that these ask is a part of the snapshot.
# shellcheck source=scripts/lib/nvidia.sh
. "$LIB/nvidia.sh"
# shellcheck source=scripts/lib/amd.sh
. "$LIB/amd.sh"

MAKERS='nvidia amd'

# find_makers: sets makers to those whose tool is here. Where there is none, that nvidia-smi is missing is told.
find_makers() {
    makers=
    for maker in $MAKERS; do
        ! "${maker}_here" || makers="$makers $maker"
    done
    makers=${makers:-nvidia}
}

# ask TOOL ARGUMENTS...: leaves its words in $out and $err, its exit code in rc. Tasks 1 and 2 take turns.
ask() {
    tool=$1
    shift
    rc=0
    if command -v "$tool" >/dev/null; then
        limited "${tool##*/}" "$((GPUBOARD_LIMIT + 2))" "$tool" "$@" >"$out" 2>"$err" || rc=$?
        if [ "$rc" = 0 ] && [ ! -s "$out" ]; then # there is always a header: the spool's disk is full, or was a moment ago
            rc=74
            echo "${tool##*/} said nothing, not even the names of what it tells" >>"$err"
        fi
    else
        rc=127
        : >"$out"
        echo "$tool was not found on this host: is the driver of its GPUs installed?" >"$err"
    fi
}

# begin_part: where the words of the next question go.
begin_part() {
    part_count=$((part_count + 1))
    out=$NEW/$task.$part_count.out
    err=$NEW/$task.$part_count.err
    : >"$err"
}

# end_part FORM: the answer in $out is told under this name, by which its reader is found.
end_part() {
    [ -s "$out" ] || echo >"$out" 2>/dev/null || : # awk sees no file in which there is no line; where the disk is full, nothing is written at all
    parts="$parts part=$1 code=$rc cries=$err $out"
    [ "$worst" != 0 ] || worst=$rc
}

# take_told TASK FILE: what all makers tell. One part of nvidia-smi's CSV is all that most hosts have, and needs no name.
take_told() {
    task=$1
    begin_snapshot "$1"
    parts='' part_count=0 worst=0
    find_makers
    for maker in $makers; do "${maker}_$1"; done
    [ "$part_count" != 1 ] || parts="part=${parts#*part=nvidia-csv}"
    err=$NEW/$1.err
    noted=$NEW/driver
    : >"$noted"
    # shellcheck disable=SC2086 # one word each
    end_snapshot "$1" "$2" "$worst" -v kept="${kept_driver-}" -v noted="$noted" \
        -f "$LIB/parts.awk" -f "$LIB/snapshot.awk" -f "$LIB/driver.awk" -f "$LIB/names.awk" -f "$LIB/told.awk" $parts
}

take_gpus() {
    take_told gpus gpus.csv
    note_driver
}

take_processes() { take_told processes processes.csv; }
