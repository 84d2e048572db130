# Who belongs to the GPU processes: their children and their parents. Of proc.awk: parent, group, state, all. Of ps.awk: is_gpu_pid, gpu_pids, was_gpu_pid, same().
# Sets member (in order), members, and family (whose it is: the pid of a GPU process, or - for the parents of one).

# dead: gone, or a zombie; its memory on the GPU may live on in its children.
function dead(pid) { return !(pid in state) || state[pid] ~ /^[ZX]/ }

function add(pid, gpu_pid) {
    if (!(pid in state)) return
    if (!(pid in family)) member[++members] = pid
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
        if ((group[pid] in is_gpu_pid) && dead(group[pid])) add(pid, group[pid])
        else if ((pid in was_gpu_pid) && (was_gpu_pid[pid] in is_gpu_pid) && was_gpu_pid[pid] != pid && dead(was_gpu_pid[pid]) && same(pid)) add(pid, was_gpu_pid[pid])
    }
}

# find_family: the GPU processes first, then their children, then their parents; a thousand at most.
function find_family(    i) {
    for (i = 1; i <= gpu_pid_count; i++) add(gpu_pids[i], gpu_pids[i])
    add_descendants()
    add_orphans()
    add_descendants()
    for (i = members; i > 0; i--) add_ancestors(member[i])
    if (members > 1000) {
        cut = members - 1000 " more processes belong to GPU processes and are not told"
        members = 1000
    }
}
