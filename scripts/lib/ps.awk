# Puts ps.txt together: names of users (getent), commands (an argument a line, behind its file's name) and the rows of family.awk.
BEGIN {
    OFS = "\t"
    print "pid", "ppid", "gpu_pid", "pgrp", "uid", "user", "elapsed [s]", "cpu [%]", "rss [KiB]", "state", "container", "command"
}

stage == "names" {
    split($0, field, ":")
    gsub(/[\001-\037\177]/, "?", field[1])
    user[field[3]] = field[1]
}

stage == "commands" {
    colon = index($0, "/cmdline:")
    pid = substr($0, length(proc) + 2, colon - length(proc) - 2)
    bytes[pid] += length($0)
    if (bytes[pid] < 16384) argument[pid, ++arguments[pid]] = substr($0, colon + 9)
}

function command(pid, comm,    i, n, text) {
    n = arguments[pid]
    while (n > 0 && argument[pid, n] == "") n--
    if (!n) return "[" comm "]"
    begin_command(argument[pid, 1])
    for (i = 1; i <= n; i++) text = text (i > 1 ? " " : "") hide_argument(argument[pid, i])
    return length(text) > 4096 ? substr(text, 1, 4096) "…" : text
}

stage == "rows" && FNR > 2 {
    split($0, field, "\t")
    uid = field[5]
    print field[1], field[2], field[3], field[4], uid, (uid in user) ? user[uid] : uid, field[6], field[7], field[8], field[9], field[10], command(field[1], field[11])
}
