# shellcheck shell=sh disable=SC2154 # variables come from gpu-doctor.sh
# Check of AMD's driver: does its tool answer, how fast, and how many GPUs does it tell?
# shellcheck source=scripts/lib/amd.sh
. "$LIB/amd.sh"

see_amd() {
    amd_here || { apart 'there is neither an amd-smi nor a rocm-smi here' && return; }
    for amd in $amd_tools; do
        command -v "$amd" >/dev/null || {
            fail "$amd was not found, but GPUBOARD_AMD asks for it" 'install ROCm, or set GPUBOARD_AMD to auto'
            return
        }
        case $amd in
            *rocm-smi) asked "$amd" --showid --json ;;
            *) asked "$amd" list --json ;;
        esac
        [ "$rc" != 0 ] || break
        ! timed_out || break
    done
    told=$(grep -oE '"gpu": *[0-9]+|"card[0-9]+"' "$out" | sort -u | grep -c . || :)
    if timed_out; then
        fail "${amd##*/} did not answer within $GPUBOARD_LIMIT s" 'look for amdgpu in dmesg; a GPU that hangs needs a reboot'
    elif [ "$rc" != 0 ]; then
        fail "${amd##*/} fails (exit $rc): $(last_words)" "$(amd_advice)"
    elif [ "$told" = 0 ]; then
        fail "${amd##*/} tells no GPU" 'power, seating, lspci, amdgpu in dmesg; where there is none of AMD: GPUBOARD_AMD=no'
    else
        pass "${amd##*/} tells $told GPUs, in $(seconds "$took")"
    fi
}

amd_advice() {
    case $(cat "$out" "$err") in
        *'not initialized'* | *'not found in modules'* | *'Driver not'*) echo 'the kernel module amdgpu is not loaded: look at dmesg, and install the driver for this kernel' ;;
        *ermission* | *render*) echo 'this user may not open /dev/kfd: put it into the groups render and video' ;;
        *) echo 'its own words say why; where this host has no GPU of AMD, set GPUBOARD_AMD=no' ;;
    esac
}
