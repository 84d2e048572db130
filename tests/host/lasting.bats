#!/usr/bin/env bats
# What shows only with time: many ticks, and cron.
load helper
# shellcheck disable=SC2034 # for bats
BATS_TEST_TIMEOUT=300

# print_sizes: each file, and its bytes.
print_sizes() { find "$TMP/spool" "$TMP/data" -type f -printf '%p %s\n' | sort; }

# tick_and_push: all tasks, one after the other, with what they do once a minute.
tick_and_push() {
    rm -f "$SPOOL/minute.time" "$SPOOL/clock"
    "$RUN_SH" tick 1
    "$RUN_SH" tick 2
    run_whole "$RUN_SH" tick 3
    "$RUN_SH" once
}

@test "after many ticks none of the files has grown, and none is left over" {
    local ticks=20
    for _ in 1 2 3; do tick_and_push; done
    print_sizes >"$TMP/before"
    for _ in $(seq $ticks); do tick_and_push; done
    print_sizes >"$TMP/after"
    diff <(cut -d' ' -f1 "$TMP/before") <(cut -d' ' -f1 "$TMP/after")
    # less than a byte a tick: a number with a digit more
    join "$TMP/before" "$TMP/after" | awk -v most="$ticks" '$3 - $2 >= most {print; grown = 1} END {exit grown}'
}

# bats test_tags=root
@test "real cron starts the loops with the line of crontab.example, and starts a killed one again" {
    need_root
    command -v cron >/dev/null || missing 'cron is not installed'
    command -v faketime >/dev/null || missing 'faketime is not installed'
    # a cron of its own, which sees nothing of this machine's crontabs
    mkdir "$TMP/crontabs" "$TMP/run" "$TMP/empty"
    sed -n "s|^\(\* .*\)/SCRIPTS/gpu-check.sh HOST DEST|\1$CHECK gpu1 $TMP/data|p" "$BATS_TEST_DIRNAME/../../crontab.example" >"$TMP/crontabs/root"
    [ "$(wc -l <"$TMP/crontabs/root")" = 1 ]
    sed -i "1i GPUBOARD_SPOOL=$TMP/spool\nMAILTO=\"\"" "$TMP/crontabs/root"
    chmod 600 "$TMP/crontabs/root"
    : >"$TMP/crontab"
    unshare -m sh -c "mount --bind $TMP/crontabs /var/spool/cron/crontabs && mount --bind $TMP/run /run && mount --bind $TMP/empty /etc/cron.d &&
        mount --bind $TMP/crontab /etc/crontab && exec faketime -f '+0 x20' cron -f" 3>&- & # its minutes have three seconds; its jobs live in ours
    wait_until test -e "$DATA/host.txt"
    old=$(print_loop_state 1 1)
    wait_until kill -0 "$old"
    kill -9 "$old"
    again() { [ "$(print_loop_state 1 1)" != "$old" ] && kill -0 "$(print_loop_state 1 1)"; }
    wait_until again
}
