# For each process in `pids` a line: its command, with secrets masked, and where its environment says so, its image and the person behind
# it; separated by tabs. Input: an argument or a variable a line, behind the name of its file. Variables: proc, pids. The command is empty
# where there is none.

{
    rest = substr($0, length(proc) + 2)
    pid = rest + 0
    colon = index(rest, ":")
    word = substr(rest, colon + 1)
    if (substr(rest, colon - 8, 8) == "/environ") {
        variable[pid, substr(word, 1, index(word, "=") - 1)] = substr(word, index(word, "=") + 1)
        next
    }
    bytes[pid] += length(word) + 1
    if (bytes[pid] < 16384) argument[pid, ++arguments[pid]] = word
}

function command(pid,    list, i) {
    for (i = 1; i <= arguments[pid]; i++) list[i] = argument[pid, i]
    return hide_command(list, arguments[pid])
}

# environment: what a process of ours, or any if we are root, tells of itself.
function environment(pid,    image, person) {
    image = plain_image(variable[pid, "APPTAINER_NAME"] != "" ? variable[pid, "APPTAINER_NAME"] : variable[pid, "SINGULARITY_NAME"])
    person = plain_person(variable[pid, "GPUBOARD_USER"])
    if (person == "") person = plain_person(variable[pid, "JUPYTERHUB_USER"])
    if (person == "") person = plain_person(variable[pid, "SUDO_USER"])
    if (image person != "") print "e\t" pid "\t" image "\t" person
}

END {
    n = split(pids, list, " ")
    for (i = 1; i <= n; i++) {
        print "p\t" list[i] "\t" command(list[i])
        environment(list[i])
    }
}
