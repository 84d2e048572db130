# ps.txt. Arguments: the PROC/PID folders. Variables: those of proc.awk; processes (processes.csv), before (the last ps.txt), ask_all (1: ask
# for every user, container and command; else only for those of new processes: a process may change its command, but seldom does).

# read_files: sets is_gpu_pid, gpu_pids (in order), and of the last ps.txt: was_gpu_pid, was_age, user (by pid), told (container and command).
function read_files(    line, f) {
    while ((getline line < processes) > 0)
        if (split(line, f, ", ") >= 4 && f[2] ~ /^[0-9]+$/ && !(f[2] in is_gpu_pid)) { is_gpu_pid[f[2]] = 1; gpu_pids[++gpu_pid_count] = f[2] }
    while ((getline line < before) > 0)
        if (split(line, f, "\t") == 12 && f[1] + 0) { was_gpu_pid[f[1]] = f[3]; was_age[f[1]] = f[7]; user[f[1]] = f[6]; told[f[1]] = f[11] "\t" f[12] }
}

# same: whether this pid means the process that the last ps.txt told of.
function same(pid) { return (pid in was_gpu_pid) && age(pid) >= was_age[pid] }

# ask: sets user and told for members that are not known yet. ask.sh answers `uid<TAB>name` for users, and then for each process its pid,
# container and command; a process that is gone by then, or whose command cannot be read, has but the name that the kernel knows.
function ask(    i, pid, pids, uids, question, line, f, name) {
    for (i = 1; i <= members; i++) {
        pid = member[i]
        if (!ask_all && same(pid)) continue
        pids = pids " " pid
        details(pid)
        user[pid] = uid
        if (uid ~ /^[0-9]+$/ && !index(uids " ", " " uid " ")) uids = uids " " uid
        age(pid)
        gsub(/[\001-\037\177]/, "?", comm)
        told[pid] = "-\t[" comm "]"
    }
    if (pids == "") return
    question = "\"$ASK_SH\" '" uids "' '" pids "'"
    while ((question | getline line) > 0) {
        if (split(line, f, "\t") == 2) name[f[1]] = f[2]
        else told[f[1]] = f[2] "\t" (f[3] == "" ? substr(told[f[1]], 3) : f[3])
    }
    close(question)
    for (i = split(pids, f, " "); i > 0; i--) if (user[f[i]] in name) user[f[i]] = name[user[f[i]]]
}

function print_row(pid,    seconds) {
    details(pid)
    seconds = age(pid)
    print pid, parent[pid], family[pid], group[pid], uid, user[pid], seconds, sprintf("%.1f", ticks / (seconds > 0 ? seconds : 1)), rss, state[pid], told[pid]
}

BEGIN {
    read_files()
    for (i = 1; gpu_pid_count && i < ARGC; i++) read_stat(ARGV[i])
    ARGC = 1
    find_family()
    ask()
}

END {
    OFS = "\t"
    print "pid", "ppid", "gpu_pid", "pgrp", "uid", "user", "elapsed [s]", "cpu [%]", "rss [KiB]", "state", "container", "command"
    for (i = 1; i <= members; i++) print_row(member[i])
}
