# What of host.txt changes slowly: key=value, from the answers of df, ip and du, and from /proc and /sys.

# count_cpus: those that are online, as /proc/stat lists them.
function count_cpus(    line, sum) {
    while ((getline line < (proc "/stat")) > 0 && index(line, "cpu") == 1) sum++
    close(proc "/stat")
    return sum > 1 ? sum - 1 : "" # the first line is their sum
}

BEGIN {
    tell("cpus", count_cpus())
    tell("kernel", first_line(proc "/sys/kernel/osrelease"))
    tell("collector", collector)
    # with hidepid, other people's processes have no user and no command here: the page can tell why
    while ((getline line < (proc "/mounts")) > 0)
        if (line ~ /^[^ ]+ \/proc proc / && match(line, /hidepid=[^, ]+/) && substr(line, RSTART + 8, 1) != "0" && substr(line, RSTART + 8, 3) != "off")
            tell("hidepid", substr(line, RSTART + 8, RLENGTH - 8))
}

# what a person may fill: file systems of a disk, each once; total, used (MiB), mount
stage == "disks" && FNR > 1 && $2 !~ /^(tmpfs|devtmpfs|ramfs|squashfs|efivarfs|iso9660|autofs|fuse\..*|vfat)$/ && $3 ~ /^[0-9]+$/ && $3 > 0 {
    if ($2 == "overlay" && $7 != "/" || $1 in disk) next
    disk[$1] = 1
    mount = $7
    for (i = 8; i <= NF; i++) mount = mount " " $i
    if (mount !~ /^\/(boot|snap|run|proc|sys|dev)(\/|$)/) tell("disk", int($3 / 1024) " " int($4 / 1024) " " mount)
}

stage == "addresses" && $3 ~ /^inet/ {
    if ($2 !~ /^(lo|docker|br-|virbr|veth|cni|cali|flannel|lxc|podman)/) tell("interface", $2 " " $4)
    next
}
stage == "addresses" { for (i = 1; i <= NF; i++) tell("interface", "- " $i) } # of `hostname -I`, where there is no ip

stage == "disk_use" && FNR == 1 { tell("disk_use_time", $1); next }
stage == "disk_use" && /^[0-9]/ {
    gsub(/[\001-\010\013-\037\177]/, "?")
    sub(/[ \t]+/, " ")
    tell("disk_use", substr($0, 1, 300))
}
