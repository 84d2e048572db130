# Print host.txt: key=value lines from /proc, then the slow facts, which are updated once a minute, and how the GPUs are connected.

# format_mib: return a value of /proc/meminfo in MiB; "" if it is missing.
function format_mib(key,    kib) {
    kib = memory[key]
    return kib == "" ? "" : int(kib / 1024)
}

BEGIN {
    if (split(read_first_line(proc "/loadavg"), f, " ") >= 3) print_value("load", f[1] " " f[2] " " f[3])
    while ((getline line < (proc "/meminfo")) > 0) {
        split(line, f, " ")
        memory[f[1]] = f[2]
    }
    print_value("memory_total", format_mib("MemTotal:"))
    print_value("memory_available", format_mib("MemAvailable:"))
    if (memory["SwapTotal:"] > 0) { print_value("swap_total", format_mib("SwapTotal:")); print_value("swap_free", format_mib("SwapFree:")) }
    if (split(read_first_line(proc "/uptime"), f, " ")) print_value("uptime", int(f[1]))
    if (driver != "unknown") print_value("driver", driver)
    print_value("zone", zone)
    while ((getline line < slow_facts) > 0) print line
    while ((getline line < topology) > 0) print line
}
