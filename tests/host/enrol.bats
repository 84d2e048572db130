#!/usr/bin/env bats
# gpu-enrol.sh: the lines of authorized_keys that are ours, and no others.
load helper

setup() {
    helper_setup
    ENROL=$TMP/scripts/gpu-enrol.sh
    KEYS=$HOME/.ssh/authorized_keys
    export GPUBOARD_DATA=$TMP/data
    for name in one two; do ssh-keygen -q -t ed25519 -N '' -C 'me@here, "with" words' -f "$TMP/$name"; done
    ONE=$(cut -d' ' -f1,2 "$TMP/one.pub")
    TWO=$(cut -d' ' -f1,2 "$TMP/two.pub")
}

# line HOST KEY [WORDS]: as it must stand there.
line() { printf 'restrict,command="%s/scripts/gpu-receive.sh%s %s" %s gpuboard %s\n' "$TMP" "${3:-}" "$1" "$2" "$1"; }

# bats test_tags=quick,shell
@test "a key is enrolled, replaced and removed; every other byte stays, and so does the mode" {
    "$ENROL" add gpu1 <"$TMP/one.pub"
    [ "$(cat "$KEYS")" = "$(line gpu1 "$ONE")" ]
    [ "$(stat -c %a "$HOME/.ssh" "$KEYS" | tr '\n' ' ')" = '700 600 ' ]
    printf '# mine\n\nssh-ed25519 AAAAC3Nza me@home gpuboard gpu1\n%s\nfrom="10.*" ssh-rsa AAAAB3 x' "$(line gpu1 "$ONE")" >"$KEYS"
    chmod 0640 "$KEYS"
    "$ENROL" --data "$TMP/data" add gpu1 <"$TMP/two.pub"
    "$ENROL" --data "$TMP/data" add gpu2 <"$TMP/one.pub"
    [ "$(head -n 4 "$KEYS")" = "$(printf '# mine\n\nssh-ed25519 AAAAC3Nza me@home gpuboard gpu1\nfrom="10.*" ssh-rsa AAAAB3 x')" ]
    [ "$(tail -n 2 "$KEYS")" = "$(line gpu1 "$TWO" " --data $TMP/data" && line gpu2 "$ONE" " --data $TMP/data")" ]
    [ "$("$ENROL" list)" = "$(printf 'gpu1 %s\ngpu2 %s' "$TWO" "$ONE")" ]
    "$ENROL" remove gpu2
    "$ENROL" remove gpu2
    [ "$("$ENROL" list)" = "gpu1 $TWO" ]
    echo 'restrict,command="/other/gpu-receive.sh gpu3" ssh-ed25519 AAAA gpuboard gpu3' >>"$KEYS"
    "$ENROL" remove --all
    [ "$("$ENROL" list)" = "gpu3 ssh-ed25519 AAAA" ]
    [ "$(wc -l <"$KEYS")" = 5 ]
    [ "$(stat -c %a "$KEYS")" = 640 ]
    [ "$(ls -A "$HOME/.ssh" | tr '\n' ' ')" = 'authorized_keys authorized_keys.gpuboard ' ]
}

# bats test_tags=shell
@test "what is not one public key of this host alone is refused, and nothing changes" {
    "$ENROL" add gpu1 <"$TMP/one.pub"
    before=$(cat "$KEYS")
    refused() {
        run "$ENROL" add "${2:-gpu2}"
        [ "$status" = 2 ] && [[ $output == *"$1"* ]] && [ "${#lines[@]}" = 1 ] && [ "$(cat "$KEYS")" = "$before" ]
    }
    refused 'is enrolled for gpu1 already: each host needs its own key' <"$TMP/one.pub"
    refused 'expected one public key' <"$TMP/two"
    refused 'must start with ssh-ed25519' < <(head -n 1 "$TMP/two")
    refused 'without options before it' < <(echo "command=\"sh\" $TWO")
    refused 'expected one public key' < <(cat "$TMP/one.pub" "$TMP/two.pub")
    refused 'expected one public key' </dev/null
    refused 'its second word is not base64' < <(echo 'ssh-ed25519 AAAA"C3')
    refused 'ssh-keygen does not recognise it' < <(echo "${TWO%????????}")
    refused 'is not a host name' ../gpu2 <"$TMP/two.pub"
    refused 'is not a host name' 'gpu2 x' <"$TMP/two.pub"
    refused 'files in the data folder use it' comments.json <"$TMP/two.pub"
    refused 'the bookings folder uses it' bookings <"$TMP/two.pub"
    run "$ENROL" --data "$TMP/none" add gpu2 <"$TMP/two.pub"
    [ "$status" = 2 ]
    run env -u GPUBOARD_DATA "$ENROL" add gpu2 <"$TMP/two.pub"
    [[ $output == *'GPUBOARD_DATA is not set'* ]]
    cat "$TMP/two.pub" >>"$KEYS"
    before=$(cat "$KEYS")
    refused 'without the restriction to gpuboard: remove that line first' <"$TMP/two.pub"
    [ "$("$ENROL" list)" = "gpu1 $ONE" ]
}

@test "names that are one number are not one host" {
    "$ENROL" add 10 <"$TMP/one.pub"
    "$ENROL" add 1e1 <"$TMP/two.pub"
    "$ENROL" remove 10.0
    [ "$("$ENROL" list)" = "$(printf '10 %s\n1e1 %s' "$ONE" "$TWO")" ]
}

# bats test_tags=shell
@test "who came by a key that is removed or replaced is put out at once, and nobody else" {
    LOCKS=$HOME/.local/state/gpuboard/receive
    mkfifo "$TMP/pipe"
    exec 6<>"$TMP/pipe"
    for name in one two; do "$ENROL" add "$name" <"$TMP/$name.pub"; done
    for name in one two; do
        timeout 30 "$TMP/scripts/gpu-receive.sh" "$name" <"$TMP/pipe" 3>&- 6>&- &
        wait_until bash -c "set -- '$LOCKS/'*/$name/lock && [ -e \"\$1\" ] && ! flock -n \"\$1\" true"
    done
    cp -R "$TMP/scripts" "$TMP/other"
    "$TMP/other/gpu-enrol.sh" --file "$TMP/keys" add one <"$TMP/one.pub" # of another board
    fails flock -n "$LOCKS"/*/one/lock true
    "$ENROL" remove one
    wait_until flock -n "$LOCKS"/*/one/lock true # the kernel frees it a moment after the kill
    fails flock -n "$LOCKS"/*/two/lock true
    "$ENROL" add two <"$TMP/two.pub" # as it is already
    fails flock -n "$LOCKS"/*/two/lock true
    "$ENROL" add two <"$TMP/one.pub"
    wait_until flock -n "$LOCKS"/*/two/lock true
}

# bats test_tags=shell
@test "keys that cannot be written leave the file as it is" {
    "$ENROL" add gpu1 <"$TMP/one.pub"
    before=$(cat "$KEYS")
    printf '#!/bin/sh\nexit 1\n' >"$TMP/bin/cp"
    chmod +x "$TMP/bin/cp"
    run "$ENROL" add gpu2 <"$TMP/two.pub"
    [ "$status" = 2 ]
    [[ $output == *"$KEYS could not be written: is the disk full?" ]]
    [ "$(cat "$KEYS")" = "$before" ]
    [ "$(ls -A "$HOME/.ssh" | tr '\n' ' ')" = 'authorized_keys authorized_keys.gpuboard ' ]
}

@test "many at once, into a file behind a link, all arrive" {
    mkdir "$HOME/.ssh" "$TMP/real"
    echo '# mine' >"$TMP/real/keys"
    ln -s "$TMP/real/keys" "$KEYS"
    for n in 1 2 3 4 5 6; do
        ssh-keygen -q -t ed25519 -N '' -f "$TMP/k$n"
        "$ENROL" add "gpu$n" <"$TMP/k$n.pub" &
        pids="${pids:-} $!"
    done
    wait $pids
    [ "$("$ENROL" list | cut -d' ' -f1 | sort | tr '\n' ' ')" = 'gpu1 gpu2 gpu3 gpu4 gpu5 gpu6 ' ]
    [ -h "$KEYS" ]
    [ "$(head -n 1 "$TMP/real/keys")" = '# mine' ]
}

# bats test_tags=quick,shell
@test "a folder whose name is hard on sh is one word of the command" {
    odd="$TMP/it's 100% \"my\" \$data"
    mkdir "$odd"
    "$ENROL" --data "$odd" add gpu1 <"$TMP/one.pub"
    command=$(sed 's/^restrict,command="\(.*\)" ssh-ed25519 .*/\1/; s/\\"/"/g' "$KEYS")
    printf 'words\n' | sh -c "$command" | grep '^refused'
    [ -d "$odd/gpu1" ]
    run "$ENROL" --data 'a\b' add gpu1 <"$TMP/one.pub"
    [ "$status" = 2 ]
}
