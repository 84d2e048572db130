# Print ps.txt. Arguments: the PROC/PID folders. Variables: those of proc_stat.awk; processes (processes.csv), previous (the last ps.txt), query_all
# (1: query every user, container and command; else only those of new processes: a process may change its command, but seldom does).

# add_gpu_pid: add a process on a GPU.
function add_gpu_pid(pid) {
    if (!(pid in is_gpu_pid)) { is_gpu_pid[pid] = 1; gpu_pids[++gpu_pid_count] = pid }
}

# read_process: add the pids in a line of processes.csv: CSV and XML of nvidia-smi, JSON of amd-smi, text of rocm-smi.
function read_process(line,    f) {
    if (line ~ /^(GPU|MIG)-/) {
        if (split(line, f, ", ") >= 4 && f[2] ~ /^[0-9]+$/) add_gpu_pid(f[2])
    } else if (line ~ /^<pid>[0-9]+<\/pid>/) {
        add_gpu_pid(substr(line, 6, index(line, "</") - 6))
    } else if (line ~ /^PID [0-9]+ is using [1-9]/) {
        split(line, f, " ")
        add_gpu_pid(f[2])
    } else
        while (match(line, /"pid": *"?[0-9]+/)) {
            f[1] = substr(line, RSTART + 6, RLENGTH - 6)
            line = substr(line, RSTART + RLENGTH)
            gsub(/[^0-9]/, "", f[1])
            add_gpu_pid(f[1])
        }
}

# read_files: set is_gpu_pid, gpu_pids (in order), and from the last ps.txt previous_gpu_pid, previous_age, previous_uid, user (by pid), details
# (container, image, pod, person and command). Older versions wrote only container and command.
function read_files(    line, f, n) {
    while ((getline line < processes) > 0) read_process(line)
    while ((getline line < previous) > 0) {
        n = split(line, f, "\t")
        if (n != 15 && n != 12 || f[1] + 0 == 0) continue
        previous_gpu_pid[f[1]] = f[3]
        previous_uid[f[1]] = f[5]
        user[f[1]] = f[6]
        previous_age[f[1]] = f[7]
        details[f[1]] = n == 15 ? f[11] "\t" f[12] "\t" f[13] "\t" f[14] "\t" f[15] : f[11] "\t-\t-\t-\t" f[12]
    }
}

# is_same_process: return whether this pid is the process that it was in the last ps.txt.
function is_same_process(pid) { return (pid in previous_gpu_pid) && compute_age(pid) >= previous_age[pid] }

# want_uid: query the name of a user.
function want_uid(uid) { if (uid ~ /^[0-9]+$/ && !index(uids " ", " " uid " ")) uids = uids " " uid }

# want_container: query the image of a container, if its engine may know it; podman knows only those of its own user.
function want_container(which,    id) {
    id = find_short_id(which)
    if (id == "" || which !~ /^(docker|podman|containerd|kubernetes):/) return
    if (index(which, "podman:") == 1 && read_own_uid() != 0 && read_own_uid() != login) return
    id = substr(which, 1, index(which, ":")) id
    if (!index(containers " ", " " id " ")) containers = containers " " id
}

# find_short_id: return the id at the end of a container's name, or "".
function find_short_id(which) { return match(which, /[0-9a-f]+$/) && RLENGTH == 12 ? substr(which, RSTART) : "" }

# read_own_uid: return the uid of this process.
function read_own_uid(    line, f) {
    while (own == "" && (getline line < "/proc/self/status") > 0) if (index(line, "Uid:") == 1) { split(line, f, " "); own = f[2] }
    close("/proc/self/status")
    return own
}

# query_details: set user and details of members that are not known yet. A process that is gone by then, or whose command cannot be read, has
# only the name in the kernel.
function query_details(    i, pid, pids) {
    for (i = 1; i <= members; i++) {
        pid = member[i]
        if (!query_all && is_same_process(pid)) continue
        pids = pids " " pid
        read_details(pid)
        uid_of[pid] = uid
        want_uid(uid)
        read_container(pid)
        in_container[pid] = container
        login_of[pid] = login
        want_uid(login)
        want_container(container)
        compute_age(pid)
        gsub(/[\001-\037\177]/, "?", comm)
        command[pid] = "[" comm "]"
    }
    if (pids == "") return
    read_answers("\"$DETAILS_SH\" '" uids "' '" pids "' '" containers "'")
    for (i = split(pids, list, " "); i > 0; i--) set_details(list[i])
}

# read_answers: read the output of process_details.sh, by its first letter: uid and name of a user; pid and command of a process; pid, image
# and person from an environment; id, image, pod and person of a container.
function read_answers(question,    line, f) {
    while ((question | getline line) > 0) {
        split(line, f, "\t")
        if (f[1] == "u") name[f[2]] = f[3]
        else if (f[1] == "p" && f[3] != "") command[f[2]] = f[3]
        else if (f[1] == "e") { env_image[f[2]] = f[3]; env_person[f[2]] = f[4] }
        else if (f[1] == "c") { image[f[2]] = f[3]; pod[f[2]] = f[4]; claimed[f[2]] = f[5] }
    }
    close(question)
}

# set_details: set user and details of a process. The person behind it is shown only for root, and for users without a name.
function set_details(pid,    uid, id, person, shown) {
    uid = uid_of[pid]
    if (uid in name) user[pid] = name[uid]
    else if (!(is_same_process(pid) && previous_uid[pid] == uid && user[pid] != "-")) user[pid] = uid # else keep the name that was known last time
    id = find_short_id(in_container[pid])
    person = "-"
    if (uid == 0 || user[pid] == uid) {
        if (login_of[pid] in name) person = name[login_of[pid]]
        else if (env_person[pid] != "") person = env_person[pid]
        else if (id in claimed) person = claimed[id]
        if (person == user[pid]) person = "-"
    }
    shown = env_image[pid] != "" ? env_image[pid] : id in image ? image[id] : "-"
    if (in_container[pid] == "-" && env_image[pid] != "") in_container[pid] = "apptainer"
    details[pid] = in_container[pid] "\t" shown "\t" (id in pod ? pod[id] : "-") "\t" person "\t" command[pid]
}

# print_row: print the row of a process.
function print_row(pid,    seconds) {
    read_details(pid)
    seconds = compute_age(pid)
    print pid, parent[pid], family[pid], group[pid], uid, user[pid], seconds, sprintf("%.1f", ticks / (seconds > 0 ? seconds : 1)), rss, state[pid], details[pid]
}

BEGIN {
    read_files()
    for (i = 1; gpu_pid_count && i < ARGC; i++) read_stat(ARGV[i])
    ARGC = 1
    find_family()
    query_details()
}

END {
    OFS = "\t"
    print "pid", "ppid", "gpu_pid", "pgrp", "uid", "user", "elapsed [s]", "cpu [%]", "rss [KiB]", "state", "container", "image", "pod", "person", "command"
    for (i = 1; i <= members; i++) print_row(member[i])
}
