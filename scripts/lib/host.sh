# shellcheck shell=sh disable=SC2154 # out, err: set by the script that reads this one
# Task 3, second half: the machine itself, in host.txt: load, memory, disks, addresses, versions.

take_host() {
    begin_snapshot host
    disks=$RUN/host.disks.$$ addresses=$RUN/host.addresses.$$ disk_use=$RUN/host.use.$$
    : >"$err"
    limited df 1 df -lPTk >"$disks" 2>>"$err" || :
    if command -v ip >/dev/null; then
        limited ip 1 ip -o addr show up scope global >"$addresses" 2>>"$err" || :
    else
        hostname -I >"$addresses" 2>>"$err" || :
    fi
    : >"$disk_use"
    if [ -n "${GPUBOARD_DISK_USE:-}" ]; then
        { limited disk-use 1 date -r "$GPUBOARD_DISK_USE" +%s && limited disk-use 1 head -n 500 "$GPUBOARD_DISK_USE"; } >"$disk_use" 2>>"$err" || :
    fi
    driver= # task 1 keeps it, with the fields that it knows
    [ ! -r "$SPOOL/fields" ] || read -r driver <"$SPOOL/fields" || :
    rc=0
    awk -v proc="$PROC" -v driver="$driver" -v collector="$GPUBOARD_VERSION" -v zone="$(date '+%z %Z')" -f "$LIB/host.awk" \
        stage=disks "$disks" stage=addresses "$addresses" stage=disk_use "$disk_use" >"$out" 2>>"$err" || rc=$?
    end_snapshot host host.txt "$GPUBOARD_PS_EVERY" "$rc"
}
