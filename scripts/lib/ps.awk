# ps.txt. Arguments: the PROC/PID folders. Variables: those of proc.awk; processes (processes.csv), before (the last ps.txt), ask_all (1: ask
# for every user, container and command; else only for those of new processes: a process may change its command, but seldom does).

# gpu_pid: notes a process on a GPU.
function gpu_pid(pid) {
    if (!(pid in is_gpu_pid)) { is_gpu_pid[pid] = 1; gpu_pids[++gpu_pid_count] = pid }
}

# read_process: the pids in a line of processes.csv: of nvidia-smi's CSV and XML, of amd-smi's JSON, of rocm-smi's text.
function read_process(line,    f) {
    if (line ~ /^(GPU|MIG)-/) {
        if (split(line, f, ", ") >= 4 && f[2] ~ /^[0-9]+$/) gpu_pid(f[2])
    } else if (line ~ /^<pid>[0-9]+<\/pid>/) {
        gpu_pid(substr(line, 6, index(line, "</") - 6))
    } else if (line ~ /^PID [0-9]+ is using [1-9]/) {
        split(line, f, " ")
        gpu_pid(f[2])
    } else
        while (match(line, /"pid": *"?[0-9]+/)) {
            f[1] = substr(line, RSTART + 6, RLENGTH - 6)
            line = substr(line, RSTART + RLENGTH)
            gsub(/[^0-9]/, "", f[1])
            gpu_pid(f[1])
        }
}

# read_files: sets is_gpu_pid, gpu_pids (in order), and of the last ps.txt: was_gpu_pid, was_age, was_uid, user (by pid), told (container,
# image, pod, person and command). A collector of before these were told wrote but container and command.
function read_files(    line, f, n) {
    while ((getline line < processes) > 0) read_process(line)
    while ((getline line < before) > 0) {
        n = split(line, f, "\t")
        if (n != 15 && n != 12 || f[1] + 0 == 0) continue
        was_gpu_pid[f[1]] = f[3]
        was_uid[f[1]] = f[5]
        user[f[1]] = f[6]
        was_age[f[1]] = f[7]
        told[f[1]] = n == 15 ? f[11] "\t" f[12] "\t" f[13] "\t" f[14] "\t" f[15] : f[11] "\t-\t-\t-\t" f[12]
    }
}

# same: whether this pid means the process that the last ps.txt told of.
function same(pid) { return (pid in was_gpu_pid) && age(pid) >= was_age[pid] }

function want_uid(uid) { if (uid ~ /^[0-9]+$/ && !index(uids " ", " " uid " ")) uids = uids " " uid }

# want_container: those of an engine that may tell their image; podman tells of its own user's alone.
function want_container(which,    id) {
    id = short_id(which)
    if (id == "" || which !~ /^(docker|podman|containerd|kubernetes):/) return
    if (index(which, "podman:") == 1 && own_uid() != 0 && own_uid() != login) return
    id = substr(which, 1, index(which, ":")) id
    if (!index(containers " ", " " id " ")) containers = containers " " id
}

function short_id(which) { return match(which, /[0-9a-f]+$/) && RLENGTH == 12 ? substr(which, RSTART) : "" }

function own_uid(    line, f) {
    while (own == "" && (getline line < "/proc/self/status") > 0) if (index(line, "Uid:") == 1) { split(line, f, " "); own = f[2] }
    close("/proc/self/status")
    return own
}

# ask: sets user and told for members that are not known yet. A process that is gone by then, or whose command cannot be read, has but the
# name that the kernel knows.
function ask(    i, pid, pids) {
    for (i = 1; i <= members; i++) {
        pid = member[i]
        if (!ask_all && same(pid)) continue
        pids = pids " " pid
        details(pid)
        uid_of[pid] = uid
        want_uid(uid)
        look(pid)
        in_container[pid] = found
        login_of[pid] = login
        want_uid(login)
        want_container(found)
        age(pid)
        gsub(/[\001-\037\177]/, "?", comm)
        command[pid] = "[" comm "]"
    }
    if (pids == "") return
    hear("\"$ASK_SH\" '" uids "' '" pids "' '" containers "'")
    for (i = split(pids, list, " "); i > 0; i--) settle(list[i])
}

# hear: what ask.sh answers, a letter before each: uid and name of a user; pid and command of a process; pid, and what its environment says
# of image and person; id of a container, with its image, pod and person.
function hear(question,    line, f) {
    while ((question | getline line) > 0) {
        split(line, f, "\t")
        if (f[1] == "u") name[f[2]] = f[3]
        else if (f[1] == "p" && f[3] != "") command[f[2]] = f[3]
        else if (f[1] == "e") { env_image[f[2]] = f[3]; env_person[f[2]] = f[4] }
        else if (f[1] == "c") { image[f[2]] = f[3]; pod[f[2]] = f[4]; claimed[f[2]] = f[5] }
    }
    close(question)
}

# settle: user and told of a process, from all that was heard. Who is behind a process is told only of root's, and of users without a name.
function settle(pid,    uid, id, person, shown) {
    uid = uid_of[pid]
    if (uid in name) user[pid] = name[uid]
    else if (!(same(pid) && was_uid[pid] == uid && user[pid] != "-")) user[pid] = uid # else who told the name last time is silent
    id = short_id(in_container[pid])
    person = "-"
    if (uid == 0 || user[pid] == uid) {
        if (login_of[pid] in name) person = name[login_of[pid]]
        else if (env_person[pid] != "") person = env_person[pid]
        else if (id in claimed) person = claimed[id]
        if (person == user[pid]) person = "-"
    }
    shown = env_image[pid] != "" ? env_image[pid] : id in image ? image[id] : "-"
    if (in_container[pid] == "-" && env_image[pid] != "") in_container[pid] = "apptainer"
    told[pid] = in_container[pid] "\t" shown "\t" (id in pod ? pod[id] : "-") "\t" person "\t" command[pid]
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
    print "pid", "ppid", "gpu_pid", "pgrp", "uid", "user", "elapsed [s]", "cpu [%]", "rss [KiB]", "state", "container", "image", "pod", "person", "command"
    for (i = 1; i <= members; i++) print_row(member[i])
}
