#!/usr/bin/env bats
# Which fields are asked of the driver.
load helper

known() { printf '%s\n' "$@" >"$SMI/fields"; }
asked_for_help() { grep -c -- --help-query-gpu "$SMI/calls"; }
columns() { sed -n 2p "$SPOOL/gpus.csv"; }

setup() {
    helper_setup
    [ ! -e /sys/module/nvidia/version ] || missing 'this machine has a real driver'
}

@test "fields that this driver does not know are not asked for" {
    known index uuid name memory.used temperature.gpu something.new
    "$RUN_SH" tick 1
    whole "$SPOOL/gpus.csv" gpus 0
    [ "$(columns)" = 'index, uuid, name, memory.used [MiB], temperature.gpu' ]
}

@test "throttle reasons are asked for under the name that the driver knows, the new one first" {
    known index uuid clocks_throttle_reasons.active
    "$RUN_SH" tick 1
    [ "$(columns)" = 'index, uuid, clocks_throttle_reasons.active' ]
    rm "$SPOOL/fields"
    known index uuid clocks_throttle_reasons.active clocks_event_reasons.active
    "$RUN_SH" tick 1
    [ "$(columns)" = 'index, uuid, clocks_event_reasons.active' ]
}

@test "the NVLink fabric is asked for, as far as the driver knows it" {
    known index uuid fabric.state fabric.status fabric.cliqueId
    "$RUN_SH" tick 1
    [ "$(columns)" = 'index, uuid, fabric.state, fabric.status' ]
    rm "$SPOOL/fields"
    machine 580-gb300-fabric
    "$RUN_SH" tick 1
    has "$SPOOL/gpus.csv" 'fabric.health.route_unhealthy, fabric.health.access_timeout_recovery, fabric.health.incorrect_configuration'
    has "$SPOOL/gpus.csv" 'Completed, Success, Limited Capacity, Degraded, False, False, False, None'
}

@test "the driver is asked once for its fields" {
    for _ in 1 2 3; do "$RUN_SH" tick 1; done
    [ "$(asked_for_help)" = 1 ]
    [ "$(head -n 1 "$SPOOL/fields")" = 590.48.01 ]
}

# bats test_tags=shell
@test "another driver is asked again" {
    "$RUN_SH" tick 1
    echo 610.57.04 >"$SMI/driver"
    "$RUN_SH" tick 1
    "$RUN_SH" tick 1
    "$RUN_SH" tick 1
    [ "$(asked_for_help)" = 2 ]
    [ "$(head -n 1 "$SPOOL/fields")" = 610.57.04 ]
}

@test "a driver that forgot a field since it was asked costs that field alone" {
    "$RUN_SH" tick 1
    known index uuid name driver_version memory.used memory.total temperature.gpu
    : >"$SMI/calls"
    "$RUN_SH" tick 1
    whole "$SPOOL/gpus.csv" gpus 0
    has "$SPOOL/gpus.csv" 'memory.used [MiB]'
}

# bats test_tags=shell
@test "one field that is listed and yet refused is dropped, and the others stay" {
    # a driver that lists what it does not take
    mv "$TMP/bin/nvidia-smi" "$TMP/bin/real-smi"
    printf '#!/bin/sh\ncase $1 in --help*) exec real-smi "$@" ;; *pstate*) echo "Field \\"pstate\\" is not a valid field to query."; echo; exit 2 ;; esac\nexec real-smi "$@"\n' >"$TMP/bin/nvidia-smi"
    chmod +x "$TMP/bin/nvidia-smi"
    "$RUN_SH" tick 1
    whole "$SPOOL/gpus.csv" gpus 0
    fails grep -q pstate "$SPOOL/gpus.csv"
    has "$SPOOL/gpus.csv" gpu_recovery_action
    fails grep -q pstate "$SPOOL/fields"
}

@test "a driver that does not tell its fields is asked for the oldest ones" {
    known 'no fields'
    "$RUN_SH" tick 1 || true
    grep -q -- '--query-gpu=index,uuid,name,driver_version,memory.total' "$SMI/calls"
    [ ! -e "$SPOOL/fields" ]
}

# choose_from FILE: the fields that are asked of a driver with this list.
choose_from() { awk -v wanted="$(sed -n "/^GPU_FIELDS='/,/'/p" "$TMP/scripts/lib/nvidia.sh" | sed "s/GPU_FIELDS=//; s/'//g" | tr '\n' ' ')" -f "$TMP/scripts/lib/query_fields.awk" "$1"; }

@test "lists of drivers since 2021 each give what they have" {
    local list fields
    for list in "$SAMPLES"/nvidia/help/*; do
        fields=$(head -n 1 "$SAMPLES/nvidia/gpus/$(basename "$list" .txt).csv" | sed 's/ \[[^]]*\]//g; s/, /,/g')
        [ "$(choose_from "$list")" = "$fields" ]
    done
    for list in "$SAMPLES"/nvidia/help/465-* $(captures 'help/*2021*'); do
        fields=$(choose_from "$list")
        [[ $fields == *clocks_throttle_reasons.active* && $fields != *clocks_event* && $fields != *memory.reserved* && $fields == *pcie.link.gen.current* ]]
    done
    for list in $(captures 'help/netdata*'); do
        fields=$(choose_from "$list")
        [[ $fields == *memory.reserved* && $fields == *compute_cap* && $fields == *clocks_throttle_reasons.active* ]]
    done
}
