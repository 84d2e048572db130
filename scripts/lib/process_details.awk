# Print a line for each process in `pids`: its command, with secrets masked; and if its environment has them, image and person; separated by
# tabs. Input: one argument or variable per line, after the name of its file. Variables: proc, pids. The command may be empty.

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

# build_command: return the masked command of a process.
function build_command(pid,    list, i) {
    for (i = 1; i <= arguments[pid]; i++) list[i] = argument[pid, i]
    return hide_command(list, arguments[pid])
}

# print_environment: print image and person from the environment, which is readable for our own processes, and for all as root.
function print_environment(pid,    image, person) {
    image = parse_image(variable[pid, "APPTAINER_NAME"] != "" ? variable[pid, "APPTAINER_NAME"] : variable[pid, "SINGULARITY_NAME"])
    person = parse_person(variable[pid, "GPUBOARD_USER"])
    if (person == "") person = parse_person(variable[pid, "JUPYTERHUB_USER"])
    if (person == "") person = parse_person(variable[pid, "SUDO_USER"])
    if (image person != "") print "e\t" pid "\t" image "\t" person
}

END {
    n = split(pids, list, " ")
    for (i = 1; i <= n; i++) {
        print "p\t" list[i] "\t" build_command(list[i])
        print_environment(list[i])
    }
}
