#!/usr/bin/env bats
# gpu-receive.sh: what it takes, and all that it does not.
load helper

setup() {
    helper_setup
    RECEIVE=$TMP/scripts/gpu-receive.sh
    FOLDER=$TMP/data
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
    tail -n 1 "$FOLDER/receive.log" | grep -qF -- " gpu1 (here): refused: $1" || { cat "$FOLDER/receive.log" >&2 && return 1; }
    [ "$(content)" = "$before" ]
    [ "$(ls -A "$FOLDER")" = "$(printf '.receive\ngpu1\nreceive.log')" ]
}

@test "updates over one connection replace the four files, with mode 0640, and leave nothing else" {
    hurry
    [ "$({ all_four one | update && { snapshot gpus gpu1 two && snapshot host gpu1 two; } | update; } | receive)" = "$(printf 'ok\nok')" ]
    [ "$(sed -n 2p "$FOLDER/gpu1/gpus.csv" "$FOLDER/gpu1/host.txt" | tr '\n' ' ')" = 'two ' ]
    [ "$(cat "$FOLDER/gpu1/ps.txt")" = "$(snapshot ps gpu1 one)" ]
    [ "$(ls -A "$FOLDER/gpu1" | tr '\n' ' ')" = 'gpus.csv host.txt processes.csv ps.txt ' ]
    [ "$(stat -c %a "$FOLDER/gpu1"/* | sort -u)" = 640 ]
    [ "$(ls -A "$FOLDER/.receive/gpu1" | tr '\n' ' ')" = 'last lock said ' ]
}

@test "what is not a snapshot of this host is refused with a sentence, also in the log, and the old files stay" {
    hurry
    all_four old | update | receive
    touch "$FOLDER/receive.log"
    first='the first line of a file is not that of a snapshot'
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
        printf '%s\n' "$line" | refused 'this is not an update that this version of gpu-receive.sh knows'
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
    has "$FOLDER/receive.log" 'the connection brought no whole update within 1 s, and was ended'
    [ "$(du -sk "$FOLDER" | cut -f1)" -lt 100 ]
}

@test "a connection that sends a byte now and then is ended" {
    { printf 'gpuboard 1 push 100\n# gpu' && while /bin/sleep 0.5; do printf x; done; } 2>/dev/null | receive --idle 1
    has "$FOLDER/receive.log" 'no whole update within 1 s'
    [ "$(ls -A "$FOLDER/gpu1")" = '' ]
}

@test "an update that is cut leaves the old files, and the log no word" {
    hurry
    all_four old | update | receive
    all_four new | update | head -c -20 | receive || true
    [ "$(content)" = "$(all_four old)" ]
    [ ! -e "$FOLDER/receive.log" ]
    all_four new | update | receive
    [ "$(ls -A "$FOLDER/.receive/gpu1" | tr '\n' ' ')" = 'last lock said ' ]
}

# hang: a receiver that waits for the rest of an update; sets HUNG.
hang() {
    mkfifo "$TMP/pipe"
    receive <"$TMP/pipe" >"$TMP/hung.out" 3>&- 7>&- &
    HUNG=$!
    STARTED="${STARTED:-} $HUNG"
    exec 7>"$TMP/pipe"
    all_four half | update | head -c -20 >&7
    within 5 test -e "$FOLDER/.receive/gpu1/said"
}

@test "a new connection takes the place of one that hangs" {
    hurry
    hang
    [ "$(all_four new | update | receive)" = ok ]
    within 5 gone "$HUNG"
    [ "$(content)" = "$(all_four new)" ]
    has "$FOLDER/receive.log" 'a new connection has taken the place of an older one'
    exec 7>&-
}

@test "kill -9 in the middle of an update leaves the old files, and the next connection cleans up" {
    hurry
    all_four old | update | receive
    hang
    # shellcheck disable=SC2046 # one word a pid
    kill -9 $(find /proc/[0-9]*/fd -lname "$FOLDER/.receive/gpu1/lock" 2>/dev/null | cut -d/ -f3)
    exec 7>&-
    [ "$(content)" = "$(all_four old)" ]
    [ "$(all_four new | update | receive)" = ok ]
    [ "$(ls -A "$FOLDER/.receive/gpu1" | tr '\n' ' ')" = 'last lock said ' ]
}

@test "a link in the place of a folder or a file is not followed" {
    hurry
    mkdir "$TMP/elsewhere"
    for link in gpu1 .receive; do
        rm -rf "$FOLDER" && mkdir "$FOLDER"
        ln -s "$TMP/elsewhere" "$FOLDER/$link"
        all_four new | update | receive | grep "^refused data/$link is a link on the web host"
    done
    rm -rf "$FOLDER" && mkdir -p "$FOLDER/gpu1" "$FOLDER/.receive/gpu1"
    for folder in gpu1 .receive/gpu1; do ln -s "$TMP/elsewhere" "$FOLDER/$folder/gpus.csv"; done
    [ "$(all_four new | update | receive)" = ok ]
    [ -f "$FOLDER/gpu1/gpus.csv" ] && [ ! -h "$FOLDER/gpu1/gpus.csv" ]
    [ -z "$(ls -A "$TMP/elsewhere")" ]
}

@test "a data folder that is not there is not made, and said" {
    run env GPUBOARD_DATA="$TMP/share" "$RECEIVE" gpu1
    [ "$status" = 1 ]
    [[ $output == "refused the folder $TMP/share is not there on the web host (not mounted?)" ]]
    [ ! -e "$TMP/share" ]
    for data in '' data; do
        run env GPUBOARD_DATA="$data" "$RECEIVE" gpu1
        [ "$status" = 2 ]
        [[ $output == *'must be absolute: set GPUBOARD_DATA'* ]]
    done
    run "$RECEIVE" --data "$FOLDER" ../gpu1
    [ "$status" = 2 ]
}

@test "the data folder is that of the settings" {
    hurry
    mkdir -p "$HOME/.config/gpuboard"
    printf 'GPUBOARD_DATA=%s\n' "$FOLDER" >"$HOME/.config/gpuboard/gpuboard.conf"
    [ "$(all_four new | update | "$RECEIVE" gpu1)" = ok ]
    [ "$(content)" = "$(all_four new)" ]
}

@test "there is at most one update a second, over all connections" {
    began=$(date +%s%N)
    for _ in 1 2; do snapshot gpus | update | receive; done
    { snapshot gpus | update && snapshot gpus | update; } | receive
    [ $((($(date +%s%N) - began) / 10000000)) -ge 300 ]
}

@test "a full disk of the web host is told, and leaves the old files whole" {
    need_root
    cat >"$TMP/full.sh" <<'EOS'
set -e
mount -t tmpfs -o size=64k none "$FOLDER"
[ "$(all_four old | update | receive)" = ok ]
head -c 1000000 /dev/zero >"$FOLDER/filler" 2>/dev/null || :
all_four "$(head -c 9000 /dev/zero | tr '\0' x)" | update | receive | grep '^refused it could not be written on the web host: is its disk full?$'
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
    head -c 300000 /dev/zero | tr '\0' x >"$FOLDER/receive.log"
    echo words | receive || true
    [ "$(wc -l <"$FOLDER/receive.log")" = 1 ]
    [ "$(wc -c <"$FOLDER/receive.log.1")" = 300000 ]
}
