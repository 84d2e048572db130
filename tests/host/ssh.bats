#!/usr/bin/env bats
# The push over ssh, to a real sshd on loopback.
load helper
load sshd

setup() {
    setup_sshd
    export GPUBOARD_DEST=web:$TMP/data
}

# bats test_tags=quick,shell
@test "one snapshot arrives whole, with mode 0640" {
    start_sshd
    "$RUN_SH" once
    whole "$DATA/gpus.csv" gpus 0
    whole "$DATA/host.txt" host 0
    [ "$(stat -c %a "$DATA"/*.csv "$DATA"/*.txt | sort -u)" = 640 ]
    [ "$(find "$DATA" -type f | wc -l)" = 4 ]
}

# bats test_tags=shell
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
    wait_until test -e "$DATA/gpus.csv" -a -e "$DATA/host.txt"
    local reads=0 first
    first=$(head -n 1 "$DATA/host.txt")
    while [ "$reads" -lt 100 ] || [ "$(head -n 1 "$DATA/host.txt")" = "$first" ]; do
        for file in gpus.csv host.txt; do
            mapfile -t lines <"$DATA/$file"
            [ "${lines[-1]}" = '# end' ]
        done
        reads=$((reads + 1))
    done
}

@test "a host whose key is not known gets nothing, and the reason is told" {
    : >"$S/known"
    start_sshd
    run "$RUN_SH" once
    [ "$status" = 1 ]
    [[ $output == *'is not known here: log in there once by hand, or add it to known_hosts'* ]]
    "$CHECK" gpu1
    wait_until grep -qs 'not known here' "$SPOOL/push.failed"
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
    wait_until grep -qsi 'no such file' "$SPOOL/push.failed"
    mkdir "$TMP/data"
    wait_until test -e "$DATA/host.txt"
    wait_until "$CHECK" status gpu1
}

@test "a connection that is cut comes back by itself" {
    start_sshd
    "$CHECK" gpu1
    next_arrival
    # shellcheck disable=SC2046 # one word a pid
    kill -9 $(connections)
    wait_until logged_in 2 # what was under way may still have arrived
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
    wait_until test -p "$SPOOL/run/in"
    next_arrival
    one() { [ "$(pgrep -cf "^sftp .*$S/client")" = 1 ]; }
    wait_until one
}

@test "a spool that is removed leaves no second session" {
    start_sshd
    "$CHECK" gpu1
    next_arrival
    remove_spool
    wait_until "$CHECK" gpu1
    next_arrival
    one() { [ "$(pgrep -cf "^sftp .*$S/client")" = 1 ]; }
    wait_until one
}

@test "a web host that is away for some ticks gets the newest snapshot when it is back" {
    start_sshd
    "$CHECK" gpu1
    next_arrival
    stop_sshd
    wait_until test -s "$SPOOL/push.failed"
    before=$(print_loop_state 1 2)
    ticked() { [ "$(print_loop_state 1 2)" -ge $((before + 4)) ]; }
    wait_until ticked
    run "$CHECK" status gpu1
    [ "$status" = 1 ]
    [[ $output == *'push         fails: '*'Connection refused'* ]]
    start_sshd
    next_arrival
    wait_until "$CHECK" status gpu1
    [ "$(find "$SPOOL" -type f | wc -l)" -lt 60 ]
}

# bats test_tags=root
@test "a slow login shell on the far side slows the first push alone" {
    need_root
    printf '#!/bin/sh\nsleep 4\nexec /bin/sh "$@"\n' >"$S/slow-shell"
    chmod +x "$S/slow-shell"
    sed "s|^\(root:.*:\)[^:]*\$|\1$S/slow-shell|" /etc/passwd >"$S/passwd"
    # exec, so that the pid is sshd's own
    # shellcheck disable=SC2034 # for start_sshd
    IN=(unshare -m sh -c "mount --bind $S/passwd /etc/passwd && exec \"\$@\"" -)
    start_sshd
    # each task ticks once, and task 3 opens the session; then the pushes are ours
    GPUBOARD_GPUS_EVERY=100 GPUBOARD_PROCESSES_EVERY=100 GPUBOARD_PS_EVERY=100 "$CHECK" gpu1
    wait_until test -s "$SPOOL/sent"
    is_new() { "$RUN_SH" tick 1 && has_not "$SPOOL/sent" "$(head -n 1 "$SPOOL/gpus.csv")"; }
    wait_until is_new
    began=$(date +%s%N)
    "$RUN_SH" push
    [ $((($(date +%s%N) - began) / 1000000)) -lt 4000 ]
    has "$DATA/gpus.csv" "$(head -n 1 "$SPOOL/gpus.csv")"
}

@test "a far side that hangs delays no loop, and kill leaves nothing" {
    export GPUBOARD_LIMIT=10
    start_sshd
    "$CHECK" gpu1
    next_arrival
    stopped=$(for pid in $(connections); do echo "$pid" && pgrep -P "$pid"; done)
    kill -STOP $stopped
    is_held() { ! flock -n "$SPOOL/run/push" true; }
    wait_until is_held # by a push that hangs
    before=$(print_loop_state 3 2)
    ticked() { [ "$(print_loop_state 3 2)" -ge $((before + 2)) ]; }
    wait_until ticked
    [ ! -e "$SPOOL/push.failed" ] # it hangs still
    wait_until grep -qs 'no answer within 10 s' "$SPOOL/push.failed"
    "$CHECK" kill
    nothing_left
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

# bats test_tags=root
@test "an account that sshd confines as docs/security.md says takes the push, and nothing else" {
    need_root
    sed -i 's|^AuthorizedKeysFile.*|AuthorizedKeysFile /srv/keys|' "$S/config"
    sed -n '/^```sshd_config/,/^```$/{/^```/!p;}' "$BATS_TEST_DIRNAME/../../docs/security.md" >>"$S/config"
    { cat /etc/passwd && echo 'gpudrop:x:7009:7009::/:/usr/sbin/nologin'; } >"$S/passwd"
    cat >"$S/prepare" <<EOF
set -e
mount --bind $S/passwd /etc/passwd
mount -t tmpfs -o mode=755 none /srv
mkdir -p /srv/gpudrop/data
chown 7009:7009 /srv/gpudrop/data
cp $S/authorized /srv/keys
exec "\$@"
EOF
    # shellcheck disable=SC2034 # for start_sshd
    IN=(unshare -m sh "$S/prepare")
    start_sshd
    GPUBOARD_DEST=gpudrop@web:/data "$RUN_SH" once
    there=/proc/$SSHD/root/srv/gpudrop/data/gpu1
    whole "$there/gpus.csv" gpus 0
    [ "$(stat -c %a "$there/gpus.csv")" = 640 ]
    run ssh -F "$S/client" gpudrop@web id </dev/null
    [[ $output != *uid=* ]]
    run sftp -F "$S/client" -b - gpudrop@web <<<'ls /'
    [[ $output == *data* && $output != *etc* ]]
    run ssh -F "$S/client" -W 127.0.0.1:"$PORT" gpudrop@web </dev/null
    [ "$status" != 0 ]
}

# bats test_tags=shell
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
    wait_until test -e "$TMP/data2/gpu1/host.txt"
    [ "$(cat "$SPOOL/run/session")" = web2 ]
}
