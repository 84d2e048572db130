# For each process in `pids`: its pid, container and command, with secrets masked, separated by tabs. Input: an argument a line, behind the
# name of its file. Variables: proc, pids. The command is empty where there is none.

{
    colon = index($0, "/cmdline:")
    pid = substr($0, length(proc) + 2, colon - length(proc) - 2)
    bytes[pid] += length($0) - colon - 7
    if (bytes[pid] < 16384) argument[pid, ++arguments[pid]] = substr($0, colon + 9)
}

function command(pid,    i, n, text) {
    n = arguments[pid]
    while (n > 0 && argument[pid, n] == "") n-- # a title that a process gave itself has them behind it
    begin_command()
    for (i = 1; i <= n; i++) text = text (i > 1 ? " " : "") hide_argument(argument[pid, i])
    return length(text) > 4096 ? substr(text, 1, 4096) "…" : text
}

function container_of(pid,    line, found) {
    found = "-"
    while ((getline line < (proc "/" pid "/cgroup")) > 0) if (found == "-" || index(found, "slurm:") == 1) found = container(line, found)
    close(proc "/" pid "/cgroup")
    return found
}

END {
    n = split(pids, list, " ")
    for (i = 1; i <= n; i++) print list[i] "\t" container_of(list[i]) "\t" command(list[i])
}
