#!/usr/bin/env bats
# ps.txt: the people and commands behind the GPU processes.
load helper
load processes

# bats test_tags=quick,shell
@test "a real GPU process is told with its parents and children, user, age, memory and full command" {
    cat >"$TMP/train.sh" <<<'sh -c "sleep 300 & sleep 300; :" & wait'
    bash "$TMP/train.sh" --name 'zwei Wörter' 'größe=日本' &
    local pid=$!
    wait_until pgrep -P "$pid" >/dev/null
    child=$(pgrep -P "$pid")
    wait_until pgrep -P "$child" >/dev/null
    set -- "$pid" "$child" $(pgrep -P "$child")
    gpu_process "$1"
    is_a_second_old() { [ "$(ps -o etimes= -p "$pid")" -ge 1 ]; }
    wait_until is_a_second_old
    take
    [ "$(column command "$1")" = "bash $TMP/train.sh --name zwei Wörter größe=日本" ]
    [ "$(column user "$1")" = "$(id -un)" ]
    [ "$(column uid "$1")" = "$(id -u)" ]
    [ "$(column ppid "$1")" = "$(ps -o ppid= -p "$1" | tr -d ' ')" ]
    [ "$(column gpu_pid "$2")" = "$1" ]
    [ "$(column gpu_pid "$3")" = "$1" ]
    [ "$(column gpu_pid "$(column ppid "$1")")" = - ] # the parent: shown, but not on the GPU
    [ "$(column elapsed "$1")" -ge 1 ]
    [ "$(column elapsed "$1")" -le 60 ]
    [ "$(column rss "$1")" -gt 100 ]
    [ "$(column state "$1")" = S ]
}

@test "parents are told up to init, and not init itself" {
    fake 1 0 1 <<<init
    fake 1143 1 1143 <<<sshd
    fake 200 1143 200 <<<bash
    fake 100 200 100 <<<python
    gpu_process 100
    take
    [ "$(column gpu_pid 1143)" = - ]
    [ "$(column command 200)" = bash ]
    [ -z "$(column pid 1)" ]
}

@test "commands are read again once a minute, those of new processes at once" {
    fake 100 1 100 S 50 <<<'title one'
    gpu_process 100
    take
    fake 100 1 100 S 60 <<<'title two'
    fake 101 100 100 S 5 <<<worker
    take
    [ "$(column command 100)" = 'title one' ]
    [ "$(column command 101)" = worker ]
    rm "$SPOOL/minute.time"
    take
    [ "$(column command 100)" = 'title two' ]
}

@test "processes that have nothing to do with a GPU are not told" {
    fake 100 1 100 <<<python
    fake 200 1 200 <<<secret-game
    fake 1 0 1 <<<init
    gpu_process 100
    take
    [ "$(column command 100)" = python ]
    has_not "$SPOOL/ps.txt" secret-game
    has_not "$SPOOL/ps.txt" init
}

@test "with no process on any GPU there is a header and nothing else" {
    take
    [ "$(wc -l <"$SPOOL/ps.txt")" = 3 ]
}

@test "CPU, memory and age are in the units that the header names" {
    fake 100 1 100 S 60 <<<python
    gpu_process 100
    take
    has "$SPOOL/ps.txt" $'elapsed [s]\tcpu [%]\trss [KiB]'
    [ "$(column elapsed 100)" = 60 ]
    [ "$(column cpu 100)" = 5.0 ] # 3 s of CPU in 60 s
    [ "$(column rss 100)" = 2048 ]
}

@test "a process name with parentheses, spaces and newlines harms no row" {
    COMM=$'a) S 7\n1 (b' fake 100 50 100 </dev/null
    fake 50 1 50 <<<bash
    gpu_process 100
    take
    [ "$(column ppid 100)" = 50 ]
    [ "$(column command 100)" = '[a) S 7 1 (b]' ]
}

# bats test_tags=shell
@test "tabs, newlines and terminal escapes in a command stay within their cell" {
    printf 'py\tthon\0a\nb\0\033[31mred\0' | fake 100 1 100
    gpu_process 100
    take
    [ "$(column command 100)" = 'py?thon a b ?[31mred' ]
    [ "$(column user 100)" = root ]
}

@test "a title that a process gave itself loses the empty words behind it" {
    printf 'VLLM::EngineCore\0\0\0\0\0' | fake 100 1 100
    gpu_process 100
    take
    [ "$(column command 100)" = VLLM::EngineCore ]
}

@test "a command is cut at 4,096 bytes, an argument at 2,000, and that takes no time" {
    head -c 15000 /dev/zero | tr '\0' x | fake 100 1 100
    yes | head -n 6000 | tr '\n' '\0' | fake 101 1 101
    gpu_process 100 101
    began=$SECONDS
    take
    [ $((SECONDS - began)) -le 30 ]
    [ "$(column command 100 | wc -c)" = 2004 ] # with the mark … and the newline
    [ "$(column command 101 | wc -c)" = 4100 ]
}

@test "the name that nvidia-smi tells of a process ends before anything that could be secret" {
    cat >"$SMI/apps" <<'EOF'
GPU-1, 1, 512, python train.py --api-key hunter2, --x=1
GPU-1, 2, 512, client TOKEN=x y
GPU-1, 3, 512, client bob:secret@host
GPU-1, 4, 512, run 0123456789abcdef0123456789abcdef
GPU-1, 5, 512, VLLM::EngineCore
GPU-1, 6, 512, /opt/my tools/run, really
GPU-1, [Insufficient Permissions], [N/A], [Not Found]
GPU-1, 7, 512, [celeryd: w1] -active- (-A run.worker)
GPU-1, 8, 512, TOKEN=secret python
GPU-1, 9, 512, sk-abcdefghijkl
GPU-1, 10, 512, -bash
GPU-1, 11, 512, Isaac  Sim 4 cafe
GPU-1, 12, 512, notify https://hooks.slack.com/services/T0/B0/abc
GPU-1, 13, 512, bot 1234567890:AAF0abcdef
GPU-1, 14, 512, rdp /p:hunter2
GPU-1, 15, 512, ray::train.step:3
EOF
    "$RUN_SH" once
    sed -e 1,2d -e '$d' "$DATA/processes.csv" | cut -d, -f4- >"$TMP/names"
    diff "$TMP/names" - <<'EOF'
 python train.py •••
 client •••
 client •••
 run •••
 VLLM::EngineCore
 /opt/my tools/run, really
 [Not Found]
 [celeryd: w1] •••
 •••
 •••
 -bash
 Isaac  Sim 4 cafe
 notify •••
 bot •••
 rdp •••
 ray::train.step:3
EOF
}

# bats test_tags=root
@test "a process that the kernel does not let go of costs the commands alone" {
    need_root
    install -m 4755 "$(command -v setpriv)" "$TMP/bin/as-root"
    printf '#!/bin/sh\necho $$ >"$SMI/stuck"\nexec as-root --reuid=0 --clear-groups sleep 60\n' >"$TMP/bin/grep"
    chmod +x "$TMP/bin/grep"
    fake 100 1 100 <<<python
    gpu_process 100
    open_to_others
    began=$SECONDS
    for task in 2 3; do GPUBOARD_LIMIT=1 setpriv --reuid=65534 --regid=65534 --clear-groups "$RUN_SH" tick "$task"; done
    kill -0 "$(cat "$SMI/stuck")"
    [ $((SECONDS - began)) -le 40 ] # it would end after 60 s
    rm "$TMP/bin/grep"
    [ "$(column command 100)" = '[python]' ]
    whole "$SPOOL/host.txt" host 0
}

@test "a dead GPU process keeps its children by their process group" {
    fake 100 1 100 Z </dev/null
    fake 101 1 100 <<<worker
    gpu_process 100
    take
    [ "$(column state 100)" = Z ]
    [ "$(column gpu_pid 101)" = 100 ]
}

@test "a dead GPU process keeps the children that an earlier snapshot knew, until their pids mean others" {
    fake 100 50 50 <<<python
    fake 101 100 50 S 90 <<<worker
    fake 50 1 50 <<<bash
    gpu_process 100
    take
    rm -r "$TMP/proc/100" "$TMP/proc/50"
    fake 101 1 50 S 100 <<<worker
    take
    [ "$(column gpu_pid 101)" = 100 ]
    [ -z "$(column pid 100)" ]
    take
    [ "$(column gpu_pid 101)" = 100 ]
    fake 101 1 101 S 3 <<<'another'
    take
    [ -z "$(column pid 101)" ]
}

@test "children that share the group of a living GPU process are not taken for orphans" {
    fake 50 1 50 <<<bash
    fake 100 50 50 <<<python
    fake 60 50 50 <<<'other job'
    gpu_process 100
    take
    [ -z "$(column pid 60)" ]
}

@test "a thousand processes at most are told, and that there are more" {
    fake 100 1 100 <<<python
    mkdir $(seq -f "$TMP/proc/%.0f" 1001 2005)
    awk -v proc="$TMP/proc" '{for (pid = 1001; pid <= 2005; pid++) {$1 = pid; $4 = 100; file = proc "/" pid "/stat"; print >file; close(file)}}' "$TMP/proc/100/stat"
    gpu_process 100
    take
    [ "$(grep -c '^[0-9]' "$SPOOL/ps.txt")" = 1000 ]
    has "$SPOOL/ps.txt" '# err 6 more processes belong to GPU processes and are not told'
}

# bats test_tags=root
@test "a user without a name is a number, and a long name stays whole" {
    need_root
    local long=a-very-long-login-name-of-somebody@the.realm.example.org
    fake 100 1 100 S 10 3000000000 <<<python
    fake 101 100 100 S 10 4242 <<<python
    gpu_process 100
    cp /etc/passwd "$TMP/passwd"
    echo "$long:x:4242:4242::/:/bin/sh" >>"$TMP/passwd"
    unshare -m sh -c "mount --bind $TMP/passwd /etc/passwd && $RUN_SH tick 2 && $RUN_SH tick 3"
    [ "$(column user 100)" = 3000000000 ]
    [ "$(column user 101)" = "$long" ]
}

# fake_masked: a process for each line of masks.txt.
fake_masked() {
    local pid=100
    while IFS= read -r given && IFS= read -r wanted; do
        pid=$((pid + 1))
        printf '%b' "${given//%/\\x}" | tr '|' '\0' | fake "$pid" 1 "$pid"
        printf '%s\n' "$wanted" >>"$TMP/wanted"
    done < <(sed 1d "$BATS_TEST_DIRNAME/masks.txt")
    gpu_process $(seq 101 "$pid")
}

@test "every awk tells the same of processes, containers and the host" {
    printf 'client\0--password\0a b\0sk-abcdefghij\0' | fake 100 1 100
    fake 101 100 100 <<<worker
    printf '0::/system.slice/docker-%s.scope\n' "$(printf %064d 0)" >"$TMP/proc/100/cgroup"
    gpu_process 100
    mkdir "$TMP/awk"
    export PATH=$TMP/awk:$PATH
    for awk in mawk gawk original-awk busybox; do
        ln -sf "$(command -v "$awk" || missing "$awk is not installed")" "$TMP/awk/awk"
        remove_spool
        "$RUN_SH" tick 1
        take
        sed 1d "$SPOOL/ps.txt" >"$TMP/ps.$awk"
        sed 1d "$SPOOL/gpus.csv" >"$TMP/gpus.$awk"
        grep -E '^(cpus|memory_total|kernel|driver|zone|disk|interface)=' "$SPOOL/host.txt" | sed 's/^\(disk=[0-9]*\) [0-9]*/\1/' >"$TMP/host.$awk"
        diff "$TMP/ps.mawk" "$TMP/ps.$awk"
        diff "$TMP/gpus.mawk" "$TMP/gpus.$awk"
        diff "$TMP/host.mawk" "$TMP/host.$awk"
    done
    [ "$(column command 100)" = 'client --password ••• sk-•••' ]
    [ "$(column container 100)" = docker:000000000000 ]
    [ "$(column gpu_pid 101)" = 100 ]
}

@test "passwords, tokens and keys are masked, and nothing else, under every awk" {
    fake_masked
    mkdir "$TMP/awk"
    export PATH=$TMP/awk:$PATH
    for awk in mawk gawk original-awk busybox; do
        ln -sf "$(command -v "$awk" || missing "$awk is not installed")" "$TMP/awk/awk"
        rm -f "$SPOOL/ps.txt" # else what the first awk wrote stays for a minute
        take
        awk -F '\t' '$1 ~ /^[0-9]+$/ {print $15}' "$SPOOL/ps.txt" | diff - "$TMP/wanted"
    done
}

# bats test_tags=shell
@test "a /proc that hangs costs the commands alone, and that is said" {
    fake 100 1 100 </dev/null
    rm "$TMP/proc/100/cmdline"
    mkfifo "$TMP/proc/100/cmdline" # reading it never ends
    gpu_process 100
    GPUBOARD_LIMIT=1 take
    [ "$(column command 100)" = '[python]' ]
    has "$SPOOL/ps.txt" '# err reading-commands did not answer within 1 s and was stopped'
}

@test "names of users that cannot be had in time leave the numbers" {
    printf '#!/bin/sh\nsleep 60\n' >"$TMP/bin/getent"
    chmod +x "$TMP/bin/getent"
    fake 100 1 100 S 10 4242 <<<python
    gpu_process 100
    GPUBOARD_LIMIT=1 take
    [ "$(column user 100)" = 4242 ]
    has "$SPOOL/ps.txt" '# err getent did not answer'
}
