#!/usr/bin/env bats
# GPUs of AMD: what is asked of amd-smi and rocm-smi, how often, and what becomes of it, whatever they do.
load helper

# amd TOOL...: this host has these tools of AMD, and no nvidia-smi unless `nvidia` is one of them.
amd() {
    local tool
    mkdir -p "$SMI/amd"
    : >"$SMI/amd/calls"
    export ROCM_PATH=$TMP/rocm
    rm -f "$TMP/bin/nvidia-smi"
    for tool in "$@"; do
        case $tool in
            nvidia) ln -s "$BATS_TEST_DIRNAME/../../site_builder/demo/stand-ins/nvidia-smi" "$TMP/bin/nvidia-smi" ;;
            *) ln -s "$BATS_TEST_DIRNAME/../../site_builder/demo/stand-ins/amd/$tool" "$TMP/bin/$tool" ;;
        esac
    done
    if [[ " $* " != *nvidia* ]] && command -v nvidia-smi; then missing 'this machine has a real nvidia-smi'; fi
}

# calls PATTERN: how often one like it was called.
calls() { grep -c -- "$1" "$SMI/amd/calls" || :; }

# parts FILE: what its parts are called.
parts() { sed -n 's/^# part \([^ ]*\) .*/\1/p' "$1" | tr '\n' ' '; }

# bats test_tags=quick,shell
@test "a host with AMD's GPUs alone tells them by amd-smi, each answer as a part" {
    amd amd-smi rocm-smi
    "$RUN_SH" once
    whole "$DATA/gpus.csv" gpus 0
    whole "$DATA/processes.csv" processes 0
    [ "$(parts "$DATA/gpus.csv")" = 'amd-smi/names amd-smi/static amd-smi/metric ' ]
    [ "$(parts "$DATA/processes.csv")" = 'amd-smi/names amd-smi/static amd-smi/processes ' ]
    has "$DATA/gpus.csv" '"market_name": "AMD Instinct MI300X"'
    has "$DATA/gpus.csv" '"hip_id": 1'
    [ "$(calls rocm-smi)" = 0 ]
}

@test "what names the GPUs is asked once for both tasks, and not at every tick" {
    amd amd-smi
    for _ in 1 2 3; do "$RUN_SH" once; done
    [ "$(calls 'list -e --json')" = 1 ]
    [ "$(calls 'static --json')" = 1 ]
    [ "$(calls '^amd-smi metric --usage --mem-usage')" = 3 ]
    [ "$(calls '^amd-smi process --json')" = 3 ]
    [ "$(wc -l <"$SMI/amd/calls")" = 8 ]
}

@test "after five minutes, and after a reboot, they are asked anew" {
    amd amd-smi
    "$RUN_SH" tick 1
    for named in 1 99999999999; do
        sed -i "s/^[0-9]*/$named/" "$SPOOL/amd"
        [ "$named" != 1 ] || read -r up _ </proc/uptime
        [ "$named" != 1 ] || [ "${up%.*}" -gt 301 ] || sed -i "s/^[0-9]*/$((${up%.*} - 301))/" "$SPOOL/amd"
        : >"$SMI/amd/calls"
        "$RUN_SH" tick 1
        [ "$(calls 'list -e')" = 1 ]
    done
}

# bats test_tags=shell
@test "an amd-smi of before ROCm 6.4 is asked as it can be, and that is remembered" {
    amd amd-smi
    touch "$SMI/amd/old"
    for _ in 1 2 3; do "$RUN_SH" tick 1; done
    whole "$SPOOL/gpus.csv" gpus 0
    [ "$(parts "$SPOOL/gpus.csv")" = 'amd-smi/names amd-smi/static amd-smi/metric ' ]
    has "$SPOOL/gpus.csv" '"gfx_activity"'
    [ "$(calls 'list --json')" = 1 ]
    [ "$(calls 'metric --usage')" = 1 ]
    [ "$(calls 'metric --json')" = 3 ]
}

@test "without amd-smi, or where it fails, rocm-smi is asked, for processes by its text" {
    amd rocm-smi
    echo '1 4242 1073741824 python3' >"$SMI/amd/apps"
    "$RUN_SH" once
    [ "$(parts "$DATA/gpus.csv")" = 'rocm-smi/names rocm-smi/metric ' ]
    [ "$(parts "$DATA/processes.csv")" = 'rocm-smi/names rocm-smi/processes ' ]
    has "$DATA/gpus.csv" '"GPU use (%)": "0"'
    [ "$(calls '--showmeminfo vram gtt')" = 1 ] # an APU uses both
    has "$DATA/processes.csv" 'PID 4242 is using 1 DRM device(s):'
    amd amd-smi
    echo 'ModuleNotFoundError: no module named amdsmi' >"$SMI/amd/say"
    echo 1 >"$SMI/amd/rc"
    rm "$SPOOL/amd"
    for _ in 1 2; do "$RUN_SH" once; done
    whole "$DATA/gpus.csv" gpus 0
    [ "$(parts "$DATA/gpus.csv")" = 'rocm-smi/names rocm-smi/metric ' ]
    [ "$(calls amd-smi)" = 2 ] # list -e, list; and then no more
}

@test "GPUBOARD_AMD says which tool is asked, or none, and nothing else" {
    amd amd-smi rocm-smi nvidia
    GPUBOARD_AMD=rocm-smi "$RUN_SH" tick 1
    [ "$(parts "$SPOOL/gpus.csv")" = 'nvidia-csv rocm-smi/names rocm-smi/metric ' ]
    GPUBOARD_AMD=no "$RUN_SH" tick 1
    has_not "$SPOOL/gpus.csv" '# part'
    GPUBOARD_AMD=perhaps run "$RUN_SH" once
    [ "$status" = 2 ]
    [[ $output == *"GPUBOARD_AMD is 'perhaps', but must be auto, amd-smi, rocm-smi or no"* ]]
    rm "$TMP/bin/amd-smi"
    GPUBOARD_AMD=amd-smi "$RUN_SH" tick 1
    has "$SPOOL/gpus.csv" '# err amd-smi was not found on this host'
    has "$SPOOL/gpus.csv" '# part amd-smi/names rc=127'
}

@test "a tool in ROCm's own folder is found, though cron does not know that" {
    amd
    mkdir -p "$TMP/rocm/bin"
    ln -s "$BATS_TEST_DIRNAME/../../site_builder/demo/stand-ins/amd/amd-smi" "$TMP/rocm/bin/amd-smi"
    "$RUN_SH" once
    whole "$DATA/gpus.csv" gpus 0
    has "$DATA/gpus.csv" '# part amd-smi/metric rc=0'
}

@test "a host with GPUs of two makers tells both, and what befalls one does not befall the other" {
    amd amd-smi nvidia
    "$RUN_SH" once
    [ "$(parts "$DATA/gpus.csv")" = 'nvidia-csv amd-smi/names amd-smi/static amd-smi/metric ' ]
    echo 'something is odd' >"$SMI/cry"
    echo 14 >"$SMI/rc"
    "$RUN_SH" once
    whole "$DATA/gpus.csv" gpus 14
    has "$DATA/gpus.csv" '# part nvidia-csv rc=14'
    has "$DATA/gpus.csv" '# part amd-smi/metric rc=0'
    rm "$SMI/cry" "$SMI/rc"
    echo 'Traceback: no driver' >"$SMI/amd/cry"
    echo 1 >"$SMI/amd/rc"
    "$RUN_SH" once
    has "$DATA/gpus.csv" '# part nvidia-csv rc=0'
    has "$DATA/gpus.csv" '# part amd-smi/metric rc=1'
    has "$DATA/gpus.csv" '# err Traceback: no driver'
    [ "$(grep -c '^[01], GPU-' "$DATA/gpus.csv")" = 2 ]
}

# bats test_tags=shell
@test "a tool that hangs is stopped at the limit, and not asked a second thing" {
    amd amd-smi rocm-smi
    echo 60 >"$SMI/amd/sleep"
    GPUBOARD_LIMIT=1 "$RUN_SH" tick 1
    whole "$SPOOL/gpus.csv" gpus 124
    has "$SPOOL/gpus.csv" '# part amd-smi/names rc=124'
    has "$SPOOL/gpus.csv" '# err amd-smi did not answer within 1 s and was stopped'
    [ "$(wc -l <"$SMI/amd/calls")" = 1 ]
    rm "$SMI/amd/sleep"
    "$RUN_SH" tick 1
    whole "$SPOOL/gpus.csv" gpus 0
}

@test "one that hangs later keeps its GPUs by name, and their readings are told as missing" {
    amd amd-smi
    "$RUN_SH" once
    echo 60 >"$SMI/amd/sleep"
    export GPUBOARD_LIMIT=1
    "$RUN_SH" once
    whole "$DATA/gpus.csv" gpus 124
    [ "$(parts "$DATA/gpus.csv")" = 'amd-smi/names amd-smi/static amd-smi/metric ' ]
    has "$DATA/gpus.csv" '# part amd-smi/metric rc=124'
    has "$DATA/gpus.csv" '"hip_uuid"'
    nothing_left
    "$RUN_SH" once
    has "$DATA/gpus.csv" '"hip_uuid"'
    [ "$(calls 'list -e')" = 1 ]
}

# bats test_tags=shell
@test "names that could not be kept, on a full disk, are asked anew at the next tick" {
    amd amd-smi
    printf '#!/bin/sh\nexit 1\n' >"$TMP/bin/cp"
    chmod +x "$TMP/bin/cp"
    "$RUN_SH" tick 1
    [ ! -e "$SPOOL/amd" ]
    whole "$SPOOL/gpus.csv" gpus 74
    has "$SPOOL/gpus.csv" '# err the output of amd-smi could not be saved: is the disk of the spool full?'
    rm "$TMP/bin/cp"
    "$RUN_SH" tick 1
    whole "$SPOOL/gpus.csv" gpus 0
}

@test "the people behind AMD's processes are found, by either tool" {
    sleep 300 &
    local pid=$!
    for tool in amd-smi rocm-smi; do
        amd "$tool"
        printf '0 %s 1073741824 python3\n1 %s 1073741824 python3\n' "$pid" "$pid" >"$SMI/amd/apps"
        rm -f "$SPOOL/amd"
        "$RUN_SH" once
        [ "$(awk -F '\t' -v pid="$pid" '$1 == pid {print $3, $6, $NF}' "$DATA/ps.txt")" = "$pid $(id -un) sleep 300" ]
        rm "$TMP/bin/$tool"
    done
}

@test "a process that only looks at AMD's GPUs is none on a GPU" {
    amd rocm-smi
    printf 'No KFD PIDs currently running\nPID %s is using 0 DRM device(s)\n' "$$" >"$SMI/amd/rocm-say"
    "$RUN_SH" once
    fails grep -q "^$$	" "$DATA/ps.txt"
}

@test "secrets in the name of a process stay on the host" {
    amd amd-smi
    echo '0 4242 5 python3' >"$SMI/amd/apps"
    sed 's|"python3"|"train.py --key=s3cret, x"|' <<<'[{"gpu": 0, "process_list": [{"process_info": {
  "name": "python3",
  "pid": 4242}}]}]' >"$TMP/said"
    "$RUN_SH" tick 1
    cp "$TMP/said" "$SMI/amd/say"
    "$RUN_SH" tick 2
    has "$SPOOL/processes.csv" '"name": "train.py •••",'
    has_not "$SPOOL/processes.csv" s3cret
}

@test "so do those of JSON in one line, and none passes for a line of ours" {
    amd amd-smi
    "$RUN_SH" tick 1
    printf '%s\r# part zzz rc=0\n' '[{"gpu": 0, "process_list": [{"name": "a \" --key=s3cret", "pid": 1}, {"process_name":"hf_s3cret", "pid": 2}]}]' >"$SMI/amd/say"
    printf 'oh\r# part yyy rc=0\n' >"$SMI/amd/cry"
    local awk
    for awk in mawk gawk original-awk 'busybox awk'; do
        command -v "${awk%% *}" >/dev/null || missing "$awk is not here"
        printf '#!/bin/sh\nexec %s "$@"\n' "$awk" >"$TMP/bin/awk"
        chmod +x "$TMP/bin/awk"
        "$RUN_SH" tick 2
        has "$SPOOL/processes.csv" '{"name": "a \" •••", "pid": 1}, {"process_name":"•••", "pid": 2}'
        has_not "$SPOOL/processes.csv" s3cret
        [ "$(tr '\r' '\n' <"$SPOOL/processes.csv" | grep -c '^# part [yz]')" = 0 ]
    done
}

@test "under each awk the same is told" {
    amd amd-smi
    printf '0 4242 5 python3\n1 4243 5 a.out\n' >"$SMI/amd/apps"
    local awk first=
    for awk in mawk gawk original-awk 'busybox awk'; do
        command -v "${awk%% *}" >/dev/null || missing "$awk is not here"
        printf '#!/bin/sh\nexec %s "$@"\n' "$awk" >"$TMP/bin/awk"
        chmod +x "$TMP/bin/awk"
        "$RUN_SH" once
        told=$(sed 's/ time=[0-9]* / /; s/ took_ms=[0-9]* / /' "$DATA/gpus.csv" "$DATA/processes.csv")
        [ -z "$first" ] || [ "$told" = "$first" ]
        first=$told
    done
}

@test "what stands in the spool beside the snapshot is never pushed" {
    amd amd-smi
    "$RUN_SH" once
    [ "$(find "$DATA" -type f | wc -l)" = 4 ]
}
