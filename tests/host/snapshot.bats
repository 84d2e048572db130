#!/usr/bin/env bats
# What one snapshot promises, whatever nvidia-smi does.
load helper
# shellcheck disable=SC2034 # for bats: some tests take a snapshot of many machines
BATS_TEST_TIMEOUT=300

# bats test_tags=quick,shell
@test "one snapshot is four whole files, readable by owner and group alone" {
    "$RUN_SH" once
    whole "$DATA/gpus.csv" gpus 0
    whole "$DATA/processes.csv" processes 0
    whole "$DATA/ps.txt" ps 0
    whole "$DATA/host.txt" host 0
    [ "$(stat -c %a "$DATA"/*.csv "$DATA"/*.txt | sort -u)" = 640 ]
    [ "$(stat -c %a "$TMP/spool")" = 700 ]
}

@test "a snapshot replaces the one before and leaves nothing else behind" {
    "$RUN_SH" once
    before=$(find "$TMP/data" "$TMP/spool" | sort)
    "$RUN_SH" once
    [ "$before" = "$(find "$TMP/data" "$TMP/spool" | sort)" ]
    [ "$(find "$DATA" -type f | wc -l)" = 4 ]
}

@test "gpus.csv has a header with some 30 fields and a row for each GPU" {
    echo 8 >"$SMI/gpus"
    "$RUN_SH" once
    [ "$(sed -n 2p "$DATA/gpus.csv" | tr -cd , | wc -c)" -ge 29 ]
    has "$DATA/gpus.csv" 'index, uuid, name,'
    [ "$(grep -c '^[0-7], GPU-' "$DATA/gpus.csv")" = 8 ]
}

@test "every= in the header is the interval" {
    GPUBOARD_GPUS_EVERY=7 "$RUN_SH" once
    has "$DATA/gpus.csv" ' every=7 '
}

# bats test_tags=shell
@test "words on stderr become # err lines, and the exit code is told" {
    echo 'something is odd' >"$SMI/cry"
    echo 14 >"$SMI/rc"
    "$RUN_SH" once
    whole "$DATA/gpus.csv" gpus 14
    has "$DATA/gpus.csv" '# err something is odd'
    [ "$(grep -c '^[01], GPU-' "$DATA/gpus.csv")" = 2 ]
}

@test "lines that only look like ours do not pass for ours" {
    printf '# end\n# err made up\n0, GPU-1' >"$SMI/say"
    "$RUN_SH" once
    [ "$(grep -c '^# end' "$DATA/gpus.csv")" = 1 ]
    fails grep -q '^# err made up' "$DATA/gpus.csv"
    has "$DATA/gpus.csv" ' # err made up'
    has "$DATA/gpus.csv" '0, GPU-1'
    whole "$DATA/gpus.csv" gpus 0
}

@test "a missing nvidia-smi is a snapshot that says so, and exit 0" {
    rm "$TMP/bin/nvidia-smi"
    command -v nvidia-smi && missing 'this machine has a real nvidia-smi'
    "$RUN_SH" once
    whole "$DATA/gpus.csv" gpus 127
    has "$DATA/gpus.csv" '# err nvidia-smi was not found on this host'
    whole "$DATA/processes.csv" processes 127
    whole "$DATA/host.txt" host 0
}

# bats test_tags=quick,shell
@test "an nvidia-smi that hangs is stopped at the limit, and that is the snapshot" {
    export GPUBOARD_LIMIT=1
    echo 60 >"$SMI/sleep"
    "$RUN_SH" once
    whole "$DATA/gpus.csv" gpus 124
    has "$DATA/gpus.csv" '# err nvidia-smi did not answer within 1 s and was stopped'
    whole "$DATA/processes.csv" processes 124
    nothing_left
}

@test "an nvidia-smi that somebody else killed is told as that" {
    printf '#!/bin/sh\nkill -9 $$\n' >"$SMI/exec"
    chmod +x "$SMI/exec"
    "$RUN_SH" once
    whole "$DATA/processes.csv" processes 137
    has "$DATA/processes.csv" '# err nvidia-smi was killed'
}

# bats test_tags=shell
@test "an nvidia-smi that ignores a polite end is killed" {
    export GPUBOARD_LIMIT=1
    echo 60 >"$SMI/sleep"
    touch "$SMI/stubborn"
    "$RUN_SH" tick 1
    whole "$SPOOL/gpus.csv" gpus 137
    has "$SPOOL/gpus.csv" 'did not answer within 1 s'
}

# bats test_tags=root
@test "while an nvidia-smi cannot be killed no second one is started, and when it ends all is well again" {
    need_root
    # a process of another user is as deaf to our kill as one in the kernel; setpriv with the set-uid bit makes one
    install -m 4755 "$(command -v setpriv)" "$TMP/bin/as-root"
    printf '#!/bin/sh\necho $$ >"$SMI/stuck"\nexec as-root --reuid=0 --clear-groups sleep 60\n' >"$SMI/exec"
    chmod +x "$SMI/exec"
    open_to_others
    chown 65534 "$TMP/data" && chmod go-w "$TMP/data" # a folder in which others may write is refused
    export GPUBOARD_LIMIT=1
    local nobody=(setpriv --reuid=65534 --regid=65534 --clear-groups)
    "${nobody[@]}" "$RUN_SH" once
    stuck=$(cat "$SMI/stuck")
    kill -0 "$stuck"
    "${nobody[@]}" "$RUN_SH" once
    has "$DATA/gpus.csv" '# err an earlier nvidia-smi'
    has "$DATA/gpus.csv" 'hangs and cannot be killed; it is not started again'
    has "$DATA/processes.csv" 'hangs and cannot be killed; it is not started again'
    [ "$(wc -l <"$SMI/calls")" = 1 ]
    kill -9 "$stuck"
    rm "$SMI/exec"
    wait_until fails kill -0 "$stuck" 2>/dev/null
    "${nobody[@]}" "$RUN_SH" once
    whole "$DATA/gpus.csv" gpus 0
}

# bats test_tags=shell
@test "an nvidia-smi left hanging by a killed time limit is ended at the next try" {
    echo 60 >"$SMI/sleep"
    "$RUN_SH" tick 1 &
    wait_until test -s "$SMI/calls"
    pkill -9 -f "^timeout .* nvidia-smi --help-query-gpu" -P "$(pgrep -d, -f "^flock .*$TMP/spool/gpu1/run/nvidia-smi")"
    wait $!
    rm "$SMI/sleep"
    GPUBOARD_LIMIT=1 "$RUN_SH" once
    has "$DATA/gpus.csv" 'hung and was killed; the next interval tries again'
    GPUBOARD_LIMIT=1 "$RUN_SH" once
    whole "$DATA/gpus.csv" gpus 0
}

@test "an nvidia-smi that takes some seconds is waited for, also by the other task" {
    echo 3 >"$SMI/sleep"
    echo 'unknown
index,uuid,name' >"$TMP/fields"
    mkdir -p "$SPOOL" && cp "$TMP/fields" "$SPOOL/fields"
    "$RUN_SH" tick 1 &
    "$RUN_SH" tick 2
    wait $!
    whole "$SPOOL/gpus.csv" gpus 0
    whole "$SPOOL/processes.csv" processes 0
    grep -qE 'took_ms=([3-9]|[1-9][0-9])[0-9]{3} ' "$SPOOL/gpus.csv"
}

@test "many who ask at once wait for each other, and none is taken for one that hangs" {
    echo 2 >"$SMI/sleep"
    export GPUBOARD_LIMIT=10 # shorter than what the last ones wait
    local pids=
    for words in 'tick 1' 'tick 2' once; do
        # shellcheck disable=SC2086 # one word each
        "$RUN_SH" $words &
        pids="$pids $!"
    done
    "$RUN_SH" once
    wait $pids
    fails grep -E 'killed|did not answer' "$SPOOL"/*.csv
}

# bats test_tags=shell
@test "an answer with nothing in it is not an answer" {
    : >"$SMI/say"
    "$RUN_SH" once
    whole "$DATA/processes.csv" processes 74
    has "$DATA/processes.csv" '# err nvidia-smi printed nothing, not even column names'
}

# bats test_tags=shell,root
@test "once does not send an old snapshot as new when the spool's disk is full" {
    on_a_small_spool <<'EOF'
"$RUN_SH" once
first=$(arrival)
fill
code=0
"$RUN_SH" once 2>"$TMP/said" || code=$?
[ "$code" = 2 ]
[ "$first" = "$(arrival)" ]
EOF
    has "$TMP/said" 'is its disk full?'
}

@test "endless output is cut off before it fills the disk" {
    printf '#!/bin/sh\nexec yes "0, GPU-00000000"\n' >"$SMI/exec"
    chmod +x "$SMI/exec"
    "$RUN_SH" once
    [ "$(du -sk "$TMP/spool" | cut -f1)" -lt 40000 ]
    grep -qE '^# gpuboard .* rc=[1-9]' "$DATA/gpus.csv"
    has "$DATA/gpus.csv" '# err output larger than 4 MiB; the rest is omitted'
    [ "$(tail -n 1 "$DATA/processes.csv")" = '# end' ]
}

# exit_code FILE: the one in the name of a sample.
exit_code() { basename "$1" | sed 's/^rc\([0-9]*\)-.*/\1/'; }

@test "each error text of nvidia-smi is passed on whole, with its exit code" {
    local text
    echo 9 >"$SMI/rc"
    for text in "$SAMPLES"/nvidia/errors/* $(captures 'errors/*'); do
        [ -s "$text" ] || continue # which has a test of its own
        cp -f "$text" "$SMI/say"
        "$RUN_SH" tick 1
        whole "$SPOOL/gpus.csv" gpus 9
        sed -e '1d' -e '$d' "$SPOOL/gpus.csv" | grep -v '^# err' | diff --strip-trailing-cr - <(awk 1 "$text")
    done
}

@test "a lost GPU costs neither the others nor its own words" {
    local text bundle
    for text in "$SAMPLES"/nvidia/gpus/rc*-handle-*; do
        cp -f "$text" "$SMI/say"
        exit_code "$text" >"$SMI/rc"
        "$RUN_SH" tick 1
        whole "$SPOOL/gpus.csv" gpus "$(exit_code "$text")"
        [ "$(grep -cE '^[02], GPU-' "$SPOOL/gpus.csv")" = 2 ]
        has "$SPOOL/gpus.csv" 'Unable to determine the device handle for '
    done
    for bundle in $(captures 'bundles/*h100-80gb*'); do
        replay "$bundle"
        rm -rf "$SPOOL"
        REPLAY_GPUS=8 REPLAY_FAIL=lost "$RUN_SH" once
        whole "$DATA/gpus.csv" gpus 255
        [ "$(grep -cE '^[1-7], GPU-' "$DATA/gpus.csv")" = 7 ]
        has "$DATA/gpus.csv" 'Unable to determine the device handle for GPU0'
    done
}

@test "machines of all drivers answer with every field that they know" {
    local text bundle
    export GPUBOARD_NVIDIA=csv
    for text in "$SAMPLES"/nvidia/gpus/[0-9]*; do
        machine "$(basename "$text" .csv)"
        rm -rf "$SPOOL"
        "$RUN_SH" tick 1
        "$RUN_SH" tick 2
        whole "$SPOOL/gpus.csv" gpus 0
        whole "$SPOOL/processes.csv" processes 0
        sed '1d; $d; 2s/ \[[^]]*\]//g' "$SPOOL/gpus.csv" | diff - "$SMI/table"
        [ "$(grep -c '^GPU-' "$SPOOL/processes.csv")" = "$(grep -c '^GPU-' "$SMI/apps")" ]
    done
    for bundle in $(captures 'bundles/*linux*'); do
        rm -rf "$SPOOL"
        replay "$bundle"
        "$RUN_SH" once
        whole "$DATA/gpus.csv" gpus 0
        whole "$DATA/processes.csv" processes 0
        has "$DATA/gpus.csv" 'clocks_event_reasons.active'
        [ "$(sed -n 2p "$DATA/gpus.csv" | tr -cd , | wc -c)" -ge 39 ]
        [ "$(sed -n 2p "$DATA/gpus.csv" | tr -cd , | wc -c)" = "$(sed -n 3p "$DATA/gpus.csv" | tr -cd , | wc -c)" ]
    done
}

@test "the version of the driver is that of nvidia-smi" {
    machine 590-h200
    "$RUN_SH" once
    grep -qE '^driver=590\.48$' "$DATA/host.txt"
}

@test "failures of nvidia-smi are pushed as they are, with exit 0" {
    local name fail bundle
    for name in rc9-driver-not-loaded rc18-library-mismatch-new rc6-no-devices; do
        cp -f "$SAMPLES/nvidia/errors/$name.txt" "$SMI/say"
        exit_code "$name" >"$SMI/rc"
        "$RUN_SH" once
        whole "$DATA/gpus.csv" gpus "$(exit_code "$name")"
    done
    has "$DATA/gpus.csv" 'No devices were found'
    for bundle in $(captures 'bundles/*h200*'); do
        replay "$bundle"
        for fail in driver:9 mismatch:18 nodevices:6; do
            REPLAY_FAIL=${fail%:*} "$RUN_SH" once
            whole "$DATA/gpus.csv" gpus "${fail#*:}"
        done
        has "$DATA/gpus.csv" 'No devices were found'
    done
}
