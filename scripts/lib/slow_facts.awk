# Print the facts of host.txt that change slowly, as key=value, from the output of df, ip, du and xid.awk, and from /proc and /sys.

# count_cpus: return the number of online CPUs, by /proc/stat.
function count_cpus(    line, sum) {
    while ((getline line < (proc "/stat")) > 0 && index(line, "cpu") == 1) sum++
    close(proc "/stat")
    return sum > 1 ? sum - 1 : "" # the first line is their sum
}

BEGIN {
    print_value("cpus", count_cpus())
    print_value("kernel", read_first_line(proc "/sys/kernel/osrelease"))
    print_value("collector", collector)
    print_value("kernel_log", kernel_log)
    # with hidepid, processes of other people have no user and no command: the page says why
    while ((getline line < (proc "/mounts")) > 0)
        if (line ~ /^[^ ]+ \/proc proc / && match(line, /hidepid=[^, ]+/) && substr(line, RSTART + 8, 1) != "0" && substr(line, RSTART + 8, 3) != "off")
            print_value("hidepid", substr(line, RSTART + 8, RLENGTH - 8))
}

# file systems that people may fill, each once: total, used (MiB), mount point
stage == "disks" && FNR > 1 && $2 !~ /^(tmpfs|devtmpfs|ramfs|squashfs|efivarfs|iso9660|autofs|fuse\..*|vfat)$/ && $3 ~ /^[0-9]+$/ && $3 > 0 {
    if ($2 == "overlay" && $7 != "/" || $1 in disk) next
    disk[$1] = 1
    mount = $7
    for (i = 8; i <= NF; i++) mount = mount " " $i
    if (mount !~ /^\/(boot|snap|run|proc|sys|dev)(\/|$)/) print_value("disk", int($3 / 1024) " " int($4 / 1024) " " mount)
}

stage == "addresses" && $3 ~ /^inet/ {
    if ($2 !~ /^(lo|docker|br-|virbr|veth|cni|cali|flannel|lxc|podman)/) print_value("interface", $2 " " $4)
    next
}
stage == "addresses" { for (i = 1; i <= NF; i++) print_value("interface", "- " $i) } # from `hostname -I`, where there is no ip

stage == "disk_use" && FNR == 1 { print_value("disk_use_time", $1); next }
stage == "disk_use" && /^[0-9]/ {
    gsub(/[\001-\010\013-\037\177]/, "?")
    sub(/[ \t]+/, " ")
    print_value("disk_use", substr($0, 1, 300))
}

stage == "xids" && /^xid=/
