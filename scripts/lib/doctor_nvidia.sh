# shellcheck shell=sh disable=SC2154 # variables come from gpu-doctor.sh
# Checks of the NVIDIA driver: whether it answers, how fast, and whether all GPUs are there.

driver_answers=

# inspect_driver: whether nvidia-smi answers, and how fast.
inspect_driver() {
    if ! command -v nvidia-smi >/dev/null && detect_amd; then
        report_not_applicable 'no nvidia-smi, but an AMD tool is installed: see the check amd'
        return
    elif ! command -v nvidia-smi >/dev/null; then
        report_failure 'nvidia-smi was not found' 'install the NVIDIA driver; if nvidia-smi is elsewhere, link it into /usr/local/bin'
        return
    elif [ "${hung#* nvidia-smi }" != "$hung" ]; then
        require_checks hung || :
        return
    fi
    query_driver index,driver_version,persistence_mode
    [ "$rc" != 2 ] || query_driver index,kmd_version,persistence_mode # its name in newer drivers
    if [ "$rc" = 200 ]; then
        report_failure 'the nvidia-smi of the loops did not finish within the time limit, so it was not started again' 'run this again in a minute; see docs/troubleshooting.md, nvidia-smi is slow'
    elif is_timed_out; then
        report_failure "nvidia-smi did not answer within $GPUBOARD_LIMIT s" 'search dmesg for Xid; a hung GPU needs a reboot'
    elif [ "$rc" != 0 ] && ! grep -q '^[0-9]' "$out"; then
        report_failure "nvidia-smi fails (exit $rc): $(print_last_line)" "$(print_driver_advice)"
    else
        driver_answers=yes
        version=$(awk -F ', ' '/^[0-9]/ && $2 ~ /^[0-9]/ {print $2; exit}' "$out")
        if [ "$took" -gt $((GPUBOARD_LIMIT * 50)) ]; then
            report_warning "driver ${version:-of unknown version} answers, but took $(format_seconds "$took") of the $GPUBOARD_LIMIT s allowed" 'see the check persistence; set GPUBOARD_GPUS_EVERY and GPUBOARD_PROCESSES_EVERY to 60'
        else
            report_pass "driver ${version:-of unknown version} answers in $(format_seconds "$took")"
        fi
    fi
}

# query_driver FIELDS: call nvidia-smi in turn with the loops, by their lock; only the call itself is measured.
query_driver() {
    if [ -w "$RUN/nvidia-smi" ]; then
        run_with_timeout flock -E 200 -w "$((GPUBOARD_LIMIT - 1))" "$RUN/nvidia-smi" true
        [ "$rc" = 0 ] || return 0
        run_with_timeout flock -E 200 -w 1 "$RUN/nvidia-smi" nvidia-smi --query-gpu="$1" --format=csv,nounits
    else
        run_with_timeout nvidia-smi --query-gpu="$1" --format=csv,nounits
    fi
}

# report_not_asked: say why there is nothing to check.
report_not_asked() {
    if command -v nvidia-smi >/dev/null; then report_skip 'nvidia-smi does not answer'; else report_not_applicable 'nvidia-smi is not installed'; fi
}

# print_driver_advice: print what to do about the last error.
print_driver_advice() {
    case $(cat "$out" "$err") in
        *'version mismatch'*) echo 'the driver was updated, but the old one is still loaded: reboot' ;;
        *"couldn't communicate"* | *'Driver Not Loaded'*) echo 'the kernel module is not loaded: check dmesg, and install the driver for this kernel' ;;
        *'No devices were found'*) echo 'the driver sees no GPU: check power, seating, lspci, and dmesg for Xid' ;;
        *'Insufficient Permissions'*) echo 'this user may not open /dev/nvidia*: check their group and mode' ;;
        *'is lost'* | *'device handle'* | *fallen*) echo 'a GPU fell off the bus: search dmesg for Xid, then reboot' ;;
        *) echo 'see docs/troubleshooting.md, It is failed' ;;
    esac
}

# inspect_gpus: whether all GPUs answer.
inspect_gpus() {
    [ -n "$driver_answers" ] || { report_not_asked && return; }
    gpu_count=$(grep -c '^[0-9]' "$out" || :)
    kernel_gpus=0
    for folder in "$PROC"/driver/nvidia/gpus/*; do [ ! -d "$folder" ] || kernel_gpus=$((kernel_gpus + 1)); done
    if lost=$(cat "$out" "$err" | grep -iE 'is lost|fallen off|device handle|requires reset|Unknown Error' | head -n 1) && [ -n "$lost" ]; then
        report_failure "a GPU cannot be reached: $lost" 'search dmesg for Xid, then reset it (nvidia-smi -r) or reboot; the other GPUs stay on the board'
    elif [ "$kernel_gpus" -gt "$gpu_count" ]; then
        report_failure "the kernel has $kernel_gpus GPUs, but nvidia-smi reports $gpu_count" 'a GPU fell off the bus: search dmesg for Xid, then reboot'
    elif [ "$gpu_count" = 0 ]; then
        report_failure 'nvidia-smi reports no GPU' 'check power, seating, lspci, and dmesg for Xid'
    else
        report_pass "$gpu_count GPUs answer"
    fi
}

# inspect_persistence: whether persistence mode is on.
inspect_persistence() {
    [ -n "$driver_answers" ] || { report_not_asked && return; }
    off=$(grep -c '^[0-9].*Disabled *$' "$out" || :)
    on=$(grep -c '^[0-9].*Enabled *$' "$out" || :)
    if [ "$off" != 0 ]; then
        # two loops call it, each at its own interval
        share=$((took / GPUBOARD_GPUS_EVERY + took / GPUBOARD_PROCESSES_EVERY))
        report_warning "persistence mode is off on $off of $((off + on)) GPUs: every query reloads the driver, which takes $(format_seconds "$took") here, $share % of one CPU" \
            'as root: nvidia-smi -pm 1, or better the service nvidia-persistenced, which survives reboots'
    elif [ "$on" != 0 ]; then
        report_pass 'persistence mode is on'
    else
        report_skip 'this driver does not report its persistence mode'
    fi
}

# inspect_kernel_log: whether this user may read Xid errors; the board does without them.
inspect_kernel_log() {
    if ! command -v nvidia-smi >/dev/null; then
        report_not_applicable 'nvidia-smi is not installed'
        return
    fi
    run_with_timeout dmesg
    if [ "$rc" = 0 ] && { [ ! -s "$out" ] || grep -q '^\[ *[0-9]*\.[0-9]*\]' "$out"; }; then # without times nobody knows what is new
        report_pass 'Xid errors are read with dmesg'
        return
    fi
    advice='as root: sysctl kernel.dmesg_restrict=0'
    if command -v journalctl >/dev/null; then
        run_with_timeout journalctl --no-pager -n 1 _TRANSPORT=kernel
        if [ "$rc" = 0 ] && ! is_journal_hidden "$err"; then
            report_pass 'Xid errors are read with journalctl'
            return
        fi
        advice="as root: usermod -aG systemd-journal $(id -un); then gpu-check.sh kill, so that cron starts the loops anew"
    fi
    report_skip "this user may not read the kernel log, so the board shows no Xid errors of the GPUs; $advice"
}
