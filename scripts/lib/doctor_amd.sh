# shellcheck shell=sh disable=SC2154 # variables come from gpu-doctor.sh
# Check of AMD's driver: does its tool answer, how fast, and how many GPUs does it tell?
# shellcheck source=scripts/lib/amd.sh
. "$LIB/amd.sh"

# inspect_amd: whether a tool of AMD answers, and how many GPUs it lists.
inspect_amd() {
    detect_amd || { report_not_applicable 'neither amd-smi nor rocm-smi is installed' && return; }
    for amd_tool in $amd_tools; do
        command -v "$amd_tool" >/dev/null || {
            report_failure "GPUBOARD_AMD asks for $amd_tool, which was not found" 'install ROCm, or set GPUBOARD_AMD to auto'
            return
        }
        case $amd_tool in
            *rocm-smi) run_with_timeout "$amd_tool" --showid --json ;;
            *) run_with_timeout "$amd_tool" list --json ;;
        esac
        [ "$rc" != 0 ] || break
        ! is_timed_out || break
    done
    gpu_count=$(grep -oE '"gpu": *[0-9]+|"card[0-9]+"' "$out" | sort -u | grep -c . || :)
    if is_timed_out; then
        report_failure "${amd_tool##*/} did not answer within $GPUBOARD_LIMIT s" 'search dmesg for amdgpu; a hung GPU needs a reboot'
    elif [ "$rc" != 0 ]; then
        report_failure "${amd_tool##*/} fails (exit $rc): $(print_last_line)" "$(print_amd_advice)"
    elif [ "$gpu_count" = 0 ]; then
        report_failure "${amd_tool##*/} reports no GPU" 'check power, seating, lspci, and dmesg for amdgpu; without AMD GPUs, set GPUBOARD_AMD=no'
    else
        report_pass "${amd_tool##*/} reports $gpu_count GPUs in $(format_seconds "$took")"
    fi
}

# print_amd_advice: print what to do about the last error.
print_amd_advice() {
    case $(cat "$out" "$err") in
        *'not initialized'* | *'not found in modules'* | *'Driver not'*) echo 'the kernel module amdgpu is not loaded: check dmesg, and install the driver for this kernel' ;;
        *ermission* | *render*) echo 'this user may not open /dev/kfd: put it into the groups render and video' ;;
        *) echo 'see its message; if this host has no AMD GPU, set GPUBOARD_AMD=no' ;;
    esac
}
