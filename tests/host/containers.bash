# Processes in containers and sessions, the engines that tell of them, and the people of the host.
# shellcheck disable=SC2016,SC2154 # what stand-ins expand; TMP and the like are set by helper.bash

ID=0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef
OTHER=fedcba9876543210fedcba9876543210fedcba9876543210fedcba9876543210

# container_setup: a host with root, alice, Bob and DOM\carol, on which no engine answers yet.
container_setup() {
    helper_setup
    mkdir "$TMP/engine"
    cat >"$TMP/passwd" <<'EOF'
root:x:0:0:root:/root:/bin/sh
daemon:x:1:1::/:/bin/false
alice:x:1001:1001::/home/alice:/bin/sh
Bob:x:1002:1002::/home/bob:/bin/sh
DOM\carol:x:1003:1003::/home/carol:/bin/sh
EOF
    cat >"$TMP/bin/getent" <<'EOF'
#!/bin/sh
echo "$@" >>"$SMI/getent"
shift
for key in "$@"; do KEY=$key awk -F : 'tolower($1) == tolower(ENVIRON["KEY"]) || $3 == ENVIRON["KEY"]' "$SMI/../passwd"; done
EOF
    chmod +x "$TMP/bin/getent"
    no_engine docker podman nerdctl
}

# no_engine NAME...: as on a machine that has none; a real one here must not be asked.
no_engine() {
    local name
    for name in "$@"; do
        printf '#!/bin/sh\necho "$@" >>"$SMI/%s"\necho "Cannot connect" >&2\nexit 1\n' "$name" >"$TMP/bin/$name"
        chmod +x "$TMP/bin/$name"
    done
}

# engine NAME: one that answers from the files engine/ID, what the template makes of a container; of another id it says what docker says.
engine() {
    cat >"$TMP/bin/$1" <<'EOF'
#!/bin/sh
echo "$@" >>"$SMI/${0##*/}"
while [ "$1" != --format ]; do shift; done
shift 2
code=0
for id in "$@"; do
    cat "$SMI/../engine/$id" 2>/dev/null && echo || { code=1; echo "Error response from daemon: No such container: $id" >&2; }
done
exit $code
EOF
    chmod +x "$TMP/bin/$1"
}

# is_in KIND PID [UID]: root's process, or another's, in a container of this kind.
is_in() {
    fake "$2" 1 "$2" S 100 "${3:-0}" <<<python
    case $1 in
        docker) echo "0::/system.slice/docker-$ID.scope" ;;
        other) echo "0::/system.slice/docker-$OTHER.scope" ;;
        podman) echo "0::/user.slice/user-1001.slice/user@1001.service/user.slice/libpod-$ID.scope/container" ;;
        rootful) echo "0::/machine.slice/libpod-$ID.scope/container" ;;
        nerdctl) echo "0::/system.slice/nerdctl-$ID.scope" ;;
        pod) echo "0::/kubepods.slice/kubepods-pod11111111_2222_3333_4444_555555555555.slice/cri-containerd-$ID.scope" ;;
        session) echo '0::/user.slice/user-1001.slice/session-3.scope' ;;
        service) echo '0::/system.slice/jupyterhub.service' ;;
    esac >"$TMP/proc/$2/cgroup"
}

# tells LINE...: what the engine tells of the container, beside id and image.
tells() {
    printf 'id %s\nimage "pytorch/pytorch:2.4.0"\n' "$ID" >"$TMP/engine/${ID:0:12}"
    [ $# = 0 ] || printf '%s\n' "$@" >>"$TMP/engine/${ID:0:12}"
}

# forget: as if nothing were known yet.
forget() { remove_spool; }
