# shellcheck shell=sh disable=SC2154 # rc, out: set by the script that reads this one
# GPUs of NVIDIA, as nvidia-smi tells them.
# shellcheck source=scripts/lib/nvidia-xml.sh
. "$LIB/nvidia-xml.sh"

# The fields that we want, in our order; a|b is one thing under two names, the first that the driver knows is asked for.
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
reset_status.reset_required reset_status.drain_and_reset_recommended'
# What every driver of the last ten years knows: asked where the driver does not tell its fields.
CORE_FIELDS=index,uuid,name,driver_version,memory.total,memory.used,utilization.gpu,utilization.memory,temperature.gpu,power.draw,power.limit

# loaded_driver: sets driver to the version of the loaded kernel module; empty where there is none to ask (WSL).
loaded_driver() {
    driver=
    [ ! -r /sys/module/nvidia/version ] || read -r driver </sys/module/nvidia/version || :
}

# choose_fields: sets fields to those of ours that this driver knows; asked once, and kept in the spool for this driver's version.
choose_fields() {
    fields='' kept_driver=''
    [ ! -r "$SPOOL/fields" ] || { read -r kept_driver && read -r fields; } <"$SPOOL/fields" || fields=
    [ "${driver:-$kept_driver}" = "$kept_driver" ] || fields=
    [ -z "$fields" ] || return 0
    kept_driver=
    ask nvidia-smi --help-query-gpu
    case $rc in
        124 | 127 | 137 | 200) return "$rc" ;; # it is missing or hangs: asking on would only hang again
    esac
    # shellcheck disable=SC2086,SC2116 # the list on one line: not every awk takes more in a variable
    fields=$(awk -v wanted="$(echo $GPU_FIELDS)" -f "$LIB/fields.awk" "$out")
    if [ -n "$fields" ]; then
        kept_driver=${driver:-unknown}
        keep_fields
    else
        fields=$CORE_FIELDS
    fi
}

keep_fields() { printf '%s\n%s\n' "$kept_driver" "$fields" >"$NEW/fields" && mv -f "$NEW/fields" "$SPOOL/fields"; }

query_gpus() { ask nvidia-smi --query-gpu="$fields" --format=csv,nounits; }

# drop_refused_fields: a driver that changed since it was asked is asked again; a field that it lists and yet refuses costs no other.
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
            [ -z "$kept_driver" ] || keep_fields
        else
            rm -f "$SPOOL/fields"
            fields=$CORE_FIELDS kept_driver=
        fi
        query_gpus
    done
}

# note_driver: where no kernel module tells the version, the answer itself does; another one makes the kept fields void.
note_driver() {
    [ -z "${driver-}" ] && [ -n "${kept_driver-}" ] && [ -s "$noted" ] || return 0
    read -r answered <"$noted"
    if [ "$kept_driver" = unknown ]; then
        kept_driver=$answered
        keep_fields
    else
        rm -f "$SPOOL/fields"
    fi
}

nvidia_here() { [ "$GPUBOARD_NVIDIA" != no ] && command -v nvidia-smi >/dev/null; }

nvidia_gpus() {
    ! tell_otherwise || return 0
    begin_part
    loaded_driver
    if choose_fields; then
        query_gpus
        drop_refused_fields
        if [ "$GPUBOARD_NVIDIA" = auto ] && [ ! -e "$SPOOL/mig" ] && has_mig; then
            csv_out=$out csv_err=$err csv_rc=$rc
            ! tell_xml || return 0
            out=$csv_out err=$csv_err rc=$csv_rc
        fi
    fi
    end_csv
}

# nvidia_processes: the free text last, for it is never quoted.
nvidia_processes() {
    ! tell_otherwise || return 0
    begin_part
    ask nvidia-smi --query-compute-apps=gpu_uuid,pid,used_gpu_memory,process_name --format=csv,nounits
    end_csv
}
