# What an engine answered of its containers, in the form of TEMPLATE in engines.sh. With stage=names: every name in it that may be a login,
# a line each. Else a line for each id in `ids`: engine, id, image, pod, person, separated by tabs, - where it is not known; `logins` is
# what getent told of these names.

# unquoted: the text between the quotes of Go's %q; "" if there is more to it than letters and \.
function unquoted(text,    part, n, i, all) {
    if (length(text) < 2 || substr(text, 1, 1) != "\"" || substr(text, length(text)) != "\"") return ""
    n = split(substr(text, 2, length(text) - 2), part, /\\\\/)
    for (i = 1; i <= n; i++) {
        if (part[i] ~ /["\\]/) return ""
        all = all (i > 1 ? "\\" : "") part[i]
    }
    return all
}

# claim: that this is the person. The first four words are there to say so; in any other place a name counts only if it is a login here.
function claim(by, name) {
    name = plain_person(name)
    if (name == "") return
    if (rank[by] > 4) {
        if (stage == "names") { if (!(name in listed) && ++names <= 500) print name; listed[name] = 1 }
        if (!(tolower(name) in login)) return
        name = login[tolower(name)]
    }
    if ((id, by) in claimed && claimed[id, by] != name) name = "" # two people: nobody knows which
    claimed[id, by] = name
}

# claim_home: the person of a folder such as /home/alice/data or /nfs/users/lab/alice.
function claim_home(path,    part, n, i) {
    n = split(path, part, "/")
    for (i = 2; i < n; i++)
        if (part[i] ~ /^(home|homes|users|Users)$/) {
            claim("home", part[i + 1])
            if (i + 2 <= n && !(tolower(part[i + 1]) in login)) claim("home", part[i + 2])
            return
        }
}

BEGIN {
    LAST = split("gpuboard.user GPUBOARD_USER JUPYTERHUB_USER hub.jupyter.org/username user username owner NB_USER USER LOGNAME home", word, " ")
    for (i = 1; i <= LAST; i++) rank[word[i]] = i
    while (logins != "" && (getline line < logins) > 0)
        if (split(line, f, ":") >= 4 && f[3] >= 500 && f[3] != 65534) login[tolower(f[1])] = f[1]
}

$1 == "id" { id = $2 ~ /^[0-9a-f]+$/ && length($2) == 64 ? substr($2, 1, 12) : ""; next }
id == "" { next }
{ value = unquoted(substr($0, length($1) + 2)) }
value == "" { next }
$1 == "image" { image[id] = plain_image(value) }
$1 == "variable" { at = index(value, "="); $1 = substr(value, 1, at - 1); value = substr(value, at + 1) }
$1 == "com.docker.compose.project.working_dir" || $1 == "devcontainer.local_folder" || $1 == "mount" { claim_home(value) }
$1 in rank { claim($1, value) }
$1 == "io.kubernetes.pod.namespace" && value ~ /^[a-z0-9.-]+$/ { within[id] = substr(value, 1, 100) }
$1 == "io.kubernetes.pod.name" && value ~ /^[a-z0-9.-]+$/ { pod[id] = substr(value, 1, 100) }

END {
    if (stage == "names") exit
    n = split(ids, list, " ")
    for (i = 1; i <= n; i++) {
        id = list[i]
        person = ""
        for (j = 1; j <= LAST && person == ""; j++) person = claimed[id, word[j]]
        print engine "\t" id "\t" (image[id] == "" ? "-" : image[id]) "\t" (pod[id] == "" ? "-" : (within[id] == "" ? "" : within[id] "/") pod[id]) "\t" (person == "" ? "-" : person)
    }
}
