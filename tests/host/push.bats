#!/usr/bin/env bats
# The push into a folder, and what every push promises.
load helper

@test "a reader never sees half a file, however often it looks" {
    echo 8 >"$SMI/gpus"
    "$RUN_SH" once
    (while [ ! -e "$TMP/stop" ]; do
        for file in gpus.csv processes.csv ps.txt host.txt; do
            mapfile -t lines <"$DATA/$file"
            [ "${lines[-1]}" = '# end' ] || echo "$file" >>"$TMP/torn"
        done
    done) &
    for _ in 1 2 3; do "$RUN_SH" once; done
    for _ in $(seq 60); do "$TMP/scripts/lib/push_folder.sh" "$TMP/data" gpu1 "$SPOOL" gpus.csv processes.csv ps.txt host.txt; done
    touch "$TMP/stop"
    wait $!
    [ ! -e "$TMP/torn" ]
}

# bats test_tags=shell
@test "a folder that does not exist is not made, and once says so with exit 1" {
    run env GPUBOARD_DEST="$TMP/share" "$RUN_SH" once
    [ "$status" = 1 ]
    [[ $output == *"did not arrive at $TMP/share: the folder $TMP/share does not exist (not mounted?)"* ]]
    [ ! -e "$TMP/share" ]
}

@test "without a destination once is wrong use, and says what to set" {
    unset GPUBOARD_DEST
    run "$RUN_SH" once
    [ "$status" = 2 ]
    [[ $output == *'GPUBOARD_DEST is not set'* ]]
}

# bats test_tags=quick,shell
@test "a destination that this version does not know is refused by name" {
    for dest in ftp://web data ssh:// ssh://web/data ssh://-oProxyCommand=x ssh://me@-x; do
        run env GPUBOARD_DEST="$dest" "$RUN_SH" once
        [ "$status" = 2 ]
        [[ $output == *"GPUBOARD_DEST is '$dest'"* ]]
    done
}

@test "a web host without a folder behind the colon is refused: its home is not meant" {
    for dest in web: me@web: 'me@[::1]:'; do
        run env GPUBOARD_DEST="$dest" "$RUN_SH" once
        [ "$status" = 2 ]
        [[ $output == *"GPUBOARD_DEST is '$dest', but has no folder after the colon: write user@web:/path/data" ]]
    done
}

# bats test_tags=quick,shell
@test "a push to a folder writes through no link, wherever one stands" {
    echo mine >"$TMP/precious"
    mkdir -p "$DATA/.new"
    for file in gpus.csv processes.csv ps.txt host.txt; do
        ln -s "$TMP/precious" "$DATA/.new/$file"
        ln -s "$TMP/precious" "$DATA/$file"
    done
    "$RUN_SH" once
    [ "$(cat "$TMP/precious")" = mine ]
    whole "$DATA/gpus.csv" gpus 0
    [ "$(find "$DATA" -type l)" = '' ]
    [ "$(stat -c %a "$DATA/.new" "$DATA/gpus.csv" | tr '\n' ' ')" = '700 640 ' ]
    mkdir "$TMP/elsewhere"
    rm -r "$DATA/.new" && ln -s "$TMP/elsewhere" "$DATA/.new"
    "$RUN_SH" once
    [ -z "$(ls -A "$TMP/elsewhere")" ]
    rm -r "$DATA" && ln -s "$TMP/elsewhere" "$DATA"
    run "$RUN_SH" once
    [ "$status" = 1 ]
    [[ $output == *"did not arrive at $TMP/data: $DATA is a link, and links are not followed: remove it" ]]
    [ -z "$(ls -A "$TMP/elsewhere")" ]
}

# bats test_tags=root
@test "a push to a folder that others can write is refused with the command to run, unless it is sticky" {
    need_root
    chgrp nogroup "$TMP/data" && chmod 0770 "$TMP/data"
    run "$RUN_SH" once
    [ "$status" = 1 ]
    [[ $output == *"other accounts can write to $TMP/data and so redirect what is written: run ./install.sh web on the web host, or as the owner of that folder: chmod +t $TMP/data" ]]
    [ ! -e "$DATA/gpus.csv" ]
    chmod +t "$TMP/data"
    "$RUN_SH" once
    chown -R daemon "$DATA"
    run "$RUN_SH" once
    [[ $output == *"$DATA belongs to daemon, not to root: remove it there, or give it to root (chown)" ]]
}

@test "a folder whose group has no other member than its owner can be pushed to" {
    [ "$(id -un)" = "$(id -gn)" ] && [[ $(getent group "$(id -g)") == *: ]] || missing 'a group of its own is needed'
    chmod 0775 "$TMP/data"
    "$RUN_SH" once
    whole "$DATA/gpus.csv" gpus 0
}

# bats test_tags=shell
@test "what was sent is not sent again: the file in data/ keeps its arrival" {
    "$RUN_SH" tick 1
    "$RUN_SH" tick 3
    wait_until test -e "$DATA/gpus.csv"
    arrival=$(stat -c %z "$DATA/gpus.csv")
    before=$(head -n 1 "$DATA/host.txt")
    newer() { run_whole "$RUN_SH" tick 3 && [ "$(head -n 1 "$DATA/host.txt")" != "$before" ]; }
    wait_until newer
    [ "$(stat -c %z "$DATA/gpus.csv")" = "$arrival" ]
}

# bats test_tags=root
@test "a full disk at the destination leaves the old files whole" {
    need_root
    cat >"$TMP/full.sh" <<'EOF'
set -e
mount -t tmpfs -o size=64k none "$GPUBOARD_DEST"
"$1" once
head -c 1000000 /dev/zero >"$GPUBOARD_DEST/filler" 2>/dev/null || :
before=$(cat "$GPUBOARD_DEST"/gpu1/*.*)
echo 8 >"$SMI/gpus"
yes 'a long line on stderr, to make the snapshot too large for what is left' | head -n 20 >"$SMI/cry"
! "$1" once
[ "$before" = "$(cat "$GPUBOARD_DEST"/gpu1/*.*)" ]
rm "$GPUBOARD_DEST/filler"
"$1" once
grep -q '^7, GPU' "$GPUBOARD_DEST/gpu1/gpus.csv"
EOF
    unshare -m bash "$TMP/full.sh" "$RUN_SH"
}

# bats test_tags=shell
@test "a destination that hangs delays no loop, and is said" {
    printf '#!/bin/sh\ncase $* in *.new/*) sleep 60 ;; esac\nexec /bin/cp "$@"\n' >"$TMP/bin/cp"
    chmod +x "$TMP/bin/cp"
    export GPUBOARD_LIMIT=5
    "$RUN_SH" tick 3
    "$RUN_SH" tick 3
    [ ! -e "$SPOOL/push.failed" ] # it still hangs
    wait_until test -s "$SPOOL/push.failed"
    has "$SPOOL/push.failed" 'no answer within 5 s'
}

@test "once waits for a push that is under way" {
    printf '#!/bin/sh\nsleep 1\nexec /bin/cp "$@"\n' >"$TMP/bin/cp"
    chmod +x "$TMP/bin/cp"
    "$RUN_SH" tick 3
    "$RUN_SH" once
    whole "$DATA/gpus.csv" gpus 0
}

# bats test_tags=shell
@test "hosts that start in the same second do not push in the same second for ever: chance shortens the first wait" {
    printf '#!/bin/sh\necho "  179"\n' >"$TMP/bin/od"
    chmod +x "$TMP/bin/od"
    export GPUBOARD_PS_EVERY=60
    "$CHECK" gpu1
    wait_until test -s "$SPOOL/sent"
    first=$(sed -n '$p' "$SPOOL/sent")
    wait_until has_not "$SPOOL/sent" "$first" # after 60 - 179 % 60 seconds
}
