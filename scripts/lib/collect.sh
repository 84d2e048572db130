# shellcheck shell=sh disable=SC2034,SC2154 # variables come from the script that reads this one, and go back to it
# Tasks 1 and 2: all GPUs in gpus.csv, all processes on GPUs in processes.csv, as the tools of the vendors print them.
# A vendor is a file lib/VENDOR.sh with detect_VENDOR, collect_VENDOR_gpus and collect_VENDOR_processes; each call of a tool is a part of the snapshot.
# shellcheck source=scripts/lib/nvidia.sh
. "$LIB/nvidia.sh"
# shellcheck source=scripts/lib/amd.sh
. "$LIB/amd.sh"
# shellcheck source=scripts/lib/topology.sh
. "$LIB/topology.sh"

VENDORS='nvidia amd'

# find_vendors: set vendors to those whose tool is here. If there is none, report that nvidia-smi is missing.
find_vendors() {
    vendors=
    for vendor in $VENDORS; do
        ! "detect_$vendor" || vendors="$vendors $vendor"
    done
    vendors=${vendors:-nvidia}
}

# query_tool TOOL ARGUMENTS...: run it, with its output in $out and $err and its exit code in rc. Tasks 1 and 2 take turns.
query_tool() {
    tool=$1
    shift
    rc=0
    if command -v "$tool" >/dev/null; then
        run_limited "${tool##*/}" "$((GPUBOARD_LIMIT + 2))" "$tool" "$@" >"$out" 2>"$err" || rc=$?
        if [ "$rc" = 0 ] && [ ! -s "$out" ]; then # there is always a header, so the disk of the spool is full, or was a moment ago
            rc=74
            echo "${tool##*/} printed nothing, not even column names" >>"$err"
        fi
    else
        rc=127
        : >"$out"
        echo "$tool was not found on this host: is the GPU driver installed?" >"$err"
    fi
}

# begin_part: set out and err for the output of the next call.
begin_part() {
    part_count=$((part_count + 1))
    out=$NEW/$task.$part_count.out
    err=$NEW/$task.$part_count.err
    : >"$err"
}

# end_part FORM: add $out under this name, by which its parser is found.
end_part() {
    [ -s "$out" ] || echo >"$out" 2>/dev/null || : # awk skips empty files; if the disk is full, nothing is written at all
    parts="$parts part=$1 code=$rc stderr_file=$err $out"
    [ "$first_rc" != 0 ] || first_rc=$rc
}

# collect_parts TASK FILE: write the parts of all vendors. Most hosts have one part, the CSV of nvidia-smi, which needs no name.
collect_parts() {
    task=$1
    begin_snapshot "$1"
    parts='' part_count=0 first_rc=0
    find_vendors
    for vendor in $vendors; do "collect_${vendor}_$1"; done
    [ "$part_count" != 1 ] || parts="part=${parts#*part=nvidia-csv}"
    err=$NEW/$1.err
    driver_file=$NEW/driver
    : >"$driver_file"
    # shellcheck disable=SC2086 # one word each
    end_snapshot "$1" "$2" "$first_rc" -v known="${known_driver-}" -v driver_file="$driver_file" \
        -f "$LIB/snapshot_parts.awk" -f "$LIB/snapshot.awk" -f "$LIB/driver_version.awk" -f "$LIB/mask_process_names.awk" -f "$LIB/sanitize.awk" $parts
}

# collect_gpus: write gpus.csv.
collect_gpus() {
    collect_parts gpus gpus.csv
    update_known_driver
    update_topology
}

# collect_processes: write processes.csv.
collect_processes() { collect_parts processes processes.csv; }
