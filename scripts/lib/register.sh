# shellcheck shell=sh disable=SC2034,SC2154 # agent, answer, said, patience: set by the scripts that are read here
# gpu-check.sh --register: the host as a service of Consul's, with a check that fails by itself when no push has succeeded for three intervals.
# SPOOL/registered says that it is wanted, and holds what the agent was told last; SPOOL/register.failed says why it could not be told.
# shellcheck source=scripts/lib/consul.sh
. "$LIB/consul.sh"
# shellcheck source=scripts/lib/loops.sh
. "$LIB/loops.sh"

# choose_agent: CONSUL_HTTP_ADDR, else where snapshots go, else the agent of this host; sets id, and wanted to all that the agent must know.
choose_agent() {
    check_consul
    case ${CONSUL_HTTP_ADDR:-}:${GPUBOARD_DEST:-} in
        :consul://*) parse_consul_dest ;;
        :*) agent=127.0.0.1:8500 ;;
        *)
            case $CONSUL_HTTP_ADDR in https://*) scheme=https ;; esac
            bare=${CONSUL_HTTP_ADDR#https://}
            bare=${bare#http://}
            parse_agent "${bare%/}" CONSUL_HTTP_ADDR
            ;;
    esac
    service=${GPUBOARD_CONSUL_SERVICE:-gpuboard}
    case $service in [!A-Za-z0-9]* | *[!A-Za-z0-9._-]*) die "GPUBOARD_CONSUL_SERVICE is '$service', but must be the name of a service: letters, digits and . _ -" ;; esac
    set_patience "$GPUBOARD_PS_EVERY"
    id=$service-$HOST
    wanted="$agent $service $patience"
}

# tell_agent: registers the service; again makes no difference. It is never deregistered by Consul: a host that is down must stay listed.
tell_agent() {
    cat >"$RUN/service.json" <<EOT
{"ID": "$id", "Name": "$service", "Meta": {"host": "$HOST", "collector": "$GPUBOARD_VERSION"},
 "Check": {"CheckID": "service:$id", "Name": "snapshots arrive", "Notes": "every push of gpuboard renews it", "TTL": "${patience}s"}}
EOT
    consul_put register agent/service/register "$RUN/service.json"
    [ "$answer:$said" = 200: ] || return 1
    printf '%s\n' "$wanted" >"$RUN/registered" && mv -f "$RUN/registered" "$SPOOL/registered"
}

# pass_check: the agent hears that a push has arrived.
pass_check() {
    consul_put register "agent/check/pass/service:$id"
    [ "$answer:$said" = 200: ]
}

# not_registered: why, for `gpu-check.sh status`, and on stderr.
not_registered() {
    explain "the service $service" "service \"$service\" { policy = \"write\" }" 2>"$RUN/register.failed"
    cat "$RUN/register.failed" >&2
    mv -f "$RUN/register.failed" "$SPOOL/register.failed"
    return 1
}

# take_register FLOCK-OPTIONS...: one at a time; a settings file that cannot be used is a reason too.
take_register() {
    exec 6>>"$RUN/register"
    flock "$@" 6 || return 1
    (choose_agent) 2>"$RUN/register.failed" || {
        cat "$RUN/register.failed" >&2
        mv -f "$RUN/register.failed" "$SPOOL/register.failed"
        return 1
    }
    choose_agent
}

# renew: after a push that arrived. An agent that does not know us (it lost its data, or we were told to use another) is told again.
renew() {
    take_register -n || return 0
    told='' answer=''
    read -r told <"$SPOOL/registered" || :
    if [ "$told" != "$wanted" ] || ! pass_check; then
        case $answer in 000 | 403) not_registered || return 0 ;; esac
        tell_agent && pass_check || not_registered || return 0
    fi
    rm -f "$SPOOL/register.failed"
}

# register: now, as somebody asked for it. What cannot be done now is tried at each push.
register() {
    [ -e "$SPOOL/registered" ] || : >"$SPOOL/registered"
    take_register -w "$((3 * GPUBOARD_LIMIT))" || return 1
    tell_agent || not_registered || return 1
    rm -f "$SPOOL/register.failed"
}

# deregister: takes it back; while the agent cannot be told, it stays wanted.
deregister() {
    take_register -w "$((3 * GPUBOARD_LIMIT))" || return 1
    consul_put register "agent/service/deregister/$id"
    case $answer:$said in 200: | 404:* | 500:*[Uu]nknown*) ;; *) not_registered || return 1 ;; esac
    rm -f "$SPOOL/registered" "$SPOOL/register.failed"
}
