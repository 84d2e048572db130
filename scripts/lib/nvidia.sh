# shellcheck shell=sh disable=SC2154 # rc, out: set by the script that reads this one
# GPUs of NVIDIA, by nvidia-smi.
# shellcheck source=scripts/lib/nvidia_xml.sh
. "$LIB/nvidia_xml.sh"

# The fields to query, in this order; of a|b, two names of one field, the first that the driver knows.
GPU_FIELDS='index uuid name pci.bus_id serial driver_version|kmd_version vbios_version compute_cap
memory.total memory.used memory.free memory.reserved utilization.gpu utilization.memory utilization.encoder utilization.decoder
temperature.gpu temperature.gpu.tlimit temperature.memory power.draw power.limit enforced.power.limit fan.speed pstate
clocks.current.graphics|clocks.gr clocks.current.sm|clocks.sm clocks.current.memory|clocks.mem clocks.max.sm
persistence_mode compute_mode mig.mode.current display_active pcie.link.gen.gpucurrent|pcie.link.gen.current pcie.link.width.current pcie.link.width.max
ecc.mode.current ecc.errors.corrected.volatile.total ecc.errors.uncorrected.volatile.total
ecc.errors.corrected.aggregate.total ecc.errors.uncorrected.aggregate.total
remapped_rows.correctable remapped_rows.uncorrectable remapped_rows.pending remapped_rows.failure
retired_pages.single_bit_ecc.count retired_pages.double_bit.count retired_pages.pending
clocks_event_reasons.active|clocks_throttle_reasons.active gpu_recovery_action
reset_status.reset_required reset_status.drain_and_reset_recommended
fabric.state fabric.status fabric.health.summary fabric.health.bandwidth fabric.health.route_recovery_in_progress
fabric.health.route_unhealthy fabric.health.access_timeout_recovery fabric.health.incorrect_configuration'
# Fields that every driver of the last ten years knows, for drivers that do not list theirs.
CORE_FIELDS=index,uuid,name,driver_version,memory.total,memory.used,utilization.gpu,utilization.memory,temperature.gpu,power.draw,power.limit

# read_loaded_driver: set driver to the version of the loaded kernel module; empty where there is none (WSL).
read_loaded_driver() {
    driver=
    [ ! -r /sys/module/nvidia/version ] || read -r driver </sys/module/nvidia/version || :
}

# choose_fields: set fields to those that this driver knows; queried once, and stored in the spool for this version.
choose_fields() {
    fields='' known_driver=''
    [ ! -r "$SPOOL/fields" ] || { read -r known_driver && read -r fields; } <"$SPOOL/fields" || fields=
    [ "${driver:-$known_driver}" = "$known_driver" ] || fields=
    [ -z "$fields" ] || return 0
    known_driver=
    query_tool nvidia-smi --help-query-gpu
    case $rc in
        124 | 127 | 137 | 200) return "$rc" ;; # it is missing or hangs: another call would only hang again
    esac
    # shellcheck disable=SC2086,SC2116 # on one line: not every awk takes newlines in a variable
    fields=$(awk -v wanted="$(echo $GPU_FIELDS)" -f "$LIB/query_fields.awk" "$out")
    if [ -n "$fields" ]; then
        known_driver=${driver:-unknown}
        store_fields
    else
        fields=$CORE_FIELDS
    fi
}

# store_fields: store the fields with the version of the driver.
store_fields() { printf '%s\n%s\n' "$known_driver" "$fields" >"$NEW/fields" && mv -f "$NEW/fields" "$SPOOL/fields"; }

# query_gpus: query the fields of all GPUs.
query_gpus() { query_tool nvidia-smi --query-gpu="$fields" --format=csv,nounits; }

# drop_refused_fields: query the fields again if the driver has changed, and drop fields that it lists but refuses.
drop_refused_fields() {
    if [ "$rc" = 2 ]; then
        rm -f "$SPOOL/fields"
        choose_fields || return 0
        query_gpus
    fi
    tries=0
    while [ "$rc" = 2 ] && [ "$fields" != "$CORE_FIELDS" ]; do
        refused=$(sed -n 's/^Field "\([A-Za-z0-9_.]*\)" is not a valid field.*/\1/p' "$out")
        tries=$((tries + 1))
        if [ -n "$refused" ] && [ "$tries" -le 5 ]; then
            fields=$(printf ',%s,\n' "$fields" | sed "s/,$refused,/,/; s/^,//; s/,\$//")
            [ -z "$known_driver" ] || store_fields
        else
            rm -f "$SPOOL/fields"
            fields=$CORE_FIELDS known_driver=
        fi
        query_gpus
    done
}

# update_known_driver: where no kernel module has the version, take it from the answer; drop the stored fields if it changed.
update_known_driver() {
    [ -z "${driver-}" ] && [ -n "${known_driver-}" ] && [ -s "$driver_file" ] || return 0
    read -r reported_driver <"$driver_file"
    if [ "$known_driver" = unknown ]; then
        known_driver=$reported_driver
        store_fields
    else
        rm -f "$SPOOL/fields"
    fi
}

# end_csv_part: add the answer in $out; and if XML was queried in vain, the reason.
end_csv_part() {
    [ -z "$xml_error" ] || [ "$rc" != 0 ] || echo "$xml_error" >>"$err"
    end_part nvidia-csv
}

# detect_nvidia: whether nvidia-smi is here and may be called.
detect_nvidia() { [ "$GPUBOARD_NVIDIA" != no ] && command -v nvidia-smi >/dev/null; }

# collect_nvidia_gpus: add the GPUs, as CSV, or as XML if one is in MIG mode.
collect_nvidia_gpus() {
    ! collect_without_csv || return 0
    begin_part
    read_loaded_driver
    if choose_fields; then
        query_gpus
        drop_refused_fields
        if [ "$GPUBOARD_NVIDIA" = auto ] && [ ! -e "$SPOOL/mig" ] && has_mig; then
            csv_out=$out csv_err=$err csv_rc=$rc
            ! collect_xml || return 0
            out=$csv_out err=$csv_err rc=$csv_rc
        fi
    fi
    end_csv_part
}

# collect_nvidia_processes: add the processes; the name comes last, since it is free text and never quoted.
collect_nvidia_processes() {
    ! collect_without_csv || return 0
    begin_part
    query_tool nvidia-smi --query-compute-apps=gpu_uuid,pid,used_gpu_memory,process_name --format=csv,nounits
    end_csv_part
}
