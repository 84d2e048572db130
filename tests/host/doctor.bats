#!/usr/bin/env bats
# gpu-doctor.sh: each check on a host that is well, and on one that is not.
load helper

setup() {
    helper_setup
    DOCTOR=$TMP/scripts/gpu-doctor.sh
    # what cron tells, and a /proc in which a cron daemon is running
    mkdir -p "$TMP/proc/1" "$TMP/proc/7"
    echo init >"$TMP/proc/1/comm"
    echo '1 (init) S' >"$TMP/proc/1/stat"
    echo cron >"$TMP/proc/7/comm"
    echo 'proc /proc proc rw,nosuid 0 0' >"$TMP/proc/mounts"
    export GPUBOARD_PROC=$TMP/proc
    printf '#!/bin/sh\ncat "%s/crontab"\n' "$TMP" >"$TMP/bin/crontab"
    chmod +x "$TMP/bin/crontab"
    echo "* * * * * $CHECK" >"$TMP/crontab"
    table Enabled
}

# table MODE: two GPUs, with the persistence mode of the second.
table() { printf 'index, driver_version, persistence_mode\n0, 590.48.01, Enabled\n1, 590.48.01, %s\n' "$1" >"$SMI/table"; }

# examine [OPTION]: what is found, a line a check: status, id, words, advice.
examine() {
    code=0
    "$DOCTOR" --json "$@" >"$TMP/json" 2>"$TMP/stderr" || code=$?
    cat "$TMP/stderr" >&2
    python3 -c '
import json, sys
told = json.loads(open(sys.argv[1], "rb").read().decode())
assert told["host"] == "gpu1" and told["version"], told
for one in told["checks"]:
    assert set(one) == {"id", "group", "status", "what", "do"}, one
    assert bool(one["do"]) == (one["status"] in ("warn", "fail")), one
    print(one["status"], one["id"], one["what"], one["do"] or "", sep="|")
worst = {0: "pass", 1: "warn", 2: "fail"}[int(sys.argv[2])]
assert told["worst"] == worst, (told["worst"], worst)
' "$TMP/json" "$code" >"$TMP/found"
}

# finds STATUS ID WORDS: that check has this status, with these words in its sentence or its advice.
finds() {
    grep -q "^$1|$2|.*$3" "$TMP/found" && return
    echo "no $1|$2|...$3 in:" >&2
    cat "$TMP/found" >&2
    return 1
}

start_loops() {
    "$CHECK" gpu1
    wait_until "$CHECK" status gpu1
}

# bats test_tags=quick,shell
@test "a host that is well passes all, with exit 0, and nothing is changed there" {
    start_loops
    examine gpu1
    [ "$code" = 0 ]
    for id in settings name tools hung driver gpus persistence kernel-log hidepid spool cron-daemon cron-allowed crontab loops dest folder clock push; do finds pass "$id" ''; done
    for id in amd linger ssh-key ssh consul; do finds skip "$id" ''; done
    finds pass driver 'driver 590.48.01 answers in [0-9.]* s'
    finds pass gpus '2 GPUs answer'
    run "$DOCTOR" gpu1
    [ "$status" = 0 ]
    [[ $output == *'18 pass, 0 warn, 0 fail, 5 skip' ]]
    [[ $output != *linger* ]] # checks that do not apply are shown only with --verbose
    [ "$(printf '%s\n' "$output" | awk '{print length($0)}' | sort -n | tail -n 1)" -le 80 ]
    run "$DOCTOR" --verbose gpu1
    [[ $output == *'skip  linger        cron starts the loops, not systemd'* ]]
}

@test "where nothing was ever started it makes no spool, and says so" {
    examine gpu1
    [ "$code" = 2 ]
    [ ! -e "$GPUBOARD_SPOOL" ]
    finds fail loops 'has never started the loops for gpu1'
    finds skip push 'not checked: see the check loops'
    finds skip spool 'does not exist yet'
}

# bats test_tags=shell
@test "what stands in the driver's way is told in its own words, and as JSON whatever they are" {
    printf 'Failed to initialize NVML: Driver/library version mismatch\nNVML library "5\\35" \033[31m\001\344 \303\244\302\2331m' >"$SMI/say"
    echo 18 >"$SMI/rc"
    examine gpu1
    [ "$code" = 2 ]
    finds fail driver 'nvidia-smi fails (exit 18): NVML library "5\\35"  *\[31m ? ä 1m|.*reboot'
    finds skip gpus 'does not answer'
    echo 'No devices were found' >"$SMI/say"
    examine gpu1
    finds fail driver 'lspci'
    rm "$TMP/bin/nvidia-smi" "$SMI/say"
    PATH=$TMP/bin:/usr/bin:/bin examine gpu1
    finds fail driver 'nvidia-smi was not found'
}

# bats test_tags=shell
@test "a lost GPU, and persistence mode that is off, with what a call takes" {
    table Disabled
    echo 0.4 >"$SMI/sleep"
    echo 'Unable to determine the device handle for GPU 0000:03:00.0: GPU is lost.  Reboot the system to recover this GPU' >"$SMI/cry"
    mkdir -p "$TMP/proc/driver/nvidia/gpus/0000:03:00.0"
    examine gpu1
    finds pass driver 'answers in 0.[4-9]'
    finds fail gpus 'a GPU cannot be reached: .*GPU is lost'
    finds warn persistence 'is off on 1 of 2 GPUs: .*which takes 0.[4-9] s here, [0-9]* %.*nvidia-persistenced'
    rm "$SMI/cry" "$SMI/sleep"
    mkdir "$TMP/proc/driver/nvidia/gpus/2" "$TMP/proc/driver/nvidia/gpus/3"
    examine gpu1
    finds fail gpus 'the kernel has 3 GPUs, but nvidia-smi reports 2'
}

@test "nothing hangs: neither nvidia-smi that is deaf to TERM, nor crontab, nor a second nvidia-smi while one hangs in the driver" {
    export GPUBOARD_LIMIT=1
    touch "$SMI/stubborn"
    echo 60 >"$SMI/sleep"
    printf '#!/bin/sh\nsleep 60\n' >"$TMP/bin/crontab"
    began=$SECONDS
    examine gpu1
    [ $((SECONDS - began)) -lt 50 ] # what hangs does so for 60 s
    finds fail driver 'did not answer within 1 s'
    finds fail cron-allowed 'cannot be read'
    mkdir "$TMP/proc/99"
    echo '99 (nvidia-smi) D 1 99 99 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 100 0 0' >"$TMP/proc/99/stat"
    : >"$SMI/calls"
    rm "$TMP/bin/crontab"
    examine gpu1
    finds fail hung 'nvidia-smi (pid 99) has been hanging in the driver for [0-9]* s'
    finds skip driver 'not checked: see the check hung'
    [ ! -s "$SMI/calls" ]
}

# bats test_tags=shell
@test "a kernel log that this user may not read is told with what allows it, and is nothing that counts" {
    start_loops
    rm "$TMP/bin/dmesg"
    printf '#!/bin/sh\nexit 1\n' >"$TMP/bin/dmesg"
    printf '#!/bin/sh\necho "Hint: You are currently not seeing messages from other users and the system." >&2\n' >"$TMP/bin/journalctl"
    chmod +x "$TMP/bin/dmesg" "$TMP/bin/journalctl"
    examine gpu1
    [ "$code" = 0 ]
    finds skip kernel-log "may not read the kernel log, .*usermod -aG systemd-journal $(id -un)"
    printf '#!/bin/sh\necho "1773144120.104200 atlas kernel: Linux"\n' >"$TMP/bin/journalctl"
    examine gpu1
    finds pass kernel-log 'with journalctl'
    printf '#!/bin/sh\necho "Linux version 6.8.0"\n' >"$TMP/bin/dmesg" # without times, as with printk.time=0
    examine gpu1
    finds pass kernel-log 'with journalctl'
}

# bats test_tags=shell
@test "cron that is not running, a user who may not use it, a line that is missing or leads nowhere" {
    rm -r "$TMP/proc/7"
    printf '#!/bin/sh\necho "You (lab) are not allowed to use this program (crontab)" >&2\nexit 1\n' >"$TMP/bin/crontab"
    examine gpu1
    finds fail cron-daemon 'no cron daemon is running, so nothing starts the loops'
    for id in cron-allowed crontab; do finds skip "$id" 'not checked: see the check cron-daemon'; done
    mkdir -p "$TMP/proc/7"
    echo cron >"$TMP/proc/7/comm"
    examine gpu1
    finds fail cron-allowed 'You (lab) are not allowed.*cron.allow'
    finds skip crontab 'not checked: see the check cron-allowed'
    rm -r "$TMP/proc/7"
    printf '#!/bin/sh\necho "no crontab for lab" >&2\nexit 1\n' >"$TMP/bin/crontab"
    rm "$TMP/proc/1/stat"
    examine gpu1
    finds skip cron-daemon 'hidden here'
    finds pass cron-allowed ''
    finds warn crontab 'has no line for gpu-check.sh'
    printf '#!/bin/sh\necho "* * * * * /nowhere/gpu-check.sh gpu1"\n' >"$TMP/bin/crontab"
    examine gpu1
    finds fail crontab 'starts /nowhere/gpu-check.sh, which does not exist'
    for line in "*/5 * * * * cd '/a b' && /nowhere/gpu-check.sh >/dev/null" "* * * * * '/no where/gpu-check.sh' gpu1"; do
        script=$(. "$TMP/scripts/lib/doctor_cron.sh" && find_crontab_script "$line" && echo "$script")
        [[ $script == /no*where/gpu-check.sh ]]
    done
    script=$(. "$TMP/scripts/lib/doctor_cron.sh" && find_crontab_script '@reboot $HOME/gpu-check.sh' && echo "$script")
    [ "$script" = "$HOME/gpu-check.sh" ]
    mkdir -p "$HOME/.config/systemd/user/timers.target.wants"
    ln -s ../gpuboard-host.timer "$HOME/.config/systemd/user/timers.target.wants/gpuboard-host.timer"
    examine gpu1
    finds fail crontab 'starts /nowhere' # that unit is gone
    touch "$HOME/.config/systemd/user/gpuboard-host.timer"
    examine gpu1
    finds skip cron-daemon 'systemd starts the loops'
    finds pass crontab 'systemd starts the loops'
    finds fail linger 'loginctl enable-linger'
}

# bats test_tags=shell
@test "settings that are wrong cost what needs them, and nothing else" {
    printf 'GPUBOARD_SPOOL = /x\n' >"$TMP/gpuboard.conf"
    examine --conf "$TMP/gpuboard.conf" gpu1
    [ "$code" = 2 ]
    finds fail settings 'no spaces around ='
    finds pass driver ''
    for id in spool loops dest push; do finds skip "$id" 'not checked: see the check settings'; done
    printf 'CONSUL_HTTP_TOKEN=x\n' >"$TMP/gpuboard.conf"
    chmod 644 "$TMP/gpuboard.conf"
    examine --conf "$TMP/gpuboard.conf" gpu1
    finds warn settings 'contains a token.*chmod o-r'
    (unset HOME && GPUBOARD_CONF=$TMP/nothing && export GPUBOARD_CONF && examine gpu1 && finds fail settings 'the settings file .* cannot be read')
    run "$DOCTOR" --fast
    [ "$status" = 2 ]
    run "$DOCTOR" '../x'
    [ "$status" = 2 ]
}

@test "a destination that cannot work, loops that stopped, a push that fails, a clock that is off" {
    GPUBOARD_DEST=ftp://x examine gpu1
    finds fail dest 'ftp://x'
    start_loops
    "$CHECK" kill gpu1
    echo 'Permission denied' >"$SPOOL/push.failed"
    sed -i 's/ time=[0-9]* / time=1000000000 /' "$DATA/host.txt"
    examine gpu1
    finds fail loops 'loop problems: loop 1 is not running, loop 2 is not running, loop 3 is not running'
    finds skip push 'not checked: see the check loops'
    has_not "$TMP/found" 'of the web host'
    sed -i "s/ time=[0-9]* / time=$(($(date +%s) - 300)) /" "$DATA/host.txt"
    examine gpu1
    finds warn clock 'behind of the web host'
    GPUBOARD_DEST=$TMP/nothing examine gpu1
    finds fail folder 'does not exist'
    finds skip push 'not checked: see the check folder'
    touch "$TMP/file"
    GPUBOARD_SPOOL=$TMP/file examine gpu1
    finds fail spool 'is not a folder of this user'
}

# bats test_tags=shell
@test "a line of cron without a destination, whose output is thrown away, is explained" {
    unset GPUBOARD_DEST
    run sh -c "'$CHECK' gpu1 > /dev/null 2>&1"
    [ "$status" = 2 ]
    examine gpu1
    finds fail loops 'gpu-check.sh starts no loops: GPUBOARD_DEST is not set.*--dest DEST sets it'
    finds fail dest 'GPUBOARD_DEST is not set'
    run "$CHECK" status gpu1
    [ "$status" = 1 ]
    [[ $output == *'start        message: gpu-check.sh: GPUBOARD_DEST is not set'* ]]
    "$CHECK" gpu1 "$TMP/data"
    wait_until "$CHECK" status gpu1
    run "$CHECK" gpu1
    [ "$status" = 2 ] # loops that run go on
    examine gpu1
    finds pass loops ''
    "$CHECK" gpu1 "$TMP/data"
    [ ! -e "$SPOOL/check.failed" ]
}

@test "without cron, loops that run are a warning" {
    start_loops
    rm -r "$TMP/proc/7"
    examine gpu1
    finds warn cron-daemon 'no cron daemon is running: the loops run, but do not start again after a reboot'
    for id in cron-allowed crontab; do finds skip "$id" 'not checked: see the check cron-daemon'; done
    [ "$code" = 1 ]
}

@test "a push that fails is one failure" {
    start_loops
    exec 6>>"$SPOOL/run/push"
    flock 6 # a push of the loops that succeeds would remove the file
    echo 'Permission denied' >"$SPOOL/push.failed"
    examine gpu1
    finds fail push 'the last push failed: Permission denied'
    [ "$(grep -c fail "$TMP/found")" = 1 ]
}

# bats test_tags=root
@test "a disk that is full is no reason to find nothing wrong" {
    need_root
    mkdir "$TMP/full"
    code=0
    unshare -m sh -c 'mount -t tmpfs -o size=64k none "$1/full" && { head -c 60000 /dev/zero >"$1/full/x" || :; } && TMPDIR=$1/full exec "$2" gpu1' - "$TMP" "$DOCTOR" >"$TMP/told" || code=$?
    [ "$code" = 2 ]
    has "$TMP/told" 'pass  driver'
    unshare -m sh -c 'mount -t tmpfs -o size=64k none "$1/full" && mount --bind "$1/full" /dev/shm && { head -c 60000 /dev/zero >"$1/full/x" || :; } && TMPDIR=$1/full exec "$2" gpu1' - "$TMP" "$DOCTOR" >"$TMP/told" 2>&1 || code=$?
    [ "$code" = 2 ]
    has "$TMP/told" 'is the disk full?'
}

# bats test_tags=root
@test "hidepid hides other people's processes from all but root and its group" {
    need_root
    echo 'proc /proc proc rw,hidepid=invisible,gid=4 0 0' >"$TMP/proc/mounts"
    examine gpu1
    finds pass hidepid ''
    open_to_others
    for group in 4 65534; do
        code=0
        setpriv --reuid=65534 --regid=65534 --groups="$group" "$DOCTOR" gpu1 >"$TMP/told.$group" || code=$?
        [ "$code" = 2 ]
    done
    has "$TMP/told.4" 'pass  hidepid'
    has "$TMP/told.65534" 'warn  hidepid       /proc is mounted with hidepid=invisible'
    echo 'proc /proc proc rw,hidepid=ptraceable,gid=4 0 0' >"$TMP/proc/mounts"
    setpriv --reuid=65534 --regid=65534 --groups=4 "$DOCTOR" gpu1 >"$TMP/told" || :
    has "$TMP/told" 'warn  hidepid '
}

# amd TOOL...: this host has these tools of AMD.
amd() {
    mkdir -p "$SMI/amd"
    export ROCM_PATH=$TMP/rocm
    for tool in "$@"; do ln -s "$BATS_TEST_DIRNAME/../../site_builder/demo/stand-ins/amd/$tool" "$TMP/bin/$tool"; done
}

@test "a host of AMD is looked at by AMD's tool, and nobody complains of nvidia-smi" {
    amd amd-smi
    rm "$TMP/bin/nvidia-smi"
    command -v nvidia-smi && missing 'this machine has a real nvidia-smi'
    examine gpu1
    finds pass amd 'amd-smi reports 2 GPUs in 0'
    finds skip driver 'see the check amd'
    for id in gpus persistence; do finds skip "$id" 'nvidia-smi is not installed'; done
}

# bats test_tags=shell
@test "an AMD tool that fails, hangs or reports no GPU is a failure with advice" {
    amd amd-smi rocm-smi
    examine gpu1
    finds pass driver ''
    finds pass amd 'amd-smi reports 2 GPUs'
    echo 'no module' >"$SMI/amd/say"
    echo 1 >"$SMI/amd/rc"
    examine gpu1
    finds pass amd 'rocm-smi reports 2 GPUs'
    echo 'Driver not initialized (amdgpu not found in modules)' >"$SMI/amd/rocm-say"
    echo 2 >"$SMI/amd/rocm-rc"
    examine gpu1
    finds fail amd 'rocm-smi fails (exit 2): Driver not initialized.*amdgpu is not loaded'
    rm "$SMI"/amd/*
    echo 0 >"$SMI/amd/gpus"
    examine gpu1
    finds fail amd 'amd-smi reports no GPU'
    echo 60 >"$SMI/amd/sleep"
    GPUBOARD_LIMIT=1 examine gpu1
    finds fail amd 'amd-smi did not answer within 1 s'
    GPUBOARD_AMD=no examine gpu1
    finds skip amd ''
}
