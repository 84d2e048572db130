#!/usr/bin/env bats
# How GPUs are connected: asked once for each boot and driver, and sent with host.txt.
load helper

asked() { grep -c '^topo -m' "$SMI/calls" || true; }
topology() { sed -n 's/^topology=//p' "$SPOOL/host.txt"; }
stored() { [ -s "$SPOOL/topology" ]; }
# tried COUNT: so many calls were made, and the last one has ended.
tried() { [ "$(asked)" = "$1" ] && flock -n "$SPOOL/run/nvidia-smi-topo" true; }

setup() {
    helper_setup
    [ ! -e /sys/module/nvidia/version ] || missing 'this machine has a real driver'
    export GPUBOARD_PROC=$TMP/proc
    mkdir -p "$TMP/proc/sys/kernel/random" "$TMP/proc/driver/nvidia/gpus/0000:01:00.0"
    echo 11111111-2222-3333-4444-555555555555 >"$TMP/proc/sys/kernel/random/boot_id"
    echo '1000.00 1.0' >"$TMP/proc/uptime"
    echo '1.0 1.0 1.0 1/100 1' >"$TMP/proc/loadavg"
    echo 4 >"$SMI/gpus"
    cp "$SAMPLES/nvidia/topology/580-four-in-pairs.txt" "$SMI/topology"
}

# bats test_tags=quick,shell
@test "the matrix is asked once, and sent with host.txt without colours, network cards and legend" {
    cp "$SAMPLES/nvidia/topology/590-eight-through-nvswitch.txt" "$SMI/topology"
    "$RUN_SH" tick 1
    wait_until stored
    "$RUN_SH" tick 1
    "$RUN_SH" tick 3
    "$RUN_SH" tick 1
    whole "$SPOOL/host.txt" host 0
    [ "$(topology)" = "$(sed -e 's/\x1b\[[0-9]*m//g' -e '/^NIC/d' -e '/^$/,$d' "$SMI/topology")" ]
    [ "$(topology | wc -l)" = 9 ]
    [ "$(asked)" = 1 ]
}

@test "every awk sends the same" {
    local awk file
    for file in "$SAMPLES"/nvidia/topology/*; do
        for awk in gawk original-awk 'busybox awk' mawk; do
            command -v "${awk% *}" >/dev/null || missing "there is no $awk"
            LC_ALL=C $awk -f "$TMP/scripts/lib/topology.awk" "$file" >"$TMP/by ${awk% *}"
        done
        for awk in gawk original-awk busybox; do cmp "$TMP/by mawk" "$TMP/by $awk"; done
        fails grep -av '^topology=' "$TMP/by mawk"
        [ -z "$(LC_ALL=C tr -d '\t\n\040-\176\200-\377' <"$TMP/by mawk")" ] # no control character
    done
}

# bats test_tags=shell
@test "it is asked again after a reboot, for another driver and for other GPUs" {
    "$RUN_SH" tick 1
    wait_until stored
    echo 99999999-2222-3333-4444-555555555555 >"$TMP/proc/sys/kernel/random/boot_id"
    "$RUN_SH" tick 1
    wait_until tried 2
    wait_until stored
    echo 610.57.04 >"$SMI/driver"
    for _ in 1 2 3; do "$RUN_SH" tick 1; done
    wait_until tried 3
    wait_until stored
    mkdir "$TMP/proc/driver/nvidia/gpus/0000:02:00.0"
    for _ in 1 2; do "$RUN_SH" tick 1; done
    wait_until tried 4
}

# bats test_tags=shell
@test "a driver that cannot say it is asked again an hour later, and nobody is bothered" {
    printf '#!/bin/sh\n[ "$1" = topo ] || exec %s "$@"\necho "$@" >>"$SMI/calls"\necho "Unknown Error"\nexit 255\n' "$(readlink -f "$TMP/bin/nvidia-smi")" >"$TMP/bin/new-smi"
    chmod +x "$TMP/bin/new-smi"
    mv "$TMP/bin/new-smi" "$TMP/bin/nvidia-smi"
    for _ in 1 2 3; do "$RUN_SH" tick 1; done
    wait_until tried 1
    "$RUN_SH" tick 1
    "$RUN_SH" tick 3
    whole "$SPOOL/gpus.csv" gpus 0
    whole "$SPOOL/host.txt" host 0
    fails grep -q -e topo -e '# err' "$SPOOL/host.txt" "$SPOOL/gpus.csv"
    [ "$(asked)" = 1 ]
    awk '{ $1 -= 3500; print }' "$SPOOL/topology.tried" >"$TMP/tried" && cp "$TMP/tried" "$SPOOL/topology.tried"
    "$RUN_SH" tick 1
    [ "$(asked)" = 1 ]
    awk '{ $1 -= 100; print }' "$SPOOL/topology.tried" >"$TMP/tried" && cp "$TMP/tried" "$SPOOL/topology.tried"
    "$RUN_SH" tick 1
    wait_until tried 2
    "$RUN_SH" tick 1
    [ "$(asked)" = 2 ]
}

@test "what is no matrix is not stored: a table, nothing at all" {
    echo '|   0  NVIDIA A100-SXM4-80GB          On  |   00000000:01:00.0 Off |' >"$SMI/topology"
    "$RUN_SH" tick 1
    wait_until tried 1
    : >"$SMI/topology"
    rm "$SPOOL/topology.tried"
    "$RUN_SH" tick 1
    wait_until tried 2
    fails stored
}

# bats test_tags=shell
@test "a matrix that hangs delays no GPU row, is stopped at the time limit and not asked again" {
    printf '#!/bin/sh\ncase $1 in topo) echo "$@" >>"$SMI/calls"; trap "" TERM; exec sleep 60 ;; esac\nexec %s "$@"\n' "$(readlink -f "$TMP/bin/nvidia-smi")" >"$TMP/bin/new-smi"
    chmod +x "$TMP/bin/new-smi"
    mv "$TMP/bin/new-smi" "$TMP/bin/nvidia-smi"
    GPUBOARD_LIMIT=50 "$RUN_SH" tick 1 # would fail the test, if it waited
    wait_until grep -q '^topo -m' "$SMI/calls"
    began=$SECONDS
    GPUBOARD_LIMIT=50 "$RUN_SH" tick 1
    GPUBOARD_LIMIT=50 "$RUN_SH" tick 2
    [ $((SECONDS - began)) -lt 40 ]
    whole "$SPOOL/gpus.csv" gpus 0
    whole "$SPOOL/processes.csv" processes 0
    fails flock -n "$SPOOL/run/nvidia-smi-topo" true
    end_processes
    rm "$SPOOL/topology.tried"
    GPUBOARD_LIMIT=1 "$RUN_SH" tick 1
    wait_until tried 2
    GPUBOARD_LIMIT=1 "$RUN_SH" tick 1
    [ "$(asked)" = 2 ]
    fails stored
}

@test "an nvidia-smi that hangs, is missing or may not be called is not asked for the matrix" {
    GPUBOARD_NVIDIA=no "$RUN_SH" tick 1
    echo 60 >"$SMI/sleep"
    GPUBOARD_LIMIT=1 "$RUN_SH" tick 1
    rm "$SMI/sleep" "$TMP/bin/nvidia-smi"
    "$RUN_SH" tick 1
    [ ! -e "$SPOOL/topology.tried" ]
    [ "$(asked)" = 0 ]
}

@test "kill ends a matrix that is under way" {
    printf '#!/bin/sh\n[ "$1" != topo ] || { echo "$@" >>"$SMI/calls"; exec sleep 60; }\nexec %s "$@"\n' "$(readlink -f "$TMP/bin/nvidia-smi")" >"$TMP/bin/new-smi"
    chmod +x "$TMP/bin/new-smi"
    mv "$TMP/bin/new-smi" "$TMP/bin/nvidia-smi"
    "$CHECK" gpu1
    wait_until grep -q '^topo -m' "$SMI/calls"
    "$CHECK" kill
    nothing_left
}
