#!/usr/bin/env bats
# gpu-receive.sh: what it takes, and all that it does not.
load helper

setup() {
    helper_setup
    RECEIVE=$TMP/scripts/gpu-receive.sh
    FOLDER=$TMP/data
    PRIVATE=$HOME/.local/state/gpuboard/receive
    LOG=$PRIVATE/receive.log
}

# hurry: refusals do not wait for their second.
hurry() { ln -s /bin/true "$TMP/bin/sleep"; }

# snapshot TASK [HOST] [WORDS]: one file.
snapshot() { printf '# gpuboard 1 task=%s host=%s time=1700000000 every=10 took_ms=1 rc=0\n%s\n# end\n' "$1" "${2:-gpu1}" "${3:-words}"; }
all_four() { for task in gpus processes ps host; do snapshot "$task" gpu1 "$1"; done; }

# update: what stdin holds, as one.
update() {
    cat >"$TMP/body"
    printf 'gpuboard 1 push %s\n' "$(wc -c <"$TMP/body")"
    cat "$TMP/body"
}

receive() { timeout 20 "$RECEIVE" --data "$FOLDER" "$@" gpu1; }
content() { (cd "$FOLDER/gpu1" && cat gpus.csv processes.csv ps.txt host.txt); }

# refused SENTENCE: the update on stdin is; nothing changes but the log, and nothing is left.
refused() {
    local before answer
    before=$(content)
    answer=$(receive) || true
    [[ $answer == "refused $1"* ]] || { echo "answered: $answer, not: $1" >&2 && return 1; }
    tail -n 1 "$LOG" | grep -qF -- " gpu1 (here): refused: $1" || { cat "$LOG" >&2 && return 1; }
    [ "$(content)" = "$before" ]
    [ "$(ls -A "$FOLDER")" = gpu1 ]
    [ -z "$(ls -A "$FOLDER/gpu1/.new")" ]
}

# bats test_tags=quick,shell
@test "updates over one connection replace the four files, with mode 0640, and leave nothing else" {
    hurry
    [ "$({ all_four one | update && { snapshot gpus gpu1 two && snapshot host gpu1 two; } | update; } | receive)" = "$(printf 'ok\nok')" ]
    [ "$(sed -n 2p "$FOLDER/gpu1/gpus.csv" "$FOLDER/gpu1/host.txt" | tr '\n' ' ')" = 'two ' ]
    [ "$(cat "$FOLDER/gpu1/ps.txt")" = "$(snapshot ps gpu1 one)" ]
    [ "$(ls -A "$FOLDER/gpu1" | tr '\n' ' ')" = '.new gpus.csv host.txt processes.csv ps.txt ' ]
    [ "$(stat -c %a "$FOLDER/gpu1"/* | sort -u)" = 640 ]
    [ "$(stat -c %a "$FOLDER/gpu1/.new")" = 700 ]
    [ "$(ls -A "$FOLDER")" = gpu1 ]
    [ -z "$(ls -A "$FOLDER/gpu1/.new")" ]
}

# bats test_tags=shell
@test "what is not a snapshot of this host is refused with a sentence, also in the log, and the old files stay" {
    hurry
    all_four old | update | receive
    first='the first line of a file is not a snapshot header'
    snapshot gpus gpu2 | update | refused 'this key is for gpu1, and the snapshot of gpu2'
    { snapshot gpus && snapshot ps gpu11; } | update | refused 'this key is for gpu1, and the snapshot of gpu11'
    { snapshot gpus && snapshot host | head -n 2; } | update | refused 'the last line of a file is not # end'
    snapshot gpus | head -c -1 | update | refused 'the last line of a file is not # end'
    snapshot ../../comments.json | update | refused "$first"
    snapshot gpus gpu1/../gpu2 | update | refused "$first"
    snapshot comments | update | refused 'there is no task comments'
    { snapshot gpus && snapshot gpus; } | update | refused 'the update has two files of the task gpus'
    echo words | update | refused "$first"
    head -c 3000 /dev/urandom | update | refused "$first"
    for size in 0 -1 12x 8388609 1073741824 99999999999999999999; do
        printf 'gpuboard 1 push %s\n' "$size" | refused 'an update has at most 8388608 bytes'
    done
    for line in 'GET / HTTP/1.1' 'gpuboard 2 push 5' 'gpuboard 1 push 5 ../gpu2' ''; do
        printf '%s\n' "$line" | refused 'this version of gpu-receive.sh does not know this kind of update'
    done
    export SSH_ORIGINAL_COMMAND="cat /etc/passwd"
    all_four new | update | refused 'this key takes snapshots of gpu1 and no commands'
}

@test "after a refusal the same connection goes on" {
    hurry
    { snapshot gpus gpu2 | update && all_four new | update; } | receive >"$TMP/answers"
    [ "$(cut -d' ' -f1 "$TMP/answers" | tr '\n' ' ')" = 'refused ok ' ]
}

@test "1 GB is not read, with its size told or without end" {
    hurry
    { echo 'gpuboard 1 push 1073741824' && head -c 1G /dev/zero; } | receive | grep '^refused an update has'
    head -c 1G /dev/zero | tr '\0' x | receive --idle 1 || true
    has "$LOG" 'the connection sent no complete update within 1 s and was closed'
    [ "$(du -sk "$FOLDER" | cut -f1)" -lt 100 ]
}

# bats test_tags=shell
@test "a connection that sends a byte now and then is ended" {
    { printf 'gpuboard 1 push 100\n# gpu' && while /bin/sleep 0.5; do printf x; done; } 2>/dev/null | receive --idle 1
    has "$LOG" 'no complete update within 1 s'
    [ "$(ls -A "$FOLDER/gpu1")" = .new ]
}

@test "an update that is cut leaves the old files, and the log no word" {
    hurry
    all_four old | update | receive
    all_four new | update | head -c -20 | receive || true
    [ "$(content)" = "$(all_four old)" ]
    [ ! -e "$LOG" ]
    all_four new | update | receive
    [ -z "$(ls -A "$FOLDER/gpu1/.new")" ]
}

# is_taking: a receiver is within an update.
is_taking() {
    local pid
    for pid in $(find /proc/[0-9]*/fd -lname "$PRIVATE/*/gpu1/lock" 2>/dev/null | cut -d/ -f3 | sort -u); do
        if [[ $(tr '\0' ' ' 2>/dev/null <"/proc/$pid/cmdline") == *'head -c '* ]]; then return; fi
    done
    return 1
}

# hang: a receiver that waits for the rest of an update; sets HUNG.
hang() {
    mkfifo "$TMP/pipe"
    receive <"$TMP/pipe" >"$TMP/hung.out" 3>&- 7>&- &
    HUNG=$!
    exec 7>"$TMP/pipe"
    all_four half | update | head -c -20 >&7
    wait_until is_taking
}

# bats test_tags=shell
@test "a new connection takes the place of one that hangs" {
    hurry
    hang
    [ "$(all_four new | update | receive)" = ok ]
    wait_until gone "$HUNG"
    [ "$(content)" = "$(all_four new)" ]
    has "$LOG" 'a new connection has replaced an older one'
    exec 7>&-
}

@test "kill -9 in the middle of an update leaves the old files, and the next connection cleans up" {
    hurry
    all_four old | update | receive
    hang
    # shellcheck disable=SC2046 # one word a pid
    kill -9 $(find /proc/[0-9]*/fd -lname "$PRIVATE/*/gpu1/lock" 2>/dev/null | cut -d/ -f3)
    exec 7>&-
    [ "$(content)" = "$(all_four old)" ]
    [ "$(all_four new | update | receive)" = ok ]
    [ -z "$(ls -A "$FOLDER/gpu1/.new")" ]
}

# bats test_tags=shell
@test "a link in the place of a folder or a file is not followed" {
    hurry
    mkdir "$TMP/elsewhere"
    ln -s "$TMP/elsewhere" "$FOLDER/gpu1"
    all_four new | update | receive | grep '^refused data/gpu1 is a link on the web host, and links are not followed: remove it$'
    rm "$FOLDER/gpu1" && mkdir "$FOLDER/gpu1"
    ln -s "$TMP/elsewhere" "$FOLDER/gpu1/gpus.csv"
    ln -s "$TMP/elsewhere" "$FOLDER/gpu1/.new"
    ln -s "$TMP/elsewhere" "$FOLDER/.receive" # of the version before this one
    [ "$(all_four new | update | receive)" = ok ]
    [ -f "$FOLDER/gpu1/gpus.csv" ] && [ ! -h "$FOLDER/gpu1/gpus.csv" ]
    [ ! -h "$FOLDER/gpu1/.new" ]
    [ -z "$(ls -A "$TMP/elsewhere")" ]
}

@test "a link in an older folder of half an update is not written through" {
    hurry
    echo mine >"$TMP/precious"
    mkdir -p "$FOLDER/gpu1/.new" "$FOLDER/.receive/gpu1"
    for folder in "$FOLDER/gpu1/.new" "$FOLDER/.receive/gpu1"; do
        for file in gpus.csv processes.csv ps.txt host.txt last said lock; do ln -s "$TMP/precious" "$folder/$file"; done
    done
    [ "$(all_four new | update | receive)" = ok ]
    [ "$(cat "$TMP/precious")" = mine ]
    [ "$(content)" = "$(all_four new)" ]
}

# bats test_tags=shell,root
@test "a data folder that others can write is refused with the command to run, unless it is sticky" {
    hurry
    need_root
    for mode in 0770 0757 2775 0777; do
        chmod "$mode" "$FOLDER"
        chgrp nogroup "$FOLDER"
        run bash -c "$(declare -f all_four snapshot update); TMP='$TMP'; all_four new | update | timeout 20 '$RECEIVE' --data '$FOLDER' gpu1"
        [ "$status" = 1 ]
        [ "$output" = "refused other accounts can write to data on the web host and so redirect what is written: run ./install.sh web there as $(id -un), or: chmod go-w $FOLDER" ]
        [ ! -e "$FOLDER/gpu1/gpus.csv" ]
    done
    has "$LOG" 'gpu1 (here): refused: other accounts can write to data on the web host'
    chmod 3770 "$FOLDER"
    [ "$(all_four new | update | receive)" = ok ]
    chmod 0750 "$FOLDER"
    [ "$(all_four new | update | receive)" = ok ]
}

# bats test_tags=shell,root
@test "a data folder, or one of the host, that belongs to another account is refused" {
    need_root
    hurry
    chown daemon "$FOLDER"
    all_four new | update | receive | grep '^refused the folder data on the web host belongs to daemon, not to root: give it to root (chown)$'
    chown root "$FOLDER" && rm -r "$FOLDER/gpu1"
    mkdir "$FOLDER/gpu1" && chown daemon "$FOLDER/gpu1"
    all_four new | update | receive | grep '^refused data/gpu1 belongs to daemon on the web host, not to root: remove it there, or give it to root (chown)$'
    [ -z "$(ls -A "$FOLDER/gpu1")" ]
}

@test "a folder of the host that others could write is theirs no longer" {
    hurry
    mkdir "$FOLDER/gpu1" && chmod 2775 "$FOLDER/gpu1"
    [ "$(all_four new | update | receive)" = ok ]
    [ "$(stat -c %a "$FOLDER/gpu1")" = 2755 ]
}

two_answers() { [ "$(cat "$TMP/answers")" = "$(printf 'ok\nok')" ]; }

@test "a host that is forgotten while it is connected comes back with its next update" {
    hurry
    mkfifo "$TMP/pipe"
    receive <"$TMP/pipe" >"$TMP/answers" 3>&- 7>&- &
    exec 7>"$TMP/pipe"
    all_four old | update >&7
    wait_until grep -qsx ok "$TMP/answers"
    rm -r "$FOLDER/gpu1"
    all_four new | update >&7
    wait_until test -s "$FOLDER/gpu1/host.txt"
    wait_until two_answers
    [ "$(content)" = "$(all_four new)" ]
    exec 7>&-
}

@test "locks and log are in the state folder of the settings, and in a folder of this account alone" {
    hurry
    mkdir -p "$HOME/.config/gpuboard" "$TMP/state"
    printf 'GPUBOARD_STATE=%s\n' "$TMP/state" >"$HOME/.config/gpuboard/gpuboard.conf"
    echo words | receive || true
    has "$TMP/state/receive/receive.log" 'gpu1 (here): refused: '
    [ "$(stat -c %a "$TMP/state/receive")" = 700 ]
    [ ! -e "$PRIVATE" ]
    alone="refused the folder $TMP/state/receive on the web host must belong to $(id -un) alone and must not be a link"
    chmod 0750 "$TMP/state/receive"
    [[ $(all_four new | update | receive) == "$alone"* ]]
    mv "$TMP/state/receive" "$TMP/state/other" && chmod 0700 "$TMP/state/other"
    ln -s other "$TMP/state/receive"
    [[ $(all_four new | update | receive) == "$alone"* ]]
    rm "$TMP/state/receive"
    chmod 0757 "$TMP/state"
    [[ $(all_four new | update | receive) == "$alone"* ]]
    chmod 0700 "$TMP/state"
    [ "$(all_four new | update | receive)" = ok ]
    printf 'GPUBOARD_STATE=%s\n' "$TMP/nowhere" >"$HOME/.config/gpuboard/gpuboard.conf"
    echo words | receive || true
    has "$LOG" 'gpu1 (here): refused: '
}

@test "the last part of a connection that an older version began ends, so that the host opens a new one" {
    run bash -c "cd '$FOLDER' && echo words | '$TMP/scripts/lib/receive.sh' gpu1 60"
    [ "$status" = 1 ]
    [ -z "$output" ]
    [ -z "$(ls -A "$FOLDER")" ]
}

@test "two boards of one account do not end each other's connections" {
    hurry
    hang
    mkdir "$TMP/other"
    [ "$(all_four new | update | timeout 20 "$RECEIVE" --data "$TMP/other" gpu1)" = ok ]
    fails gone "$HUNG"
    exec 7>&-
}

@test "a data folder that does not exist is not made, and said" {
    run env GPUBOARD_DATA="$TMP/share" "$RECEIVE" gpu1
    [ "$status" = 1 ]
    [[ $output == "refused the folder $TMP/share does not exist on the web host (not mounted?)" ]]
    [ ! -e "$TMP/share" ]
    for data in '' data; do
        run env GPUBOARD_DATA="$data" "$RECEIVE" gpu1
        [ "$status" = 2 ]
        [[ $output == *'must be absolute: set GPUBOARD_DATA'* ]]
    done
    for host in ../gpu1 bookings; do
        run "$RECEIVE" --data "$FOLDER" "$host"
        [ "$status" = 2 ]
    done
}

@test "the data folder is that of the settings" {
    hurry
    mkdir -p "$HOME/.config/gpuboard"
    printf 'GPUBOARD_DATA=%s\n' "$FOLDER" >"$HOME/.config/gpuboard/gpuboard.conf"
    [ "$(all_four new | update | "$RECEIVE" gpu1)" = ok ]
    [ "$(content)" = "$(all_four new)" ]
}

# bats test_tags=shell
@test "there is at most one update a second, over all connections" {
    began=$(date +%s%N)
    for _ in 1 2; do snapshot gpus | update | receive; done
    { snapshot gpus | update && snapshot gpus | update; } | receive
    [ $((($(date +%s%N) - began) / 10000000)) -ge 300 ]
}

# bats test_tags=root
@test "a full disk of the web host is told, and leaves the old files whole" {
    need_root
    cat >"$TMP/full.sh" <<'EOS'
set -e
mount -t tmpfs -o size=64k none "$FOLDER"
[ "$(all_four old | update | receive)" = ok ]
head -c 1000000 /dev/zero >"$FOLDER/filler" 2>/dev/null || :
all_four "$(head -c 9000 /dev/zero | tr '\0' x)" | update | receive | grep '^refused it could not be saved on the web host: is its disk full?$'
[ "$(content)" = "$(all_four old)" ]
rm "$FOLDER/filler"
[ "$(all_four new | update | receive)" = ok ]
[ "$(content)" = "$(all_four new)" ]
EOS
    hurry
    export TMP RECEIVE FOLDER
    export -f all_four snapshot update receive content
    unshare -m bash "$TMP/full.sh"
}

@test "the log does not grow without end" {
    hurry
    echo words | receive || true
    head -c 300000 /dev/zero | tr '\0' x >"$LOG"
    echo words | receive || true
    [ "$(wc -l <"$LOG")" = 1 ]
    [ "$(wc -c <"$LOG.1")" = 300000 ]
}
