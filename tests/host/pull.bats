#!/usr/bin/env bats
# What `gpuboard pull` runs on a host, by the stdin of each shell that can be there; tests/remote/test_fetch_ssh.py has the rest.
load helper

setup() {
    helper_setup
    mkdir -p "$HOME/.local/share/gpuboard"
    ln -s "$TMP/scripts" "$HOME/.local/share/gpuboard/scripts"
    unset GPUBOARD_DEST GPUBOARD_SPOOL
}

# talk ROUNDS: hands pull.sh to the shell, asks so many times, and leaves what it said in $TMP/said.
talk() {
    coproc SHELL_THERE { exec "$SH"; }
    pid=$SHELL_THERE_PID
    local from=${SHELL_THERE[0]} to=${SHELL_THERE[1]} line round
    { echo 'patience=60' && cat "$TMP/scripts/lib/pull.sh"; } >&"$to"
    read -r -t "$WAIT_LIMIT" line <&"$from"
    if [ "$line" = 'gpuboard-pull scripts' ]; then
        tar czf "$TMP/scripts.tar.gz" -C "$TMP/scripts" .
        { wc -c && cat "$TMP/scripts.tar.gz"; } <"$TMP/scripts.tar.gz" >&"$to"
        read -r -t "$WAIT_LIMIT" line <&"$from"
    fi
    [ "$line" = 'gpuboard-pull ready' ]
    for ((round = 0; round < $1; round++)); do echo go >&"$to"; done
    exec {to}>&-
    cat <&"$from" >"$TMP/said"
    wait "$pid"
}

# bats test_tags=quick,shell
@test "each go is answered by one snapshot, and then nothing is left" {
    talk 2
    [ "$(grep -c '^gpuboard-pull files 0 [0-9]* [0-9]* [0-9]* [0-9]* 0$' "$TMP/said")" = 2 ]
    [ "$(grep -c '^# gpuboard 1 task=host host=gpu1 ' "$TMP/said")" = 2 ]
    [ "$(grep -c '^# end$' "$TMP/said")" = 8 ]
    wait_until test ! -e "/var/tmp/gpuboard-pull-$(id -u)/$pid"
    [ ! -e "$SPOOL" ]
}

# bats test_tags=shell
@test "where nothing is installed it asks for the scripts, and leaves none" {
    rm "$HOME/.local/share/gpuboard/scripts"
    talk 1
    grep -q '^gpuboard-pull files 0 ' "$TMP/said"
    [ -e "$TMP/scripts.tar.gz" ]
    wait_until test ! -e "/var/tmp/gpuboard-pull-$(id -u)/$pid"
    [ -z "$(ls -A "$HOME/.local/share/gpuboard")" ]
}

# bats test_tags=shell
@test "a failure of the snapshot is told with its reason" {
    export GPUBOARD_GPUS_EVERY=never
    talk 1
    has "$TMP/said" 'gpuboard-pull files 2 '
    has "$TMP/said" "GPUBOARD_GPUS_EVERY is 'never'"
}

# bats test_tags=shell
@test "where a tool of ours is missing, plain commands tell what they can" {
    mkdir "$TMP/few"
    for tool in cat date dd grep id ps sed sh timeout awk dirname readlink; do ln -s "$(command -v "$tool")" "$TMP/few/$tool"; done
    ln -s "$TMP/bin/nvidia-smi" "$TMP/few/nvidia-smi"
    sed -i "s|^export LC_ALL=C PATH=.*|export LC_ALL=C PATH=$TMP/few|" "$TMP/scripts/lib/pull.sh"
    talk 1
    grep -qE '^gpuboard-pull plain [0-9]{10} 0 0 [0-9]+ [0-9]+ 0 [0-9]+$' "$TMP/said"
    has "$TMP/said" 'NVIDIA A100-SXM4-80GB'
    has_not "$TMP/said" '# gpuboard'
}

# bats test_tags=shell
@test "a web host that falls silent is taken for gone" {
    coproc SHELL_THERE { exec "$SH"; }
    pid=$SHELL_THERE_PID
    { echo 'patience=1' && cat "$TMP/scripts/lib/pull.sh"; } >&"${SHELL_THERE[1]}"
    wait_until gone "$pid"
    wait_until test ! -e "/var/tmp/gpuboard-pull-$(id -u)/$pid"
    # as a forced command, too, it is as patient as the web host says, which may come once an hour
    coproc FORCED { exec "$SH" "$TMP/scripts/lib/pull.sh" gpu1; }
    pid=$FORCED_PID
    printf 'export HOST=x GPUBOARD_LIMIT=5\npatience=1\nmain\n' >&"${FORCED[1]}"
    wait_until gone "$pid"
}
