# shellcheck shell=sh disable=SC2030,SC2031,SC2154 # containers, answer: set by the script that reads this one; the limit of an engine is its own
# Image, pod and person of containers, where an engine is there and tells them to this user. Each container is asked for once: what it was
# started with does not change. SPOOL/containers has what was told; an engine that refuses or hangs is left alone for a while.

# Seconds until an engine that refused is asked again, and for which one is waited.
REFUSED_FOR=900
ENGINE_LIMIT=3
# Containers that are asked for at once, and that are remembered.
MOST_ASKED=200
MOST_KNOWN=1000

# Labels and variables that may name a person: claim.awk and inspect.awk say what becomes of them. All else of an environment may be secret,
# and does not leave the engine: printf %.5s is the first five characters.
# shellcheck disable=SC2016 # for the engine
TEMPLATE='id {{.ID}}
image {{printf "%q" IMAGE}}
{{range $name, $value := .Config.Labels}}{{if or (eq $name "gpuboard.user") (eq $name "hub.jupyter.org/username") (eq $name "user") (eq $name "username") (eq $name "owner") (eq $name "com.docker.compose.project.working_dir") (eq $name "devcontainer.local_folder") (eq $name "io.kubernetes.pod.name") (eq $name "io.kubernetes.pod.namespace")}}{{$name}} {{printf "%q" $value}}
{{end}}{{end}}{{range .Config.Env}}{{if or (eq (printf "%.14s" .) "GPUBOARD_USER=") (eq (printf "%.16s" .) "JUPYTERHUB_USER=") (eq (printf "%.8s" .) "NB_USER=") (eq (printf "%.5s" .) "USER=") (eq (printf "%.8s" .) "LOGNAME=")}}variable {{printf "%q" .}}
{{end}}{{end}}{{range .Mounts}}{{if eq (printf "%s" .Type) "bind"}}mount {{printf "%q" .Source}}
{{end}}{{end}}'

# ask_engines: prints a line `c`, id, image, pod, person for each of $containers of which they are known.
ask_engines() {
    SPOOL=${RUN%/run}
    known=$SPOOL/containers
    [ -e "$known" ] || : >"$known"
    ask_engine docker docker .Config.Image docker kubernetes
    ask_engine podman podman .Config.Image podman podman
    ask_engine nerdctl nerdctl .Image containerd containerd
    ask_engine nerdctl-k8s 'nerdctl --namespace k8s.io' .Image kubernetes kubernetes
    awk -F '\t' -v containers="$containers" '
        BEGIN { n = split(containers, list, " "); for (i = 1; i <= n; i++) { sub(/.*:/, "", list[i]); wanted[list[i]] = 1 } }
        $2 in wanted && NF == 5 && $3 $4 $5 != "---" { print "c\t" $2 "\t" $3 "\t" $4 "\t" $5 }' "$known"
}

# ask_engine NAME COMMAND IMAGE KIND KIND: asks it for those of these kinds that it was not asked for; IMAGE is where it has the image's name.
ask_engine() {
    command -v "${2%% *}" >/dev/null || return 0
    new_containers "$1" "$4" "$5"
    if [ -z "$ids" ] || is_refusing "$1"; then return; fi
    code=0
    # shellcheck disable=SC2086 # one word an id
    (
        [ "$GPUBOARD_LIMIT" -le "$ENGINE_LIMIT" ] || GPUBOARD_LIMIT=$ENGINE_LIMIT
        limited "$1" 1 $2 container inspect --format "${TEMPLATE%%IMAGE*}$3${TEMPLATE#*IMAGE}" $ids
    ) </dev/null >"$answer" 2>"$answer.err" || code=$?
    case $code in 124 | 137 | 200) tail -n 1 "$answer.err" >&2 ;; esac
    if grep -q '^id [0-9a-f]' "$answer" || grep -qi 'no such \(container\|object\)' "$answer.err"; then
        learn "$1"
    else
        seconds_up
        printf '%s\n' "$up" >"$SPOOL/refused.$1"
    fi
}

# new_containers NAME KIND KIND: sets ids to those of $containers that this engine was not asked for yet.
new_containers() {
    asked=' ' ids='' count=0
    while read -r engine id _; do [ "$engine" != "$1" ] || asked="$asked$id "; done <"$known"
    for id in $containers; do
        case $id in "$2":* | "$3":*) id=${id#*:} ;; *) continue ;; esac
        case $asked in *" $id "*) continue ;; esac
        count=$((count + 1))
        [ "$count" -gt "$MOST_ASKED" ] || ids="$ids $id"
    done
}

# is_refusing NAME: whether it refused not long ago.
is_refusing() {
    refused=
    [ ! -r "$SPOOL/refused.$1" ] || read -r refused <"$SPOOL/refused.$1" || :
    seconds_up
    case $refused in '' | *[!0-9]*) return 1 ;; esac
    [ "$up" -ge "$refused" ] && [ $((up - refused)) -lt "$REFUSED_FOR" ]
}

# learn NAME: keeps what it answered. A name that stands there for another reason than to say whose it is counts if it is a login here.
learn() {
    timeout -k 1 "$GPUBOARD_LIMIT" awk -v stage=names -f "$LIB/claim.awk" -f "$LIB/inspect.awk" "$answer" >"$answer.names" || :
    : >"$answer.logins"
    if [ -s "$answer.names" ]; then
        set -f
        # shellcheck disable=SC2046 # one word a name
        limited getent 1 getent passwd $(head -n 500 "$answer.names") >"$answer.logins" || :
        set +f
    fi
    {
        tail -n "$MOST_KNOWN" "$known"
        timeout -k 1 "$GPUBOARD_LIMIT" awk -v engine="$1" -v ids="$ids" -v logins="$answer.logins" -f "$LIB/claim.awk" -f "$LIB/inspect.awk" "$answer"
    } >"$answer.known" && mv -f "$answer.known" "$known"
}
