#!/usr/bin/env bats
# The push over ssh, to a real sshd on loopback.
load helper

SFTP_SERVER=/usr/lib/openssh/sftp-server

setup() {
    helper_setup
    command -v sshd >/dev/null || [ -x /usr/sbin/sshd ] || missing 'sshd is not installed'
    export GPUBOARD_LIMIT=5
    S=$TMP/sshd
    mkdir -p "$S"
    ssh-keygen -q -t ed25519 -N '' -f "$S/host"
    ssh-keygen -q -t ed25519 -N '' -f "$S/user"
    cp "$S/user.pub" "$S/authorized"
    PORT=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
    cat >"$S/config" <<EOF
Port $PORT
ListenAddress 127.0.0.1
HostKey $S/host
AuthorizedKeysFile $S/authorized
PidFile $S/pid
StrictModes no
UsePAM no
PermitRootLogin yes
LogLevel VERBOSE
Subsystem sftp $SFTP_SERVER
EOF
    cat >"$S/client" <<EOF
Host web web2
  HostName 127.0.0.1
  Port $PORT
  User $(id -un)
  IdentityFile $S/user
  IdentitiesOnly yes
  UserKnownHostsFile $S/known
  GlobalKnownHostsFile none
EOF
    sed "s/^/[127.0.0.1]:$PORT /" "$S/host.pub" >"$S/known"
    export GPUBOARD_SSH_CONFIG=$S/client GPUBOARD_DEST=web:$TMP/data
    [ "$(id -u)" != 0 ] || mkdir -p /run/sshd
}

start_sshd() {
    "${IN[@]}" /usr/sbin/sshd -D -e -f "$S/config" 2>>"$S/log" &
    SSHD=$!
    STARTED="${STARTED:-} $SSHD"
    within 5 bash -c "exec 3<>/dev/tcp/127.0.0.1/$PORT" 2>/dev/null
}

# connections: the sshd processes that serve ours.
connections() { pgrep -P "$SSHD"; }
logins() { grep -c 'Accepted publickey' "$S/log"; }
logged_in() { [ "$(logins)" = "$1" ]; }
stop_sshd() {
    local pids
    pids="$SSHD $(connections) $(for pid in $(connections); do pgrep -P "$pid"; done)"
    kill -9 $pids 2>/dev/null || true
    wait "$SSHD" 2>/dev/null || true
}

teardown() {
    "$CHECK" kill >/dev/null 2>&1 || true
    [ -z "${SSHD:-}" ] || stop_sshd
}

arrived_since() { [ "$(sed -n '1s/.* time=\([0-9]*\) .*/\1/p' "$DATA/host.txt" 2>/dev/null || echo 0)" -gt "${1:-0}" ]; }
# next_arrival: waits for a snapshot that is taken after now.
next_arrival() { within 15 arrived_since "$(date +%s)"; }

@test "one snapshot arrives whole, with mode 0640" {
    start_sshd
    "$RUN_SH" once
    whole "$DATA/gpus.csv" gpus 0
    whole "$DATA/host.txt" host 0
    [ "$(stat -c %a "$DATA"/*.csv "$DATA"/*.txt | sort -u)" = 640 ]
    [ "$(find "$DATA" -type f | wc -l)" = 4 ]
}

@test "many pushes share one connection, and once rides on it" {
    start_sshd
    "$CHECK" gpu1
    for _ in 1 2 3; do next_arrival; done
    [ "$(logins)" = 1 ]
    "$RUN_SH" once
    [ "$(logins)" = 1 ]
    "$CHECK" status gpu1
}

@test "the far side never has half a file" {
    start_sshd
    "$CHECK" gpu1
    within 15 test -e "$DATA/gpus.csv" -a -e "$DATA/host.txt"
    for _ in $(seq 300); do
        for file in gpus.csv host.txt; do [ "$(tail -n 1 "$DATA/$file")" = '# end' ]; done
    done
}

@test "a host whose key is not known gets nothing, and the reason is told" {
    : >"$S/known"
    start_sshd
    run "$RUN_SH" once
    [ "$status" = 1 ]
    [[ $output == *'is not known here: log in there once by hand, or add it to known_hosts'* ]]
    "$CHECK" gpu1
    within 10 grep -qs 'not known here' "$SPOOL/push.failed"
    [ ! -e "$DATA" ]
}

@test "a host whose key has changed gets nothing" {
    ssh-keygen -q -t ed25519 -N '' -f "$S/other"
    sed "s/^/[127.0.0.1]:$PORT /" "$S/other.pub" >"$S/known"
    start_sshd
    run "$RUN_SH" once
    [ "$status" = 1 ]
    [ ! -e "$DATA" ]
}

@test "a refused key is told as that" {
    : >"$S/authorized"
    start_sshd
    run "$RUN_SH" once
    [ "$status" = 1 ]
    [[ $output == *'Permission denied'* ]]
}

@test "a data folder that is not there is told as that, and pushes work once it is" {
    rmdir "$TMP/data"
    start_sshd
    "$CHECK" gpu1
    within 15 grep -qsi 'no such file' "$SPOOL/push.failed"
    mkdir "$TMP/data"
    within 15 test -e "$DATA/host.txt"
    within 10 "$CHECK" status gpu1
}

@test "a connection that is cut comes back by itself" {
    start_sshd
    "$CHECK" gpu1
    next_arrival
    # shellcheck disable=SC2046 # one word a pid
    kill -9 $(connections)
    within 15 logged_in 2 # what was under way may still have arrived
    next_arrival
    logged_in 2
}

@test "a session that is killed on our side comes back by itself" {
    start_sshd
    "$CHECK" gpu1
    next_arrival
    kill -9 $(pgrep -f "^sftp .*$S/client")
    next_arrival
}

@test "pipes that were removed do not pass for an arrival" {
    start_sshd
    "$CHECK" gpu1
    next_arrival
    rm "$SPOOL/run/in" "$SPOOL/run/ack"
    within 15 test -p "$SPOOL/run/in"
    next_arrival
    one() { [ "$(pgrep -cf "^sftp .*$S/client")" = 1 ]; }
    within 5 one
}

@test "a spool that is removed leaves no second session" {
    start_sshd
    "$CHECK" gpu1
    next_arrival
    rm -rf "$TMP/spool"
    within 10 "$CHECK" gpu1
    next_arrival
    one() { [ "$(pgrep -cf "^sftp .*$S/client")" = 1 ]; }
    within 5 one
}

@test "a web host that is away for ten ticks gets the newest snapshot when it is back" {
    start_sshd
    "$CHECK" gpu1
    next_arrival
    stop_sshd
    within 10 test -s "$SPOOL/push.failed"
    before=$(cut -d' ' -f2 "$SPOOL/run/1")
    ticked() { [ "$(cut -d' ' -f2 "$SPOOL/run/1")" -ge $((before + 10)) ]; }
    within 30 ticked
    run "$CHECK" status gpu1
    [ "$status" = 1 ]
    [[ $output == *'push         fails: '*'Connection refused'* ]]
    start_sshd
    next_arrival
    within 10 "$CHECK" status gpu1
    [ "$(find "$SPOOL" -type f | wc -l)" -lt 40 ]
}

@test "a slow login shell on the far side slows the first push alone" {
    need_root
    printf '#!/bin/sh\nsleep 2\nexec /bin/sh "$@"\n' >"$S/slow-shell"
    chmod +x "$S/slow-shell"
    sed "s|^\(root:.*:\)[^:]*\$|\1$S/slow-shell|" /etc/passwd >"$S/passwd"
    # exec, so that the pid is sshd's own
    IN=(unshare -m sh -c "mount --bind $S/passwd /etc/passwd && exec \"\$@\"" -)
    start_sshd
    "$CHECK" gpu1
    next_arrival
    push_ms() {
        local began
        began=$(date +%s%N)
        "$RUN_SH" push
        echo $((($(date +%s%N) - began) / 1000000))
    }
    "$CHECK" kill
    GPUBOARD_PS_EVERY=100 "$CHECK" gpu1 # task 3 ticks once and opens the session; then the pushes are ours
    within 10 test -s "$SPOOL/run/session"
    sleep 3
    "$RUN_SH" tick 3
    sleep 1
    "$RUN_SH" tick 1
    [ "$(push_ms)" -lt 1000 ]
    has "$DATA/gpus.csv" "$(head -n 1 "$SPOOL/gpus.csv")"
}

@test "a far side that hangs delays no loop, and kill leaves nothing" {
    start_sshd
    "$CHECK" gpu1
    next_arrival
    stopped=$(for pid in $(connections); do echo "$pid" && pgrep -P "$pid"; done)
    kill -STOP $stopped
    within 20 grep -qs 'no answer within 5 s' "$SPOOL/push.failed"
    before=$(cut -d' ' -f2 "$SPOOL/run/3")
    ticked() { [ "$(cut -d' ' -f2 "$SPOOL/run/3")" -ge $((before + 2)) ]; }
    within 8 ticked
    "$CHECK" kill
    [ -z "$(ours)" ]
    [ ! -e "$SPOOL/run/in" ]
}

@test "an account that may use nothing but sftp is enough" {
    sed -i "s|^Subsystem.*|Subsystem sftp internal-sftp\nForceCommand internal-sftp|" "$S/config"
    start_sshd
    "$RUN_SH" once
    whole "$DATA/gpus.csv" gpus 0
    "$CHECK" gpu1
    next_arrival
}

@test "a path with spaces and quotes arrives where it says" {
    mkdir "$TMP/my \"data\""
    start_sshd
    GPUBOARD_DEST="web:$TMP/my \"data\"" "$RUN_SH" once
    whole "$TMP/my \"data\"/gpu1/gpus.csv" gpus 0
}

@test "a change of the target opens a session to the new one" {
    start_sshd
    printf 'GPUBOARD_DEST=web:%s\n' "$TMP/data" >"$TMP/my.conf"
    mkdir "$TMP/data2"
    env -u GPUBOARD_DEST "$CHECK" --conf "$TMP/my.conf" gpu1
    next_arrival
    printf 'GPUBOARD_DEST=web2:%s\n' "$TMP/data2" >"$TMP/my.conf"
    within 15 test -e "$TMP/data2/gpu1/host.txt"
    [ "$(cat "$SPOOL/run/session")" = web2 ]
}
