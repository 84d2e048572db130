# Read facts of a process from /proc. Variables: proc (the folder), up (seconds since boot).

# read_stat: set parent, group and state; keep the line in stat for GPU processes and their family. The name is in parentheses, and may itself
# have parentheses, spaces and newlines, but at most 15 characters: a longer rest after the ) has only numbers.
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

# compute_age: return the seconds since a process started; set ticks and comm too. The kernel counts in 1/100 s on every machine with an NVIDIA GPU.
function compute_age(pid,    f, seconds) {
    match(stat[pid], /.*\)/)
    comm = substr(stat[pid], index(stat[pid], "(") + 1)
    comm = substr(comm, 1, RLENGTH - index(stat[pid], "(") - 1)
    split(substr(stat[pid], RLENGTH + 2), f, " ")
    ticks = f[12] + f[13]
    seconds = int(up - f[20] / 100)
    return seconds > 0 ? seconds : 0
}

# read_details: set uid and rss (KiB), "-" if not known.
function read_details(pid,    line, f) {
    uid = rss = "-"
    while ((getline line < (proc "/" pid "/status")) > 0) {
        if (index(line, "Uid:") == 1) { split(line, f, " "); uid = f[3] }
        else if (index(line, "VmRSS:") == 1) { split(line, f, " "); rss = f[2]; break }
    }
    close(proc "/" pid "/status")
}
