#!/usr/bin/env bats
# What shows only with time: a thousand ticks, and cron.
load helper

# sizes: how many files there are, and how many KiB in all.
sizes() { find "$TMP/spool" "$TMP/data" -type f -printf '%s\n' | awk '{s += $1} END {print NR, int(s / 1024 + 0.5)}'; }

@test "after a thousand ticks no file has grown and none is left over" {
    for _ in 1 2 3; do "$RUN_SH" once; done
    before=$(sizes)
    ticks=1000
    [ "${GPUBOARD_TEST_SHELL:-dash}" = dash ] || ticks=100 # a shell that leaves something shows it sooner
    for _ in $(seq $ticks); do "$RUN_SH" once; done
    echo "$before before, $(sizes) after" >&2
    [ "${before% *}" = "$(sizes | cut -d' ' -f1)" ]
    [ $(($(sizes | cut -d' ' -f2) - ${before#* })) -le 1 ]
}

# bats test_tags=any-shell
@test "real cron starts the loops with the line of crontab.example, and starts a killed one again" {
    need_root
    command -v cron >/dev/null || missing 'cron is not installed'
    # a cron of its own, which sees nothing of this machine's crontabs
    mkdir "$TMP/crontabs" "$TMP/run" "$TMP/empty"
    sed -n "s|^\(\* .*\)/SCRIPTS/gpu-check.sh HOST DEST|\1$CHECK gpu1 $TMP/data|p" "$BATS_TEST_DIRNAME/../../crontab.example" >"$TMP/crontabs/root"
    [ "$(wc -l <"$TMP/crontabs/root")" = 1 ]
    sed -i "1i GPUBOARD_SPOOL=$TMP/spool\nMAILTO=\"\"" "$TMP/crontabs/root"
    chmod 600 "$TMP/crontabs/root"
    : >"$TMP/crontab"
    unshare -m sh -c "mount --bind $TMP/crontabs /var/spool/cron/crontabs && mount --bind $TMP/run /run && mount --bind $TMP/empty /etc/cron.d &&
        mount --bind $TMP/crontab /etc/crontab && exec cron -f" 3>&- &
    # shellcheck disable=SC2034 # teardown ends it
    STARTED=$!
    within 75 test -e "$DATA/host.txt"
    old=$(cut -d' ' -f1 "$SPOOL/run/1")
    within 5 kill -0 "$old"
    kill -9 "$old"
    again() { [ "$(cut -d' ' -f1 "$SPOOL/run/1")" != "$old" ] && kill -0 "$(cut -d' ' -f1 "$SPOOL/run/1")"; }
    within 75 again
}
