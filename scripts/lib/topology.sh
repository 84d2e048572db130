# shellcheck shell=sh disable=SC2154 # variables come from collect.sh and nvidia.sh
# How the GPUs of NVIDIA are connected, by `nvidia-smi topo -m`: asked once for each boot and version of the driver, and kept in the spool
# as lines of host.txt. SPOOL/topology.tried has the time of the last try, and what it was for.

TOPOLOGY_RETRY_AFTER=3600

# update_topology: ask in the background, and under a lock of its own, so that a slow answer delays no GPU; after a failure again an hour later.
update_topology() {
    detect_nvidia || return 0
    case $first_rc in 124 | 127 | 137 | 200) return 0 ;; esac # the tool hangs, or is missing
    read_loaded_driver
    boot='' tried_at='' tried=''
    [ ! -r "$PROC/sys/kernel/random/boot_id" ] || read -r boot <"$PROC/sys/kernel/random/boot_id" || :
    wanted="boot=$boot driver=${driver:-${known_driver-}}"
    for folder in "$PROC"/driver/nvidia/gpus/*; do wanted="$wanted ${folder##*/}"; done
    [ ! -r "$SPOOL/topology.tried" ] || read -r tried_at tried <"$SPOOL/topology.tried" || :
    read_uptime
    if [ "$tried" = "$wanted" ]; then
        [ ! -e "$SPOOL/topology" ] || return 0
        if [ "$up" -ge "$tried_at" ] && [ $((up - tried_at)) -lt "$TOPOLOGY_RETRY_AFTER" ]; then return 0; fi
    fi
    rm -f "$SPOOL/topology"
    # without a note of it, as on a full disk, there would be a try at every tick
    printf '%s %s\n' "$up" "$wanted" >"$NEW/topology.tried" && mv -f "$NEW/topology.tried" "$SPOOL/" || return 0
    (query_topology) >/dev/null 2>&1 &
}

# query_topology: store the matrix, if there is one; the output is written under the lock, and so never by two at once.
query_topology() {
    # shellcheck disable=SC2016 # for the inner shell
    run_limited nvidia-smi-topo 0 sh -c 'exec nvidia-smi topo -m >"$1"' - "$RUN/topology.out" || return 0
    awk -f "$LIB/topology.awk" "$RUN/topology.out" >"$RUN/topology.new"
    [ ! -s "$RUN/topology.new" ] || mv -f "$RUN/topology.new" "$SPOOL/topology"
}
