# shellcheck shell=sh disable=SC2034,SC2154 # zone and extra_error_file: shared with the script that reads this one
# Task 3, second half: load, memory, disks, addresses and versions of the machine, in host.txt.

# collect_host: write host.txt.
collect_host() {
    begin_snapshot host
    driver= # task 1 stores it with the fields, but not where it queries XML
    if [ -r "$SPOOL/fields" ]; then
        read -r driver <"$SPOOL/fields" || :
    elif [ -r /sys/module/nvidia/version ]; then
        read -r driver </sys/module/nvidia/version || :
    fi
    extra_error_file=$SPOOL/minute.err
    end_snapshot host host.txt 0 -v proc="$PROC" -v driver="$driver" -v zone="$zone" -v slow_facts="$SPOOL/minute" -v topology="$SPOOL/topology" -f "$LIB/snapshot.awk" -f "$LIB/key_value.awk" -f "$LIB/host.awk" </dev/null
}
