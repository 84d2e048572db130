# host.txt: key=value, what moves from /proc, then the lines that are made once a minute.

function mib(key,    kib) {
    kib = memory[key]
    return kib == "" ? "" : int(kib / 1024)
}

BEGIN {
    if (split(first_line(proc "/loadavg"), f, " ") >= 3) tell("load", f[1] " " f[2] " " f[3])
    while ((getline line < (proc "/meminfo")) > 0) {
        split(line, f, " ")
        memory[f[1]] = f[2]
    }
    tell("memory_total", mib("MemTotal:"))
    tell("memory_available", mib("MemAvailable:"))
    if (memory["SwapTotal:"] > 0) { tell("swap_total", mib("SwapTotal:")); tell("swap_free", mib("SwapFree:")) }
    if (split(first_line(proc "/uptime"), f, " ")) tell("uptime", int(f[1]))
    if (driver != "unknown") tell("driver", driver)
    tell("zone", zone)
    while ((getline line < minute) > 0) print line
}
