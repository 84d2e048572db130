#!/usr/bin/env bats
# host.txt: the machine itself.
load helper

value() { sed -n "s/^$1=//p" "$SPOOL/host.txt"; }

# bats test_tags=quick,shell
@test "host.txt tells load, CPUs, memory, uptime, kernel, driver, version, zone, disks and addresses" {
    "$RUN_SH" tick 1
    "$RUN_SH" tick 3
    whole "$SPOOL/host.txt" host 0
    [[ $(value load) =~ ^[0-9.]+\ [0-9.]+\ [0-9.]+$ ]]
    [ "$(value cpus)" = "$(getconf _NPROCESSORS_ONLN)" ]
    [ "$(value memory_total)" = "$(free -m | awk '/^Mem/ {print $2}')" ]
    [ "$(value memory_available)" -gt 0 ]
    [ "$(value uptime)" -gt 0 ]
    [ "$(value kernel)" = "$(uname -r)" ]
    [ "$(value driver)" = 590.48.01 ]
    [[ $(value collector) =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]]
    [ "$(value zone)" = "$(date '+%z %Z')" ]
    value disk | grep -qE '^[0-9]+ [0-9]+ /$'
}

@test "addresses are those that others can reach" {
    "$RUN_SH" tick 3
    fails grep -q '^interface=lo ' "$SPOOL/host.txt"
    for address in $(ip -o addr show up scope global | awk '$2 !~ /^(docker|br-|virbr|veth)/ {print $4}'); do has "$SPOOL/host.txt" " $address"; done
}

@test "disks are told once each, with spaces in their names, and none that is not one" {
    cat >"$TMP/bin/df" <<'EOF'
#!/bin/sh
cat <<'END'
Filesystem     Type     1024-blocks      Used Available Capacity Mounted on
/dev/nvme0n1p2 ext4       102400000  51200000  51200000      50% /
/dev/nvme0n1p1 vfat          523248      5976    517272       2% /boot/efi
tmpfs          tmpfs       65536000         0  65536000       0% /dev/shm
/dev/loop3     squashfs       65536     65536         0     100% /snap/core/1
/dev/md0       xfs      10240000000 1024000000 9216000000    10% /data/my things
/dev/md0       xfs      10240000000 1024000000 9216000000    10% /srv/again
tank/home      zfs       2048000000   1024000 2046976000       1% /home
overlay        overlay   102400000  51200000  51200000      50% /var/lib/docker/overlay2/x/merged
END
EOF
    chmod +x "$TMP/bin/df"
    "$RUN_SH" tick 3
    [ "$(value disk)" = '100000 50000 /
10000000 1000000 /data/my things
2000000 1000 /home' ]
}

# bats test_tags=shell
@test "a df that hangs is said and costs the disks alone" {
    printf '#!/bin/sh\nsleep 60\n' >"$TMP/bin/df"
    chmod +x "$TMP/bin/df"
    GPUBOARD_LIMIT=1 "$RUN_SH" tick 3
    whole "$SPOOL/host.txt" host 0
    has "$SPOOL/host.txt" '# err df did not answer within 1 s and was stopped'
    [ -z "$(value disk)" ]
    [ "$(value memory_total)" -gt 0 ]
}

# bats test_tags=shell
@test "disk use by person comes from the file that is configured, with its time" {
    printf '12G\t/local/alice\n1,5T\t/local/bob smith\n\n# note\n4.0K\t/local/\033[31mx\n' >"$TMP/du.txt"
    touch -d @1700000000 "$TMP/du.txt"
    GPUBOARD_DISK_USE=$TMP/du.txt "$RUN_SH" tick 3
    [ "$(value disk_use_time)" = 1700000000 ]
    [ "$(value disk_use)" = '12G /local/alice
1,5T /local/bob smith
4.0K /local/?[31mx' ]
}

@test "a disk-use file that hangs is told by what it is, and costs itself alone" {
    mkfifo "$TMP/du.txt"
    GPUBOARD_LIMIT=1 GPUBOARD_DISK_USE=$TMP/du.txt "$RUN_SH" tick 3
    whole "$SPOOL/host.txt" host 0
    has "$SPOOL/host.txt" '# err disk-use did not answer within 1 s and was stopped'
    [ -n "$(value disk)" ]
}

@test "a disk-use file that is not there is said, and no more" {
    GPUBOARD_DISK_USE=$TMP/none "$RUN_SH" tick 3
    whole "$SPOOL/host.txt" host 0
    has "$SPOOL/host.txt" "$TMP/none"
    [ -z "$(value disk_use_time)" ]
}

# bats test_tags=root
@test "hidepid, which hides other people's processes, is told" {
    need_root
    unshare -m sh -c "mount -t proc -o hidepid=2 proc /proc && $RUN_SH tick 3"
    [ "$(value hidepid)" = 2 ] || [ "$(value hidepid)" = invisible ]
}

@test "what cannot be read is left out, never 0" {
    mkdir "$TMP/proc"
    echo '50.0 1.0' >"$TMP/proc/uptime"
    GPUBOARD_PROC=$TMP/proc "$RUN_SH" tick 3
    whole "$SPOOL/host.txt" host 0
    fails grep -qE '^(load|memory_[a-z]*|kernel|driver)=' "$SPOOL/host.txt"
    [ "$(value uptime)" = 50 ]
}
