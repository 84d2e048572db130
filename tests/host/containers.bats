#!/usr/bin/env bats
# Containers in ps.txt: their image and pod, and the person behind what root runs in them.
load helper
load processes
load containers

setup() { container_setup; }

# concluded_from_cgroups: container and person of root's process in each cgroup of tests/samples/cgroup.
concluded_from_cgroups() {
    local file pid=100
    for file in "$SAMPLES"/cgroup/*; do
        pid=$((pid + 1))
        fake "$pid" 1 "$pid" <<<python
        cp "$file" "$TMP/proc/$pid/cgroup"
    done
    gpu_process $(seq 101 "$pid")
    take
    pid=100
    for file in "$SAMPLES"/cgroup/*; do
        pid=$((pid + 1))
        echo "$(basename "$file" .txt) $(column container "$pid") $(column person "$pid")"
    done
}

@test "containers, jobs and the person of a session are read from the cgroup" {
    concluded_from_cgroups | LC_ALL=C sort >"$TMP/concluded"
    [ -z "${GPUBOARD_UPDATE_GOLDEN:-}" ] || cp "$TMP/concluded" "$GOLDEN/cgroup.txt"
    diff "$GOLDEN/cgroup.txt" "$TMP/concluded"
}

# bats test_tags=quick,shell
@test "docker tells image and person of a container that root runs" {
    engine docker
    tells 'gpuboard.user "alice"'
    is_in docker 100
    gpu_process 100
    take
    [ "$(column container 100)" = docker:0123456789ab ]
    [ "$(column image 100)" = pytorch/pytorch:2.4.0 ]
    [ "$(column person 100)" = alice ]
    [ "$(column pod 100)" = - ]
    [ "$(column user 100)" = root ]
    [ "$(column command 100)" = python ]
}

@test "who is behind a process is told of root's and of those without a name, of no other" {
    engine docker
    tells 'gpuboard.user "alice"'
    is_in docker 100 1002
    is_in docker 101 4242
    gpu_process 100 101
    take
    [ "$(column user 100) $(column person 100) $(column image 100)" = 'Bob - pytorch/pytorch:2.4.0' ]
    [ "$(column user 101) $(column person 101)" = '4242 alice' ]
}

@test "all containers are asked for in one call, and each but once" {
    engine docker
    tells
    sed "s/$ID/$OTHER/; s/pytorch/vllm/g" "$TMP/engine/${ID:0:12}" >"$TMP/engine/${OTHER:0:12}"
    is_in docker 100
    is_in other 101
    gpu_process 100 101
    take
    [ "$(column image 100) $(column image 101)" = 'pytorch/pytorch:2.4.0 vllm/vllm:2.4.0' ]
    rm "$SPOOL/minute.time"
    is_in docker 102
    gpu_process 100 101 102
    take
    [ "$(column image 102)" = pytorch/pytorch:2.4.0 ]
    [ "$(grep -c inspect "$SMI/docker")" = 1 ]
}

# claims: each line of stdin is who is behind it, |, and what the engine tells; lines there are separated by ;.
claims() {
    local pid=100 told
    engine docker
    cat >"$TMP/claims"
    while IFS='|' read -r _ told; do
        pid=$((pid + 1))
        ID=$(printf '%012d%052d' "$pid" 0)
        printf '%s' "$told" | tr ';' '\n' >"$TMP/lines"
        mapfile -t lines <"$TMP/lines"
        tells "${lines[@]}"
        is_in docker "$pid"
    done <"$TMP/claims"
    gpu_process $(seq 101 "$pid")
    take
    pid=100
    while IFS='|' read -r _ told; do
        pid=$((pid + 1))
        echo "$(column person "$pid")|$told"
    done <"$TMP/claims" | diff "$TMP/claims" -
}

@test "a person is who a label or a variable names to say so, then any other name that is a login here" {
    claims <<'EOF'
-|
zoe|gpuboard.user "zoe";user "alice";mount "/home/bob"
zoe|variable "GPUBOARD_USER=zoe";variable "JUPYTERHUB_USER=alice"
zoe|variable "JUPYTERHUB_USER=zoe";variable "NB_USER=alice"
zoe|hub.jupyter.org/username "zoe";user "alice"
-|user "zoe"
alice|user "alice";owner "bob";variable "USER=Bob"
alice|owner "alice"
Bob|owner "BOB"
alice|variable "NB_USER=alice";variable "USER=Bob"
-|variable "NB_USER=jovyan";variable "USER=root";variable "LOGNAME=ubuntu"
Bob|variable "NB_USER=jovyan";variable "LOGNAME=bob"
-|variable "USER=daemon"
alice|mount "/home/alice/project"
alice|mount "/nfs/home/lab/alice"
alice|mount "/data/users/alice"
alice|com.docker.compose.project.working_dir "/home/alice/compose"
alice|devcontainer.local_folder "/home/alice/work"
-|mount "/home/alice";mount "/home/bob/x"
-|mount "/home"
-|mount "/srv/alice"
-|mount "/home/nobody-here/x"
DOM\carol|gpuboard.user "DOM\\carol"
DOM\carol|user "dom\\Carol"
EOF
}

# bats test_tags=shell
@test "a name that is none harms nothing" {
    claims <<'EOF'
-|gpuboard.user "root"
-|gpuboard.user ""
-|gpuboard.user "al\tice"
-|gpuboard.user "al ice"
-|gpuboard.user "<script>"
-|gpuboard.user "1001"
-|gpuboard.user "-x"
-|gpuboard.user "x\ny"
-|gpuboard.user "$(touch hacked)"
-|user "--help"
-|user "*"
-|gpuboard.user alice
-|gpuboard.user
-|gpuboard.user "alice
-|variable "GPUBOARD_USER"
-|variable "GPUBOARD_USER="
-|gpuboard.user "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"
jürgen|gpuboard.user "jürgen"
EOF
    [ ! -e "$TMP/hacked" ]
    has_not "$SMI/getent" ' --help'
}

@test "images are told as people call them, and nothing that is no image" {
    engine docker
    local pid=100
    cat >"$TMP/images" <<EOF
python:3.12|docker.io/library/python:3.12
registry.lab:5000/alice/train:v1|registry.lab:5000/alice/train:v1
sha256:0123456789ab|sha256:$ID
train@sha256:0123456789ab|train@sha256:$ID
-|
-|a b
-|<b>
EOF
    while IFS='|' read -r _ told; do
        pid=$((pid + 1))
        ID=$(printf '%012d%052d' "$pid" 0)
        printf 'id %s\nimage "%s"\n' "$ID" "$told" >"$TMP/engine/${ID:0:12}"
        is_in docker "$pid"
    done <"$TMP/images"
    gpu_process $(seq 101 "$pid")
    take
    pid=100
    while IFS='|' read -r _ told; do
        pid=$((pid + 1))
        echo "$(column image "$pid")|$told"
    done <"$TMP/images" | diff "$TMP/images" -
}

@test "a pod is told by its name" {
    engine docker
    tells 'io.kubernetes.pod.name "train-0"' 'io.kubernetes.pod.namespace "ml"'
    is_in pod 100
    gpu_process 100
    take
    [ "$(column container 100)" = kubernetes:11111111-2222-3333-4444-555555555555/0123456789ab ]
    [ "$(column pod 100)" = ml/train-0 ]
}

@test "nerdctl is asked for containers of containerd, and for pods that docker does not know" {
    engine docker
    engine nerdctl
    is_in pod 100
    is_in nerdctl 101
    gpu_process 100 101
    take
    [ "$(column image 100)" = - ]
    grep -q '^container inspect' "$SMI/nerdctl"
    grep -q '^--namespace k8s.io container inspect' "$SMI/nerdctl"
    tells
    forget
    take
    [ "$(column image 100) $(column image 101)" = 'pytorch/pytorch:2.4.0 pytorch/pytorch:2.4.0' ]
}

# bats test_tags=root
@test "podman is asked for what it can tell this user, and else never started" {
    need_root
    engine podman
    tells
    is_in podman 100 1001
    gpu_process 100
    open_to_others
    for uid in 1002 1001; do
        [ ! -e "$SMI/podman" ]
        forget
        for task in 2 3; do setpriv --reuid="$uid" --regid="$uid" --clear-groups "$RUN_SH" tick "$task"; done
    done
    [ "$(column image 100)" = pytorch/pytorch:2.4.0 ]
    rm "$SMI/podman"
    forget
    is_in rootful 100
    take # as root
    [ "$(column image 100)" = pytorch/pytorch:2.4.0 ]
}

# bats test_tags=shell
@test "an engine that refuses is left alone for a while, and costs nothing else" {
    is_in docker 100
    gpu_process 100
    for _ in 1 2 3; do
        rm -f "$SPOOL/minute.time"
        take
    done
    [ "$(grep -c inspect "$SMI/docker")" = 1 ]
    [ "$(column container 100) $(column image 100) $(column person 100)" = 'docker:0123456789ab - -' ]
    has_not "$SPOOL/ps.txt" '# err'
    sed -i 's/^REFUSED_FOR=900$/REFUSED_FOR=9/' "$TMP/scripts/lib/containers.sh" # this machine may have been started just now
    read -r up _ </proc/uptime
    echo "$((${up%.*} - 9))" >"$SPOOL/refused.docker"
    rm -f "$SPOOL/minute.time"
    engine docker
    tells
    take
    [ "$(column image 100)" = pytorch/pytorch:2.4.0 ]
}

@test "an engine that hangs costs a moment, is told, and left alone" {
    printf '#!/bin/sh\necho "$@" >>"$SMI/docker"\nsleep 60\n' >"$TMP/bin/docker"
    export GPUBOARD_LIMIT=1
    is_in docker 100
    gpu_process 100
    take
    [ "$(column command 100) $(column container 100)" = 'python docker:0123456789ab' ]
    has "$SPOOL/ps.txt" '# err docker did not answer within 1 s and was stopped'
    rm "$SPOOL/minute.time"
    take
    [ "$(grep -c inspect "$SMI/docker")" = 1 ]
}

@test "an engine that talks nonsense is one that refuses" {
    printf '#!/bin/sh\necho "$@" >>"$SMI/docker"\nhead -c 20000000 /dev/urandom\necho "[{\\"Id\\": \\"%s\\"}]"\n' "$ID" >"$TMP/bin/docker"
    is_in docker 100
    gpu_process 100
    take
    [ "$(column image 100) $(column person 100)" = '- -' ]
    [ "$(column command 100)" = python ]
    [ -e "$SPOOL/refused.docker" ]
}

@test "what is told of another container than was asked for does not count" {
    engine docker
    printf 'id %s\nimage "evil"\ngpuboard.user "alice"\n' "$OTHER" >"$TMP/engine/${ID:0:12}"
    is_in docker 100
    gpu_process 100
    take
    [ "$(column image 100) $(column person 100)" = '- -' ]
}

@test "of an environment nothing is kept but names of people" {
    engine docker
    tells 'variable "GPUBOARD_USER=alice"' 'variable "SECRET=hunter2"' 'mount "/home/alice/secret-project"'
    is_in docker 100
    gpu_process 100
    take
    [ "$(column person 100)" = alice ]
    [ -z "$(grep -rl 'hunter2\|secret-project' "$SPOOL")" ]
}

@test "the real docker makes of our template what we read" {
    local real
    real=$(PATH=${PATH#"$TMP/bin:"} command -v docker) || missing 'docker is not installed'
    python3 "$BATS_TEST_DIRNAME/docker_stand_in.py" "$TMP/docker.sock" &
    local daemon=$!
    wait_until test -S "$TMP/docker.sock"
    ln -sf "$real" "$TMP/bin/docker"
    export DOCKER_HOST=unix://$TMP/docker.sock
    is_in docker 100
    is_in other 101
    gpu_process 100 101
    take
    [ "$(column image 100) $(column person 100) $(column pod 100)" = 'pytorch/pytorch:2.4.0 alice ml/train-0' ]
    [ "$(column image 101)" = - ]
    [ ! -e "$SPOOL/refused.docker" ]
    has_not "$SPOOL/containers" hunter2
    kill "$daemon" # then none answers
    wait "$daemon" || true
    forget
    take
    [ -e "$SPOOL/refused.docker" ]
}

@test "every awk tells the same of containers and people" {
    engine docker
    tells 'user "dom\\carol"' 'io.kubernetes.pod.name "train-0"' 'variable "USER=Bob"'
    is_in docker 100
    is_in session 101
    printf 'APPTAINER_NAME=torch.sif\0' >"$TMP/proc/101/environ"
    gpu_process 100 101
    mkdir "$TMP/awk"
    export PATH=$TMP/awk:$PATH
    for awk in mawk gawk original-awk busybox; do
        ln -sf "$(command -v "$awk" || missing "$awk is not installed")" "$TMP/awk/awk"
        forget
        take
        sed 1d "$SPOOL/ps.txt" >"$TMP/ps.$awk"
        diff "$TMP/ps.mawk" "$TMP/ps.$awk"
    done
    [ "$(column person 100) $(column pod 100) $(column image 101)" = 'DOM\carol train-0 torch.sif' ]
    [ "$(column person 101)" = alice ]
}
