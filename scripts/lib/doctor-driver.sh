# shellcheck shell=sh disable=SC2154 # variables come from gpu-doctor.sh
# Checks of the NVIDIA driver: does it answer, how fast, and are all GPUs there?

answered=

# hanging: pid, name and age of each tool that waits in the kernel for longer than the time limit.
hanging() {
    awk -v limit="$GPUBOARD_LIMIT" '
        BEGIN {
            getline up < "/proc/uptime"
            for (i = 1; i < ARGC; i++) {
                if ((getline line < ARGV[i]) > 0 && match(line, / \((nvidia|amd|rocm)-smi\) D /)) {
                    pid = line + 0
                    name = substr(line, RSTART + 2, RLENGTH - 6)
                    sub(/.*\) /, "", line)
                    split(line, field, " ")
                    if (up - field[20] / 100 > limit) print pid, name, int(up - field[20] / 100)
                }
                close(ARGV[i])
            }
        }' "$PROC"/[0-9]*/stat
}

# see_hung: first, since while one hangs no other is started. One that only waits for a moment is gone at the second look.
see_hung() {
    hung=$(hanging)
    [ -z "$hung" ] || { sleep 1 && hung=$(hanging); }
    if [ -z "$hung" ]; then
        pass 'no nvidia-smi or its like hangs in the driver'
    else
        hung_name=${hung#* }
        fail "${hung_name%% *} (pid ${hung%% *}) hangs in the driver since ${hung##* } s, and not even kill -9 ends it" 'look for Xid in dmesg, then reboot; until then no other is started'
    fi
}

see_driver() {
    if ! command -v nvidia-smi >/dev/null && amd_here; then
        apart 'there is no nvidia-smi here, but a tool of AMD: see amd'
        return
    elif ! command -v nvidia-smi >/dev/null; then
        fail 'nvidia-smi was not found' 'install the NVIDIA driver; if it stands elsewhere, put a link into /usr/local/bin'
        return
    elif [ "${hung#* nvidia-smi }" != "$hung" ]; then
        fail 'an earlier nvidia-smi still hangs, so that no other was started' 'see hung'
        return
    fi
    ask_driver index,driver_version,persistence_mode
    [ "$rc" != 2 ] || ask_driver index,kmd_version,persistence_mode # as newer drivers call it
    if [ "$rc" = 200 ]; then
        fail 'the nvidia-smi of the loops did not end within the time limit, so that no other was started' 'call this again in a minute; see docs/troubleshooting.md, nvidia-smi is slow'
    elif timed_out; then
        fail "nvidia-smi did not answer within $GPUBOARD_LIMIT s" 'look for Xid in dmesg; a GPU that hangs needs a reboot'
    elif [ "$rc" != 0 ] && ! grep -q '^[0-9]' "$out"; then
        fail "nvidia-smi fails (exit $rc): $(last_words)" "$(driver_advice)"
    else
        answered=yes
        version=$(awk -F ', ' '/^[0-9]/ && $2 ~ /^[0-9]/ {print $2; exit}' "$out")
        if [ "$took" -gt $((GPUBOARD_LIMIT * 50)) ]; then
            warn "driver ${version:-of unknown version} answers, but took $(seconds "$took") of the $GPUBOARD_LIMIT s that it may take" 'see persistence; set GPUBOARD_GPUS_EVERY and GPUBOARD_PROCESSES_EVERY to 60'
        else
            pass "driver ${version:-of unknown version} answers in $(seconds "$took")"
        fi
    fi
}

# ask_driver FIELDS: in turn with the loops, where they have a lock for it; what is measured is the call alone.
ask_driver() {
    if [ -w "$RUN/nvidia-smi" ]; then
        asked flock -E 200 -w "$((GPUBOARD_LIMIT - 1))" "$RUN/nvidia-smi" true
        [ "$rc" = 0 ] || return 0
        asked flock -E 200 -w 1 "$RUN/nvidia-smi" nvidia-smi --query-gpu="$1" --format=csv,nounits
    else
        asked nvidia-smi --query-gpu="$1" --format=csv,nounits
    fi
}

# not_asked: why there is nothing to look at.
not_asked() {
    if command -v nvidia-smi >/dev/null; then skip 'nvidia-smi does not answer'; else apart 'there is no nvidia-smi here'; fi
}

driver_advice() {
    case $(cat "$out" "$err") in
        *'version mismatch'*) echo 'the driver was updated while the old one is loaded: reboot' ;;
        *"couldn't communicate"* | *'Driver Not Loaded'*) echo 'the kernel module is not loaded: look at dmesg, and install the driver for this kernel' ;;
        *'No devices were found'*) echo 'the driver sees no GPU: power, seating, lspci, Xid in dmesg' ;;
        *'Insufficient Permissions'*) echo 'this user may not open /dev/nvidia*: see their group and mode' ;;
        *'is lost'* | *'device handle'* | *fallen*) echo 'a GPU fell off the bus: look for Xid in dmesg, then reboot' ;;
        *) echo 'see docs/troubleshooting.md, It is failed' ;;
    esac
}

see_gpus() {
    [ -n "$answered" ] || { not_asked && return; }
    told=$(grep -c '^[0-9]' "$out" || :)
    there=0
    for folder in "$PROC"/driver/nvidia/gpus/*; do [ ! -d "$folder" ] || there=$((there + 1)); done
    if lost=$(cat "$out" "$err" | grep -iE 'is lost|fallen off|device handle|requires reset|Unknown Error' | head -n 1) && [ -n "$lost" ]; then
        fail "a GPU cannot be reached: $lost" 'look for Xid in dmesg, then reset it (nvidia-smi -r) or reboot; the other GPUs stay on the board'
    elif [ "$there" -gt "$told" ]; then
        fail "the kernel knows $there GPUs, nvidia-smi tells $told" 'one fell off the bus: look for Xid in dmesg, then reboot'
    elif [ "$told" = 0 ]; then
        fail 'nvidia-smi tells no GPU' 'power, seating, lspci, Xid in dmesg'
    else
        pass "$told GPUs answer"
    fi
}

see_persistence() {
    [ -n "$answered" ] || { not_asked && return; }
    off=$(grep -c '^[0-9].*Disabled *$' "$out" || :)
    on=$(grep -c '^[0-9].*Enabled *$' "$out" || :)
    if [ "$off" != 0 ]; then
        # two loops ask, each at its own interval
        share=$((took / GPUBOARD_GPUS_EVERY + took / GPUBOARD_PROCESSES_EVERY))
        warn "persistence mode is off on $off of $((off + on)) GPUs: the driver starts anew at each call, which takes $(seconds "$took") here, $share % of the time of one CPU" \
            'as root: nvidia-smi -pm 1, or better the service nvidia-persistenced, which lasts over a reboot'
    elif [ "$on" != 0 ]; then
        pass 'persistence mode is on'
    else
        skip 'this driver does not tell its persistence mode'
    fi
}
