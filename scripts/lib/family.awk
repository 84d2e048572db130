# Who belongs to the GPU processes: one pass over PROC/PID/stat, then the details of the family alone.
# Arguments: the PROC/PID folders. Variables: proc, up (seconds since boot), processes (processes.csv), before (the last ps.txt).
# Prints the pids, then the uids, each on a line of their own, then a row for each: all of ps.txt but user and command; comm comes last.

function read_stat(folder,    line, more, rest, pid, f) {
    if ((getline line < (folder "/stat")) > 0) {
        # the name stands in parentheses, and may itself hold parentheses, spaces and newlines
        while (line !~ /\) [A-Za-z] -?[0-9]+ / && (getline more < (folder "/stat")) > 0) line = line " " more
        if (match(line, /.*\)/)) {
            pid = line
            sub(/ .*/, "", pid)
            rest = substr(line, RLENGTH + 2)
            if (split(rest, f, " ") >= 20) {
                comm[pid] = substr(line, length(pid) + 3, RLENGTH - length(pid) - 3)
                state[pid] = f[1]; parent[pid] = f[2]; group[pid] = f[3]
                ticks[pid] = f[12] + f[13]
                age[pid] = int(up - f[20] / 100) # the kernel counts in 1/100 s for programs, on every machine with an NVIDIA GPU
                if (age[pid] < 0) age[pid] = 0
                all[++count] = pid
            }
        }
    }
    close(folder "/stat")
}

# dead: gone, or a zombie; its memory on the GPU may live on in its children.
function dead(pid) { return !(pid in state) || state[pid] ~ /^[ZX]/ }

function add(pid, gpu_pid) {
    if (!(pid in state)) return
    if (!(pid in family)) order[++size] = pid
    if (!(pid in family) || family[pid] == "-") family[pid] = gpu_pid
}

# add_descendants: whoever has a member as its parent belongs to that member's GPU process, down to the last.
function add_descendants(    i, pid, p, n, path) {
    for (i = 1; i <= count; i++) {
        pid = all[i]
        n = 0
        for (p = pid; (p in parent) && !(p in family) && n < 99; p = parent[p]) path[++n] = p
        if (n && (p in family) && family[p] != "-") while (n) add(path[n--], family[p])
    }
}

function add_ancestors(pid,    p, n) {
    for (p = parent[pid]; (p in state) && p > 2 && n < 99; p = parent[p]) { add(p, "-"); n++ }
}

# add_orphans: the children of a dead GPU process have another parent now; its process group, or the last ps.txt, still knows them.
function add_orphans(    i, pid) {
    for (i = 1; i <= count; i++) {
        pid = all[i]
        if ((group[pid] in gpu) && dead(group[pid])) add(pid, group[pid])
        else if ((pid in was) && (was[pid] in gpu) && dead(was[pid]) && age[pid] >= was_age[pid]) add(pid, was[pid])
    }
}

function details(pid,    line, f) {
    uid = rss = "-"
    while ((getline line < (proc "/" pid "/status")) > 0) {
        if (line ~ /^Uid:/) { split(line, f); uid = f[3] }
        else if (line ~ /^VmRSS:/) { split(line, f); rss = f[2]; break }
    }
    close(proc "/" pid "/status")
    box = "-"
    while ((getline line < (proc "/" pid "/cgroup")) > 0) if (box == "-" || box ~ /^slurm:/) box = container(line, box)
    close(proc "/" pid "/cgroup")
}

BEGIN {
    while ((getline line < processes) > 0) if (split(line, f, ", ") >= 4 && f[2] ~ /^[0-9]+$/ && !(f[2] in gpu)) { gpu[f[2]] = 1; gpus[++n] = f[2] }
    while ((getline line < before) > 0) if (split(line, f, "\t") >= 12 && f[3] ~ /^[0-9]+$/ && f[3] != f[1]) { was[f[1]] = f[3]; was_age[f[1]] = f[7] }
    for (i = 1; i < ARGC; i++) read_stat(ARGV[i])
    for (i = 1; i <= n; i++) add(gpus[i], gpus[i])
    add_descendants()
    add_orphans()
    add_descendants()
    for (i = size; i > 0; i--) add_ancestors(order[i])
    if (size > 1000) { left_out = size - 1000; size = 1000 }
    for (i = 1; i <= size; i++) {
        pid = order[i]
        details(pid)
        if (uid != "-" && !(uid in uids)) { uids[uid] = 1; uid_list = uid_list " " uid }
        pid_list = pid_list " " pid
        cpu = ticks[pid] / (age[pid] > 0 ? age[pid] : 1)
        gsub(/[\001-\037\177]/, "?", comm[pid])
        row[i] = pid "\t" parent[pid] "\t" family[pid] "\t" group[pid] "\t" uid "\t" age[pid] "\t" sprintf("%.1f", cpu) "\t" rss "\t" state[pid] "\t" box "\t" comm[pid]
    }
    print pid_list
    print uid_list
    for (i = 1; i <= size; i++) print row[i]
    if (left_out) print left_out " more processes belong to GPU processes than are told here" > "/dev/stderr"
}
