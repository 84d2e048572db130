# What /proc tells of a process. Variables: proc (the folder), up (seconds since boot).

# read_stat: sets parent, group and state; what only the family needs stays unparsed in stat. The name stands in parentheses, and may
# itself hold parentheses, spaces and newlines, but no more than 15 characters: more than that behind the ) is numbers.
function read_stat(folder,    line, more, numbers, n, pid) {
    if ((getline line < (folder "/stat")) > 0) {
        n = index(line, ")")
        numbers = substr(line, n + 2)
        if (!n || index(numbers, ")") || length(numbers) < 50) {
            while ((getline more < (folder "/stat")) > 0) line = line " " more
            match(line, /.*\)/)
            numbers = substr(line, RLENGTH + 2)
        }
        pid = line + 0
        stat[pid] = line
        state[pid] = substr(numbers, 1, 1)
        numbers = substr(numbers, 3, 24)
        n = index(numbers, " ")
        parent[pid] = substr(numbers, 1, n - 1) + 0
        group[pid] = substr(numbers, n + 1) + 0
        all[++count] = pid
    }
    close(folder "/stat")
}

# age: seconds since it began. The kernel counts in 1/100 s for programs, on every machine with an NVIDIA GPU. Sets ticks and comm too.
function age(pid,    f, seconds) {
    match(stat[pid], /.*\)/)
    comm = substr(stat[pid], index(stat[pid], "(") + 1)
    comm = substr(comm, 1, RLENGTH - index(stat[pid], "(") - 1)
    split(substr(stat[pid], RLENGTH + 2), f, " ")
    ticks = f[12] + f[13]
    seconds = int(up - f[20] / 100)
    return seconds > 0 ? seconds : 0
}

# details: sets uid and rss (KiB), or "-" for each that is not told.
function details(pid,    line, f) {
    uid = rss = "-"
    while ((getline line < (proc "/" pid "/status")) > 0) {
        if (index(line, "Uid:") == 1) { split(line, f, " "); uid = f[3] }
        else if (index(line, "VmRSS:") == 1) { split(line, f, " "); rss = f[2]; break }
    }
    close(proc "/" pid "/status")
}
