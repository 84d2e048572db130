# shellcheck shell=sh disable=SC2034,SC2154 # zone and more_errors: shared with the script that reads this one
# Task 3, second half: the machine itself, in host.txt: load, memory, disks, addresses, versions.

take_host() {
    begin_snapshot host
    driver= # task 1 keeps it, with the fields that it knows; where it asks for XML it knows none
    if [ -r "$SPOOL/fields" ]; then
        read -r driver <"$SPOOL/fields" || :
    elif [ -r /sys/module/nvidia/version ]; then
        read -r driver </sys/module/nvidia/version || :
    fi
    more_errors=$SPOOL/minute.err
    end_snapshot host host.txt 0 -v proc="$PROC" -v driver="$driver" -v zone="$zone" -v minute="$SPOOL/minute" -f "$LIB/snapshot.awk" -f "$LIB/keyvalue.awk" -f "$LIB/host.awk" </dev/null
}
