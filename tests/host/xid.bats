#!/usr/bin/env bats
# Xid errors in host.txt: from the kernel log, with the time, the GPU and the code of each.
load helper

LOGS=$SAMPLES/kernel-log

setup() {
    helper_setup
    cat >"$TMP/bin/journalctl" <<'END'
#!/bin/sh
echo "$*" >>"$SMI/journal-calls"
[ ! -e "$SMI/journal-hangs" ] || sleep 60
[ ! -e "$SMI/journal-cry" ] || cat "$SMI/journal-cry" >&2
[ ! -e "$SMI/journal" ] || cat "$SMI/journal"
exit "$(cat "$SMI/journal-rc" 2>/dev/null || echo 0)"
END
    chmod +x "$TMP/bin/journalctl"
}

# forbid_dmesg: as where kernel.dmesg_restrict is 1.
forbid_dmesg() {
    rm "$TMP/bin/dmesg"
    printf '#!/bin/sh\necho "dmesg: read kernel buffer failed: Operation not permitted" >&2\nexit 1\n' >"$TMP/bin/dmesg"
    chmod +x "$TMP/bin/dmesg"
}

# next_minute: takes the snapshot of the next minute.
next_minute() {
    rm -f "$SPOOL/minute.time"
    "$RUN_SH" tick 3
    whole "$SPOOL/host.txt" host 0
}

value() { sed -n "s/^$1=//p" "$SPOOL/host.txt"; }

# since_boot: the errors, with seconds since boot in the place of times; the clock and the uptime are read at different moments.
since_boot() {
    value xid | awk -v boot="$(($(date +%s) - $(cut -d. -f1 /proc/uptime)))" '
        function round(time) { time -= boot; return int((time + 5) / 10) * 10 }
        { $1 = round($1); $2 = round($2); print }'
}

# read_log NOW UP LINES: what is known after these lines of dmesg, NOW in seconds since 1970, UP since boot.
read_log() {
    { printf '%s\n' "$3" && echo '# end'; } | LC_ALL=C awk -v reader=dmesg -v boot=b -v now="$1" -v up="$2" -f "$TMP/scripts/lib/xid.awk" stage=known "$TMP/known" stage=log - >"$TMP/new"
    mv "$TMP/new" "$TMP/known"
    sed -n 's/^xid=//p' "$TMP/known"
}

# bats test_tags=quick
@test "Xid errors are told with their time, GPU and code, and without the process" {
    : >"$TMP/known"
    read_log 101000 1000 "$(cat "$LOGS/dmesg.txt")" >"$TMP/errors"
    diff "$TMP/errors" - <<'END'
100060 100060 2 0000:41:00 13 Graphics Exception: ESR 0x504730=0xc04000e 0x504734=0x20
100060 100060 1 0000:41:00 43 Ch 00000018
100120 100120 1 0000:c1:00 31 Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0 faulted @ 0x7f2b_57000000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ
100180 100180 1 0000:41:00 79 GPU has fallen off the bus.
100181 100181 1 0000:41:00 154 GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)
100900 100900 1 0000:41:00 13 Graphics Exception: ChID 0008, Class 0000c7c0
END
}

# bats test_tags=quick,shell
@test "an error of the kernel log has the time of the boot and the seconds since" {
    printf '[    1.000000] NVRM: Xid (PCI:0000:41:00): 79, GPU has fallen off the bus.\n' >"$SMI/dmesg"
    next_minute
    [ "$(value kernel_log)" = dmesg ]
    [ "$(since_boot)" = '0 0 1 0000:41:00 79 GPU has fallen off the bus.' ]
}

# bats test_tags=quick
@test "the form of older drivers is understood" {
    cp "$LOGS/dmesg-old.txt" "$SMI/dmesg"
    next_minute
    [ "$(value xid | cut -d' ' -f3-)" = '1 0000:03:00 14 Channel 00000001
1 0000:03:00 48 DBE (double bit error) ECC Error' ]
}

# bats test_tags=quick
@test "an error is told again with the same time when the log has forgotten it, and the clock was set" {
    cp "$LOGS/dmesg.txt" "$SMI/dmesg"
    next_minute
    before=$(value xid)
    read -r up offset zone <"$SPOOL/clock"
    echo "$up $((offset + 7200)) $zone" >"$SPOOL/clock"
    sed -i 1,11d "$SMI/dmesg"
    next_minute
    [ "$(value xid)" = "$before" ]
}

# bats test_tags=quick
@test "what comes again within ten minutes is counted for up to a day, and what comes later is another error" {
    : >"$TMP/known"
    line='NVRM: Xid (PCI:0000:41:00): 45, pid=7, Ch 00000010'
    [ "$(read_log 100000 1000 "[ 10.5] $line
[ 609.5] $line")" = '99010 99609 2 0000:41:00 45 Ch 00000010' ]
    [ "$(read_log 100100 1100 "[ 1050.5] $line")" = '99010 100050 3 0000:41:00 45 Ch 00000010' ]
    [ "$(read_log 101000 2000 "[ 1700.5] $line")" = '99010 100050 3 0000:41:00 45 Ch 00000010
100700 100700 1 0000:41:00 45 Ch 00000010' ]
    [ "$(for i in $(seq 200); do read_log $((101000 + i * 500)) $((2000 + i * 500)) "[ $((2000 + i * 500)).0] $line"; done | tail -n 2 | cut -d' ' -f3)" = '173
27' ]
}

# bats test_tags=quick
@test "no error is older than the last look: the kernel does not count the seconds for which a host sleeps" {
    : >"$TMP/known"
    [ -z "$(read_log 100000 1000 '[ 10.5] something else')" ]
    [ "$(read_log 200000 101000 '[ 1030.5] NVRM: Xid (PCI:0000:41:00): 79')" = '100030 100030 1 0000:41:00 79' ]
    [ "$(read_log 200060 101060 '[ 1090.5] NVRM: Xid (PCI:0000:41:00): 48' | tail -n 1)" = '200000 200000 1 0000:41:00 48' ]
}

# bats test_tags=quick
@test "in a container with an uptime of its own, the log of its host says how late it is" {
    : >"$TMP/known"
    line='NVRM: Xid (PCI:0000:41:00): 79'
    [ "$(read_log 100000 1000 "[500000.500000] $line
[503600.000000] docker0: port 1 entered forwarding state")" = '96400 96400 1 0000:41:00 79' ]
    [ "$(read_log 100060 1060 "[500000.500000] $line
[503600.000000] docker0: port 1 entered forwarding state
[503650.250000] ${line%79}48" | tail -n 1)" = '100060 100060 1 0000:41:00 48' ]
}

# bats test_tags=quick
@test "no known error is in the future: nobody knows how long ago it was logged before the clock was set back" {
    : >"$TMP/known"
    [ -n "$(read_log 100000 1000 '[ 900.5] NVRM: Xid (PCI:0000:41:00): 79')" ]
    [ "$(read_log 92000 2000 '[ 900.5] NVRM: Xid (PCI:0000:41:00): 79')" = '92000 92000 1 0000:41:00 79' ]
    [ "$(read_log 92060 2060 '[ 900.5] NVRM: Xid (PCI:0000:41:00): 79')" = '92000 92000 1 0000:41:00 79' ]
}

# bats test_tags=quick,shell
@test "a log without times is one that cannot be read" {
    printf 'Linux version 6.8.0\nNVRM: Xid (PCI:0000:41:00): 79, GPU has fallen off the bus.\n' >"$SMI/dmesg"
    printf '%s\n' "$(($(date +%s) - 60)).5 atlas kernel: NVRM: Xid (PCI:0000:41:00): 79" >"$SMI/journal"
    next_minute
    [ "$(value kernel_log)" = journalctl ]
    [ "$(value xid | cut -d' ' -f3-)" = '1 0000:41:00 79' ]
    echo 1 >"$SMI/journal-rc"
    next_minute
    [ "$(value kernel_log)" = unreadable ]
}

# bats test_tags=quick,shell
@test "an error has its time also where df took long" {
    mkdir "$TMP/spool" "$TMP/work"
    echo '[   60.5] NVRM: Xid (PCI:0000:41:00): 79' >"$SMI/dmesg"
    times=$(LIB=$TMP/scripts/lib SPOOL=$TMP/spool NEW=$TMP/work PROC=$TMP GPUBOARD_NVIDIA=auto "$SH" -c '
        set -eu
        . "$LIB/xid.sh"
        run_limited() { shift 2; "$@"; }
        up=1030 offset=100000 now=101000 # as read before and after the 30 s that df took
        update_xids
        sed -n "s/^xid=//p" "$SPOOL/xids"')
    [ "$times" = '100060 100060 1 0000:41:00 79' ]
}

# bats test_tags=shell
@test "after a reboot, the log is read from its beginning, and earlier errors stay" {
    mkdir -p "$TMP/proc/sys/kernel/random"
    echo '50.0 1.0' >"$TMP/proc/uptime"
    echo first >"$TMP/proc/sys/kernel/random/boot_id"
    export GPUBOARD_PROC=$TMP/proc
    echo '[   90.0] NVRM: Xid (PCI:0000:41:00): 79, GPU has fallen off the bus.' >"$SMI/dmesg"
    next_minute
    echo '[   20.0] NVRM: Xid (PCI:0000:c1:00): 48, DBE' >"$SMI/dmesg"
    next_minute
    [ "$(value xid | wc -l)" = 1 ] # older than what was read
    echo second >"$TMP/proc/sys/kernel/random/boot_id"
    next_minute
    [ "$(value xid | cut -d' ' -f3-)" = '1 0000:41:00 79 GPU has fallen off the bus.
1 0000:c1:00 48 DBE' ]
}

# bats test_tags=quick,shell
@test "where dmesg is forbidden, the journal is read, on from where it was read before" {
    forbid_dmesg
    now=$(date +%s)
    sed "s/^1773151/${now%???}/" "$LOGS/journalctl.txt" >"$SMI/journal"
    next_minute
    [ "$(value kernel_log)" = journalctl ]
    fails grep -q '# err' "$SPOOL/host.txt"
    [ "$(value xid | cut -d' ' -f3-)" = '1 0000:41:00 95 Uncontained: FBHUB_0. RST: Yes, D-RST: No
1 0000:41:00 154 GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)
1 0000:c1:00 119 Timeout after 6s of waiting for RPC response from GPU1 GSP! Expected function 76 (GSP_RM_CONTROL) (0x20802a02 0x4).' ]
    before=$(value xid)
    echo '-- No entries --' >"$SMI/journal"
    next_minute
    next_minute
    [ "$(value xid)" = "$before" ]
    [ "$(grep -c -e '--since=@' "$SMI/journal-calls")" = 1 ]
    [ "$(grep -c -e '--after-cursor=s=3f362ad815b948819c966dce82650fcf;i=18697;.*x=904ef8ce256f2f8 _TRANSPORT=kernel$' "$SMI/journal-calls")" = 2 ]
}

@test "a journal without a message of the kernel can be read" {
    forbid_dmesg
    echo '-- No entries --' >"$SMI/journal"
    echo 1 >"$SMI/journal-rc" # of journalctl --show-cursor
    next_minute
    [ "$(value kernel_log)" = journalctl ]
}

@test "a journal that does not know the cursor is read anew" {
    forbid_dmesg
    cp "$LOGS/journalctl.txt" "$SMI/journal"
    next_minute
    echo 'Failed to seek to cursor: Invalid argument' >"$SMI/journal-cry"
    echo 1 >"$SMI/journal-rc"
    : >"$SMI/journal"
    next_minute
    rm "$SMI/journal-cry" "$SMI/journal-rc"
    : >"$SMI/journal-calls"
    next_minute
    [ "$(value kernel_log)" = journalctl ]
    has "$SMI/journal-calls" '--since=@'
}

# bats test_tags=quick,shell
@test "a log that this user may not read is told in one value, and is no error" {
    forbid_dmesg
    for words in 'Hint: You are currently not seeing messages from other users and the system.' 'No journal files were found.' \
        'No journal files were opened due to insufficient permissions.'; do
        echo "$words" >"$SMI/journal-cry"
        echo '-- No entries --' >"$SMI/journal"
        next_minute
        [ "$(value kernel_log)" = unreadable ]
        fails grep -q '# err' "$SPOOL/host.txt"
        [ -z "$(value xid)" ]
    done
}

@test "errors that were read stay when the log can no longer be read" {
    cp "$LOGS/dmesg.txt" "$SMI/dmesg"
    next_minute
    before=$(value xid)
    forbid_dmesg
    echo 1 >"$SMI/journal-rc"
    next_minute
    [ "$(value kernel_log)" = unreadable ]
    [ "$(value xid)" = "$before" ]
}

# bats test_tags=quick
@test "a host without a GPU of NVIDIA reads no kernel log" {
    cp "$LOGS/dmesg.txt" "$SMI/dmesg"
    GPUBOARD_NVIDIA=no next_minute
    fails grep -q 'kernel_log' "$SPOOL/host.txt"
    fails grep -q 'xid' "$SPOOL/host.txt"
}

# bats test_tags=shell
@test "a journalctl that takes too long is told, and not called again for an hour" {
    export GPUBOARD_LIMIT=1
    forbid_dmesg
    : >"$SMI/journal-hangs"
    next_minute
    has "$SPOOL/host.txt" '# err journalctl did not answer within 1 s and was stopped'
    [ "$(value kernel_log)" = unreadable ]
    [ -n "$(value memory_total)" ]
    next_minute
    fails grep -q '# err' "$SPOOL/host.txt"
    [ "$(wc -l <"$SMI/journal-calls")" = 1 ]
    echo "$(($(cat "$SPOOL/xids.pause") - 3600))" >"$SPOOL/xids.pause"
    rm "$SMI/journal-hangs"
    next_minute
    [ "$(value kernel_log)" = journalctl ]
}

# bats test_tags=quick
@test "hostile lines are no errors, and hostile text is harmless" {
    cp "$LOGS/hostile.txt" "$SMI/dmesg"
    next_minute
    [ "$(value xid | cut -d' ' -f3-5)" = '1 0000:41:00 62
1 0000:41:00 999
1 0000:41:00 998
1 0000:41:00 997' ]
    [ "$(value xid | awk '$1 > '"$(($(date +%s) + 5))")" = '' ]
    fails grep -q '[^ -~]' <(value xid)
    fails grep -q -e 'red' -e pid= -e name= <(value xid)
    [ "$(value xid | awk '{print length($0)}' | sort -n | tail -n 1)" -le 250 ]
}

@test "the newest fifty of a week are told" {
    now=$(date +%s)
    forbid_dmesg
    {
        echo "$((now - 700000)).5 atlas kernel: NVRM: Xid (PCI:0000:41:00): 100, too old"
        for n in $(seq 60); do echo "$((now - 500000 + n * 1000)).5 atlas kernel: NVRM: Xid (PCI:0000:41:00): 13, $n"; done
    } >"$SMI/journal"
    next_minute
    [ "$(value xid | wc -l)" = 50 ]
    [ "$(value xid | head -n 1 | cut -d' ' -f3-)" = '1 0000:41:00 13 11' ]
    [ "$(value xid | tail -n 1 | cut -d' ' -f3-)" = '1 0000:41:00 13 60' ]
}

@test "under each awk the same errors are told" {
    local awk
    cat "$LOGS/dmesg.txt" "$LOGS/dmesg-old.txt" "$LOGS/hostile.txt" >"$SMI/dmesg"
    for awk in mawk gawk original-awk 'busybox awk'; do
        command -v "${awk%% *}" >/dev/null || missing "$awk is not here"
        printf '#!/bin/sh\nexec %s "$@"\n' "$awk" >"$TMP/bin/awk"
        chmod +x "$TMP/bin/awk"
        : >"$TMP/known"
        for now in 1800000000 4100000000; do # the second one needs more than 31 bits
            read_log "$now" 10000 "$(cat "$SMI/dmesg")" >"$TMP/told.$now"
            [ "$(wc -l <"$TMP/told.$now")" = 12 ]
            [ -e "$TMP/first.$now" ] || cp "$TMP/told.$now" "$TMP/first.$now"
            diff "$TMP/first.$now" "$TMP/told.$now"
            : >"$TMP/known"
        done
    done
}
