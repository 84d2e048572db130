#!/usr/bin/env bats
# The push to ssh://web, by a real sshd and a key that can do one thing.
load helper
load sshd

setup() {
    setup_sshd
    ENROL=("$TMP/scripts/gpu-enrol.sh" --file "$S/authorized" --data "$TMP/data")
    : >"$S/authorized"
    "${ENROL[@]}" add gpu1 <"$S/user.pub"
    export GPUBOARD_DEST=ssh://web
}

one_connection() { [ "$(pgrep -cf "^ssh .*$S/client")" = 1 ]; }
ssh_there() { ssh -F "$S/client" -o BatchMode=yes "$@" </dev/null; }

@test "ssh://: once, the loops and once again share one connection; cut on either side it comes back" {
    start_sshd
    "$RUN_SH" once
    whole "$DATA/gpus.csv" gpus 0
    whole "$DATA/host.txt" host 0
    [ "$(stat -c %a "$DATA"/* | sort -u)" = 640 ]
    "$CHECK" gpu1
    for _ in 1 2; do next_arrival; done
    "$RUN_SH" once
    "$CHECK" status gpu1
    logged_in 2
    # shellcheck disable=SC2046 # one word a pid
    kill -9 $(connections)
    wait_until logged_in 3
    next_arrival
    kill -9 "$(pgrep -f "^ssh .*$S/client")"
    wait_until logged_in 4
    next_arrival
    one_connection
    [ "$(pgrep -cf "receive.sh --data $TMP/data gpu1")" = 1 ]
    fails grep -qs refused "$TMP/xdg/gpuboard/receive/receive.log" # a new connection may be faster than the end of the old one
    "$CHECK" kill
    fails one_connection
}

@test "ssh://: the key opens no shell, moves no files, forwards nothing and has no terminal" {
    start_sshd
    run ssh_there web 'touch stolen; id'
    [ "$status" = 1 ]
    [ "$output" = 'refused this key takes snapshots of gpu1 and no commands' ]
    has "$TMP/xdg/gpuboard/receive/receive.log" 'gpu1 (127.0.0.1): refused: this key takes snapshots of gpu1 and no commands'
    for words in "scp -F $S/client $S/log web:$TMP/stolen" "scp -O -F $S/client $S/log web:$TMP/stolen" "sftp -F $S/client -b - web"; do
        # shellcheck disable=SC2086 # one word each
        run timeout 10 $words </dev/null
        [ "$status" != 0 ]
    done
    [ ! -e "$TMP/stolen" ]
    run ssh_there -W 127.0.0.1:"$PORT" web
    [ "$status" != 0 ]
    [[ $output == *'administratively prohibited'* ]]
    run ssh_there -o ExitOnForwardFailure=yes -R 0:127.0.0.1:1 web
    [[ $output == *'forwarding failed'* ]]
    run ssh_there -tt web
    [[ $output == *'PTY allocation request failed'* ]]
}

# bats test_tags=quick,shell
@test "ssh://: gpu-doctor.sh logs in as the push does, and reads what the receiver answers" {
    mkdir -p "$HOME/.config/gpuboard/keys"
    cp "$S/user" "$HOME/.config/gpuboard/keys/gpu1"
    start_sshd
    run "$TMP/scripts/gpu-doctor.sh" gpu1
    [[ $output == *'pass  ssh-key '* ]]
    [[ $output == *'pass  ssh           web accepts this host, in '* ]]
}

@test "ssh://: a key that is used for another host is told so, and what it brought is not taken" {
    start_sshd
    HOST=gpu2 run "$RUN_SH" once
    [ "$status" = 1 ]
    [[ $output == *'did not arrive at ssh://web: the web host refuses it: this key is for gpu1, and the snapshot of gpu2'* ]]
    "$CHECK" gpu2
    wait_until grep -qs 'the web host refuses it: this key is for gpu1' "$TMP/spool/gpu2/push.failed"
    run "$CHECK" status gpu2
    [[ $output == *'push         fails: the web host refuses it: this key is for gpu1, and the snapshot of gpu2'* ]]
    [ ! -e "$TMP/data/gpu2" ]
    [ -z "$(ls "$DATA")" ]
}

# bats test_tags=shell
@test "ssh://: an unknown host key, a key that is not enrolled, and one that opens a shell are told apart" {
    start_sshd
    mv "$S/known" "$S/known.right"
    run "$RUN_SH" once
    [ "$status" = 1 ]
    [[ $output == *'is not known here: log in there once by hand, or add it to known_hosts'* ]]
    sed 's/.*/[127.0.0.1]:'"$PORT"' &/' "$S/user.pub" >"$S/known" # another key than it has
    run "$RUN_SH" once
    [ "$status" = 1 ]
    rm "$S/known"
    mkdir -p "$HOME/.config/gpuboard/keys"
    mv "$S/known.right" "$HOME/.config/gpuboard/known_hosts" # this one counts beside the user's
    mv "$S/user" "$HOME/.config/gpuboard/keys/gpu1"
    "$RUN_SH" once
    "${ENROL[@]}" remove gpu1
    run "$RUN_SH" once
    [[ $output == *'Permission denied'* ]]
    cp "$S/user.pub" "$S/authorized"
    run "$RUN_SH" once
    [[ $output == *'the key of this host is not enrolled at ssh://web, but opens a shell there: run gpu-enrol.sh on the web host'* ]]
}

# bats test_tags=shell
@test "ssh://: a web host that is away is asked less and less often, and gets the newest when it is back" {
    "$CHECK" gpu1
    wait_until grep -qs ' [2-9]$' "$SPOOL/run/retry"
    run "$CHECK" status gpu1
    [[ $output == *'push         fails: '*'Connection refused'* ]]
    start_sshd
    wait_until arrived_since 0
    wait_until test ! -e "$SPOOL/run/retry" # it goes when the answer has come
    wait_until "$CHECK" status gpu1
}

@test "ssh://: a change of the address opens a connection to the new one, and ends the old" {
    start_sshd
    printf 'GPUBOARD_DEST=ssh://%s@web:%s\n' "$(id -un)" "$PORT" >"$TMP/my.conf"
    env -u GPUBOARD_DEST "$CHECK" --conf "$TMP/my.conf" gpu1
    next_arrival
    printf 'GPUBOARD_DEST=ssh://web2\n' >"$TMP/my.conf"
    wait_until logged_in 2
    next_arrival
    one_connection
    [ "$(cat "$SPOOL/run/session")" = ssh://web2 ]
}
