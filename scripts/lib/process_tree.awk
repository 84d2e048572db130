# Find the children and parents of GPU processes.
# From proc_stat.awk: parent, group, state, all. From ps.awk: is_gpu_pid, gpu_pids,
# previous_gpu_pid, is_same_process().
# Sets member (in order), members, and family (the pid of the GPU process to which it belongs, or - for its parents).

# is_dead: return whether a process is gone, or a zombie; its GPU memory may be held by its children.
function is_dead(pid) { return !(pid in state) || state[pid] ~ /^[ZX]/ }

# add_member: add a process to the family of a GPU process.
function add_member(pid, gpu_pid) {
    if (!(pid in state)) return
    if (!(pid in family)) member[++members] = pid
    if (!(pid in family) || family[pid] == "-") family[pid] = gpu_pid
}

# add_descendants: add all descendants of members.
function add_descendants(    i, pid, p, n, path) {
    for (i = 1; i <= count; i++) {
        pid = all[i]
        n = 0
        for (p = pid; (p in parent) && !(p in family) && n < 99; p = parent[p]) path[++n] = p
        if (n && (p in family) && family[p] != "-") while (n) add_member(path[n--], family[p])
    }
}

# add_ancestors: add the ancestors of a process.
function add_ancestors(pid,    p, n) {
    for (p = parent[pid]; (p in state) && p > 2 && n < 99; p = parent[p]) { add_member(p, "-"); n++ }
}

# add_orphans: add the children of a dead GPU process, which have another parent now, by its process group or the last ps.txt.
function add_orphans(    i, pid) {
    for (i = 1; i <= count; i++) {
        pid = all[i]
        if ((group[pid] in is_gpu_pid) && is_dead(group[pid])) add_member(pid, group[pid])
        else if ((pid in previous_gpu_pid) && (previous_gpu_pid[pid] in is_gpu_pid) && previous_gpu_pid[pid] != pid && is_dead(previous_gpu_pid[pid]) && is_same_process(pid)) add_member(pid, previous_gpu_pid[pid])
    }
}

# find_family: add GPU processes, then their children, then their parents; a thousand at most.
function find_family(    i) {
    for (i = 1; i <= gpu_pid_count; i++) add_member(gpu_pids[i], gpu_pids[i])
    add_descendants()
    add_orphans()
    add_descendants()
    for (i = members; i > 0; i--) add_ancestors(member[i])
    if (members > 1000) {
        cut = members - 1000 " more processes belong to GPU processes and are not told"
        members = 1000
    }
}
