#!/usr/bin/env bats
# gpu-check.sh: the three loops live, and end when told.
load helper

loop_pid() { print_loop_state "$1" 1; }
up_and_fresh() { "$CHECK" status gpu1 >/dev/null; }
newer() { [ "$(stat -c %Y "$DATA/$1" 2>/dev/null || echo 0)" -gt "$2" ]; }
start() {
    "$CHECK" gpu1
    wait_until up_and_fresh
    wait_until test -e "$DATA/gpus.csv"
}

@test "it starts three loops, which push, and says nothing" {
    run "$CHECK" gpu1
    [ "$status" = 0 ]
    [ -z "$output" ]
    wait_until up_and_fresh
    wait_until test -e "$DATA/gpus.csv" -a -e "$DATA/processes.csv" -a -e "$DATA/ps.txt" -a -e "$DATA/host.txt"
    now=$(date +%s)
    wait_until newer gpus.csv "$now"
    wait_until newer host.txt "$now"
}

@test "loops that run are left alone" {
    start
    before="$(loop_pid 1) $(loop_pid 2) $(loop_pid 3)"
    "$CHECK" gpu1
    [ "$before" = "$(loop_pid 1) $(loop_pid 2) $(loop_pid 3)" ]
}

# bats test_tags=quick,shell
@test "each script prints its head as help, and on stderr for wrong use" {
    for name in run check doctor enrol receive; do
        run "$TMP/scripts/gpu-$name.sh" --help
        [ "$status" = 0 ]
        [[ $output == "gpu-$name.sh: "* && $output != *'#!'* && $output != *'set -eu'* ]]
    done
    run "$RUN_SH" 4
    [ "$status" = 2 ]
    [[ $output == 'gpu-run.sh: '* ]]
}

# bats test_tags=shell
@test "two gpu-check.sh at once make three loops, not six" {
    "$CHECK" gpu1 &
    "$CHECK" gpu1
    wait $!
    wait_until up_and_fresh
    [ "$(pgrep -cf "$TMP/scripts/gpu-run.sh [123]\$")" = 3 ]
}

# bats test_tags=shell
@test "a loop that is killed with -9 is started again, and its orphaned sleep is ended" {
    export GPUBOARD_GPUS_EVERY=30
    start
    old=$(loop_pid 1)
    wait_until pgrep -P "$old" -x sleep >/dev/null
    orphan=$(pgrep -P "$old" -x sleep)
    kill -9 "$old"
    wait_until flock -n "$SPOOL/run/1" true # under load it takes a moment to end
    kill -0 "$orphan"
    run "$CHECK" status gpu1
    [ "$status" = 1 ]
    [[ $output == *'1 GPUs       is not running'* ]]
    "$CHECK" gpu1
    has_new_pid() { new=$(loop_pid 1) && [ -n "$new" ] && [ "$new" != "$old" ]; }
    wait_until has_new_pid
    kill -0 "$new"
    wait_until gone "$orphan"
}

# bats test_tags=shell
@test "a loop that hangs is started again" {
    export GPUBOARD_LIMIT=1
    start
    old=$(loop_pid 2)
    kill -STOP "$old"
    hangs() { "$CHECK" status gpu1 | grep -q '2 processes  hangs'; }
    wait_until hangs
    # a tick of it that was under way when it stopped may still end, and count
    is_restarted() { "$CHECK" gpu1 && [ "$(loop_pid 2)" != "$old" ]; }
    wait_until is_restarted
    wait_until up_and_fresh
    wait_until gone "$old"
}

# bats test_tags=shell
@test "a round that fails does not end its loop" {
    start
    chmod 000 "$TMP/scripts/lib/snapshot.awk"
    [ "$(id -u)" != 0 ] || mv "$TMP/scripts/lib/snapshot.awk" "$TMP/hidden.awk"
    for task in 1 2 3; do wait_until grep -qs snapshot.awk "$SPOOL/run/$task.err"; done
    [ "$(id -u)" != 0 ] || mv "$TMP/hidden.awk" "$TMP/scripts/lib/snapshot.awk"
    chmod 644 "$TMP/scripts/lib/snapshot.awk"
    now=$(date +%s)
    wait_until newer gpus.csv "$now"
    wait_until up_and_fresh
}

# bats test_tags=quick,shell
@test "kill ends everything and leaves the last snapshot" {
    start
    "$CHECK" kill
    nothing_left
    whole "$SPOOL/gpus.csv" gpus 0
    run "$CHECK" status gpu1
    [ "$status" = 1 ]
    [ "$(grep -c 'is not running' <<<"$output")" = 3 ]
}

@test "status tells that nvidia-smi fails, and that nothing arrives though nothing fails" {
    export GPUBOARD_LIMIT=1 # what has not arrived for three seconds is missing
    printf 'No devices were found\n' >"$SMI/say"
    echo 6 >"$SMI/rc"
    start
    run "$CHECK" status
    [ "$status" = 0 ]
    [[ $output == *'nvidia-smi fails (exit 6): No devices were found'* ]]
    exec 6>>"$SPOOL/run/push"
    flock 6 # as a push that hangs in the kernel would
    silent() { "$CHECK" status | grep -q "push         nothing has arrived at $TMP/data for"; }
    wait_until silent
    fails "$CHECK" status >/dev/null
    exec 6>&-
    wait_until up_and_fresh
}

@test "a tick that cannot write its snapshot does not count as one" {
    export GPUBOARD_LIMIT=1 # so that it hangs after three seconds
    start
    mv "$TMP/scripts/lib/sanitize.awk" "$TMP/hidden.awk"
    hangs() { "$CHECK" status gpu1 | grep -A1 '1 GPUs       hangs' | grep -q 'message: .*sanitize.awk'; }
    wait_until hangs
    mv "$TMP/hidden.awk" "$TMP/scripts/lib/sanitize.awk"
    wait_until up_and_fresh
}

@test "status and kill make nothing, and tell which names there are" {
    run "$CHECK" status
    [ "$status" = 1 ]
    [[ $output == *'the loops have never been started here'* ]]
    [ ! -e "$TMP/spool" ]
    start
    for verb in status kill; do
        run "$CHECK" "$verb" gpu7
        [ "$status" = 1 ]
        [[ $output == *'the loops have never been started here for gpu7 (only for: gpu1'* ]]
        [ ! -e "$TMP/spool/gpu7" ]
    done
    run "$CHECK" status gpu1 extra
    [ "$status" = 2 ]
    run "$CHECK" --conf
    [ "$status" = 2 ]
    [[ $output == *'--conf needs a file'* ]]
}

@test "a call with another destination starts the loops anew, towards it" {
    start
    mkdir "$TMP/elsewhere"
    "$CHECK" gpu1 "$TMP/elsewhere"
    wait_until test -e "$TMP/elsewhere/gpu1/gpus.csv"
    wait_until up_and_fresh
    "$CHECK" status gpu1 | grep -q "at $TMP/elsewhere"
}

@test "a destination that can never work is refused at once" {
    for dest in relative '"/quoted"' consul://127.0.0.1:8500; do
        run "$CHECK" gpu1 "$dest"
        [ "$status" = 2 ]
        [[ $output == *"GPUBOARD_DEST is '$dest'"* ]]
    done
    [ ! -e "$TMP/spool" ]
}

@test "a destination that is broken in the settings file under running loops is told" {
    printf 'GPUBOARD_DEST=%s/data\n' "$TMP" >"$TMP/my.conf"
    env -u GPUBOARD_DEST "$CHECK" --conf "$TMP/my.conf" gpu1
    wait_until test -e "$DATA/host.txt"
    echo 'GPUBOARD_DEST=nowhere' >"$TMP/my.conf"
    wait_until grep -qs "GPUBOARD_DEST is 'nowhere'" "$SPOOL/push.failed"
    fails env -u GPUBOARD_DEST "$CHECK" status --conf "$TMP/my.conf" gpu1 >/dev/null
}

@test "once to another place does not pass for the loops' own push" {
    export GPUBOARD_DEST=$TMP/share
    "$CHECK" gpu1
    wait_until test -s "$SPOOL/push.failed"
    GPUBOARD_DEST=$TMP/data "$RUN_SH" once
    fails "$CHECK" status gpu1 >/dev/null
}

# bats test_tags=shell
@test "kill ends a hanging nvidia-smi, a stubborn one too" {
    echo 60 >"$SMI/sleep"
    touch "$SMI/stubborn"
    "$CHECK" gpu1
    wait_until test -s "$SMI/calls"
    "$CHECK" kill
    nothing_left
}

@test "kill ends a push that hangs" {
    printf '#!/bin/sh\ncase $* in *.new/*) sleep 60 ;; esac\nexec /bin/cp "$@"\n' >"$TMP/bin/cp"
    chmod +x "$TMP/bin/cp"
    "$CHECK" gpu1
    wait_until pgrep -f "$TMP/bin/cp" >/dev/null
    "$CHECK" kill
    nothing_left
}

@test "kill also finds what a loop that was killed with -9 has left" {
    export GPUBOARD_GPUS_EVERY=30
    start
    kill -9 "$(loop_pid 1)" "$(loop_pid 2)" "$(loop_pid 3)"
    "$CHECK" kill
    nothing_left
}

@test "kill without a name ends the loops of every name, with a name only those" {
    "$CHECK" gpu1
    "$CHECK" gpu2
    "$CHECK" kill gpu2
    wait_until up_and_fresh
    run "$CHECK" status gpu2
    [ "$status" = 1 ]
    "$CHECK" kill
    nothing_left
}

@test "kill does not harm a person who reads the snapshots" {
    start
    tail -f "$SPOOL/gpus.csv" >/dev/null &
    "$CHECK" kill
    kill -0 $!
}

@test "status tells where the loops stand and why a push fails" {
    export GPUBOARD_DEST=$TMP/share
    "$CHECK" gpu1
    wait_until test -s "$SPOOL/push.failed"
    run "$CHECK" status gpu1
    [ "$status" = 1 ]
    [[ $output == *"push         fails: the folder $TMP/share does not exist (not mounted?)"* ]]
    [[ $output == gpu1:* ]]
    mkdir "$TMP/share"
    wait_until up_and_fresh
    run "$CHECK" status gpu1
    [[ $output == *'push         last arrived'* ]]
}

@test "a loop started by hand counts, and is not started twice" {
    "$RUN_SH" 1 &
    wait_until test -s "$SPOOL/run/1"
    "$CHECK" gpu1
    [ "$(pgrep -cf "$TMP/scripts/gpu-run.sh 1\$")" = 1 ]
    run "$RUN_SH" 1
    [ "$status" = 2 ]
    [[ $output == *'the loop of task 1 is already running for gpu1'* ]]
}

# bats test_tags=shell
@test "a spool that is removed under the loops comes back, with three loops" {
    start
    remove_spool
    "$CHECK" gpu1
    wait_until up_and_fresh
    three() { [ "$(pgrep -cf "$TMP/scripts/gpu-run.sh [123]\$")" = 3 ]; }
    wait_until three
}

# bats test_tags=shell
@test "cron's bare environment is enough: PATH alone, no HOME" {
    mkdir -p "$TMP/home/.config/gpuboard"
    run env -i PATH=/usr/bin:/bin GPUBOARD_SPOOL="$TMP/spool" "$CHECK" gpu1 "$TMP/data"
    [ "$status" = 0 ]
    [ -z "$output" ]
    wait_until test -e "$DATA/host.txt"
    wait_until env -i PATH=/usr/bin:/bin GPUBOARD_SPOOL="$TMP/spool" "$CHECK" status gpu1
}

# bats test_tags=quick,shell
@test "a host name that is none is refused, and nothing is written" {
    for name in '../x' 'a/b' 'a;b' 'a b' '-x' '.hidden' 'ü' "$(printf 'a%.0s' {1..64})"; do
        run "$CHECK" "$name" "$TMP/data"
        [ "$status" = 2 ]
        run env HOST="$name" "$RUN_SH" once
        [ "$status" = 2 ]
        [[ $output == *"'$name' is not a host name"* ]]
        [ ! -e "$TMP/spool" ]
    done
}

@test "a destination given in the call wins over the environment, and that over the file" {
    printf 'GPUBOARD_DEST=%s/from-file\nGPUBOARD_PS_EVERY=1\n' "$TMP" >"$TMP/my.conf"
    mkdir "$TMP/from-file" "$TMP/from-env" "$TMP/from-call"
    env -u GPUBOARD_DEST "$CHECK" --conf "$TMP/my.conf" gpu1
    wait_until test -e "$TMP/from-file/gpu1/host.txt"
    "$CHECK" kill
    GPUBOARD_DEST=$TMP/from-env "$CHECK" --conf "$TMP/my.conf" gpu1
    wait_until test -e "$TMP/from-env/gpu1/host.txt"
    "$CHECK" kill
    GPUBOARD_DEST=$TMP/from-env "$CHECK" --conf "$TMP/my.conf" gpu1 "$TMP/from-call"
    wait_until test -e "$TMP/from-call/gpu1/host.txt"
}

@test "a change of the settings file counts from the next round on" {
    printf 'GPUBOARD_DEST=%s/one\nGPUBOARD_LIMIT=7\n' "$TMP" >"$TMP/my.conf"
    mkdir "$TMP/one" "$TMP/two"
    env -u GPUBOARD_DEST -u GPUBOARD_LIMIT "$CHECK" --conf "$TMP/my.conf" gpu1
    wait_until test -e "$TMP/one/gpu1/host.txt"
    printf 'GPUBOARD_DEST=%s/two\nGPUBOARD_LIMIT=1\n' "$TMP" >"$TMP/my.conf"
    echo 60 >"$SMI/sleep"
    wait_until test -e "$TMP/two/gpu1/host.txt"
    wait_until grep -q 'did not answer within 1 s' "$TMP/two/gpu1/gpus.csv"
}

# bats test_tags=quick,shell
@test "the settings file is never executed" {
    cat >"$TMP/gpuboard.conf" <<EOF
# a comment
GPUBOARD_DEST=$TMP/\$(touch $TMP/executed)\`touch $TMP/executed\`
GPUBOARD_LIMIT=3
PATH=/nowhere
GPUBOARD_X;touch $TMP/executed=1
touch $TMP/executed
EOF
    run env -u GPUBOARD_DEST -u GPUBOARD_LIMIT "$RUN_SH" once
    [ ! -e "$TMP/executed" ]
    [[ $output == *"$TMP/\$(touch"* ]]
}

# bats test_tags=root
@test "a settings file of another user in the folder where we happen to be is left alone" {
    need_root
    printf 'GPUBOARD_DEST=%s/elsewhere\n' "$TMP" >"$TMP/gpuboard.conf"
    chown 65534 "$TMP/gpuboard.conf"
    run env -u GPUBOARD_DEST "$RUN_SH" once
    [ "$status" = 2 ]
    [[ $output == *"$TMP/gpuboard.conf belongs to another user and is ignored"* ]]
}

# bats test_tags=shell
@test "settings that cannot be right are refused by name" {
    for line in 'GPUBOARD_DEST =/x' 'GPUBOARD_DEST= /x'; do
        printf '  # an indented comment\n%s\n' "$line" >"$TMP/blank.conf"
        run env -u GPUBOARD_DEST "$CHECK" --conf "$TMP/blank.conf" gpu1
        [ "$status" = 2 ]
        [[ $output == *"$TMP/blank.conf: no spaces around = in '$line'"* ]]
    done
    for setting in GPUBOARD_LIMIT=0 GPUBOARD_PS_EVERY=ten GPUBOARD_GPUS_EVERY=-1 GPUBOARD_SPOOL=spool "GPUBOARD_SPOOL=/a b" "GPUBOARD_CONF=$TMP/none"; do
        run env "$setting" "$RUN_SH" once
        [ "$status" = 2 ]
        [[ $output == *"${setting%%=*}"* || $output == *"$TMP/none"* ]]
    done
}

# bats test_tags=root
@test "a spool folder that somebody else has put there is refused" {
    need_root
    mkdir "$TMP/spool"
    chown 65534 "$TMP/spool"
    run "$RUN_SH" once
    [ "$status" = 2 ]
    [[ $output == *'is not a folder of this user'* ]]
    mkdir -p "$TMP/spool/gpu1/run"
    run "$RUN_SH" once
    [ "$status" = 2 ]
    rm -r "$TMP/spool"
    mkdir "$TMP/theirs"
    ln -s "$TMP/theirs" "$TMP/spool"
    run "$RUN_SH" once
    [ "$status" = 2 ]
}

@test "a clock that is set back troubles nobody" {
    command -v faketime >/dev/null || missing 'faketime is not installed'
    echo '+0' >"$TMP/clock"
    preload=$(faketime -f '+0' env | sed -n 's/^LD_PRELOAD=//p')
    LD_PRELOAD=$preload FAKETIME_TIMESTAMP_FILE=$TMP/clock FAKETIME_NO_CACHE=1 FAKETIME_DONT_FAKE_MONOTONIC=1 "$CHECK" gpu1
    wait_until up_and_fresh
    before="$(loop_pid 1) $(loop_pid 2) $(loop_pid 3)"
    echo '-3600' >"$TMP/clock"
    old() { [ "$(sed -n '1s/.* time=\([0-9]*\) .*/\1/p' "$DATA/gpus.csv")" -lt $(($(date +%s) - 3000)) ]; }
    read -r asked rest <"$SPOOL/clock" # it is asked once a minute: this one has passed
    echo "$((asked - 60)) $rest" >"$TMP/asked" && mv "$TMP/asked" "$SPOOL/clock"
    wait_until old # the snapshots go on, and arrive
    "$CHECK" gpu1
    wait_until up_and_fresh
    [ "$before" = "$(loop_pid 1) $(loop_pid 2) $(loop_pid 3)" ]
}

# bats test_tags=shell,root
@test "a full disk of the spool sends nothing new, and all is well when it has room again" {
    on_a_small_spool <<'EOF'
"$RUN_SH" once
first=$(arrival)
fill
"$CHECK" gpu1 2>/dev/null || :
for file in "$GPUBOARD_DEST"/gpu1/*.*; do [ "$(tail -n 1 "$file")" = '# end' ]; done
[ "$first" = "$(arrival)" ]
fails "$CHECK" status gpu1 >/dev/null
empty
"$CHECK" gpu1 || :
is_well() { "$CHECK" status gpu1 >/dev/null && [ "$first" != "$(arrival)" ]; }
wait_until is_well
"$CHECK" kill
EOF
}

# bats test_tags=root
@test "two hosts that share a home and one settings file keep apart" {
    need_root
    mkdir -p "$TMP/home/.config/gpuboard"
    printf 'GPUBOARD_DEST=%s\nGPUBOARD_PS_EVERY=1\n' "$TMP/data" >"$TMP/home/.config/gpuboard/gpuboard.conf"
    unset GPUBOARD_SPOOL GPUBOARD_DEST HOST
    for host in alpha beta; do
        mkdir "$TMP/$host" # each machine has its own /var/tmp, as it has its own name
        unshare -m -u sh -c "hostname $host.example.org && mount --bind $TMP/$host /var/tmp && exec $CHECK"
    done
    wait_until test -e "$TMP/data/alpha/host.txt" -a -e "$TMP/data/beta/host.txt"
    has "$TMP/data/alpha/host.txt" ' host=alpha '
    has "$TMP/data/beta/host.txt" ' host=beta '
    [ -d "$TMP/alpha/gpuboard-0/alpha" ]
    unshare -m -u sh -c "hostname alpha && mount --bind $TMP/alpha /var/tmp && exec $CHECK kill alpha"
    unshare -m -u sh -c "hostname beta && mount --bind $TMP/beta /var/tmp && exec $CHECK status"
    unshare -m -u sh -c "hostname beta && mount --bind $TMP/beta /var/tmp && exec $CHECK kill beta"
}
