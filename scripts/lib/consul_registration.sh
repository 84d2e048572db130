# shellcheck shell=sh disable=SC2034,SC2154 # agent, http_status, response_text, hang_limit: set by the scripts that are read here
# gpu-check.sh --register: the host as a service in Consul, with a check that fails when no push has succeeded for three intervals.
# SPOOL/registered exists if it is wanted, and holds what was last registered; SPOOL/register.failed says why that failed.
# shellcheck source=scripts/lib/consul.sh
. "$LIB/consul.sh"

# choose_agent: set agent to CONSUL_HTTP_ADDR, else to the destination of snapshots, else to the agent of this host; set service_id, and
# registration to all that the agent must know.
choose_agent() {
    check_consul_settings
    case ${CONSUL_HTTP_ADDR:-}:${GPUBOARD_DEST:-} in
        :consul://*) parse_consul_destination ;;
        :*) agent=127.0.0.1:8500 ;;
        *)
            case $CONSUL_HTTP_ADDR in https://*) scheme=https ;; esac
            address=${CONSUL_HTTP_ADDR#https://}
            address=${address#http://}
            parse_agent_address "${address%/}" CONSUL_HTTP_ADDR
            ;;
    esac
    service=${GPUBOARD_CONSUL_SERVICE:-gpuboard}
    case $service in [!A-Za-z0-9]* | *[!A-Za-z0-9._-]*) die "GPUBOARD_CONSUL_SERVICE is '$service', but must be the name of a service: letters, digits and . _ -" ;; esac
    set_hang_limit "$GPUBOARD_PS_EVERY"
    service_id=$service-$HOST
    registration="$agent $service $hang_limit"
}

# register_service: register the service, again if need be. Consul never deregisters it: a host that is down must stay listed.
register_service() {
    cat >"$RUN/service.json" <<EOT
{"ID": "$service_id", "Name": "$service", "Meta": {"host": "$HOST", "collector": "$GPUBOARD_VERSION"},
 "Check": {"CheckID": "service:$service_id", "Name": "snapshots arrive", "Notes": "every push of gpuboard renews it", "TTL": "${hang_limit}s"}}
EOT
    put_to_consul register agent/service/register "$RUN/service.json"
    [ "$http_status:$response_text" = 200: ] || return 1
    printf '%s\n' "$registration" >"$RUN/registered" && mv -f "$RUN/registered" "$SPOOL/registered"
}

# renew_service_check: tell the agent that a push has arrived.
renew_service_check() {
    put_to_consul register "agent/check/pass/service:$service_id"
    [ "$http_status:$response_text" = 200: ]
}

# record_registration_failure: store the reason for `gpu-check.sh status`, and print it on stderr.
record_registration_failure() {
    explain_consul_answer "the service $service" "service \"$service\" { policy = \"write\" }" 2>"$RUN/register.failed"
    cat "$RUN/register.failed" >&2
    mv -f "$RUN/register.failed" "$SPOOL/register.failed"
    return 1
}

# lock_registration FLOCK-OPTIONS...: let one process at a time register; settings that cannot be used are a failure too.
lock_registration() {
    exec 6>>"$RUN/register"
    flock "$@" 6 || return 1
    (choose_agent) 2>"$RUN/register.failed" || {
        cat "$RUN/register.failed" >&2
        mv -f "$RUN/register.failed" "$SPOOL/register.failed"
        return 1
    }
    choose_agent
}

# renew_registration: renew the check after a push. An agent that does not know us (it lost its data, or is another one) gets the service again.
renew_registration() {
    lock_registration -n || return 0
    registered_as='' http_status=''
    read -r registered_as <"$SPOOL/registered" || :
    if [ "$registered_as" != "$registration" ] || ! renew_service_check; then
        case $http_status in 000 | 403) record_registration_failure || return 0 ;; esac
        register_service && renew_service_check || record_registration_failure || return 0
    fi
    rm -f "$SPOOL/register.failed"
}

# register_host: register now. What fails is tried again at each push.
register_host() {
    [ -e "$SPOOL/registered" ] || : >"$SPOOL/registered"
    lock_registration -w "$((3 * GPUBOARD_LIMIT))" || return 1
    register_service || record_registration_failure || return 1
    rm -f "$SPOOL/register.failed"
}

# deregister_host: deregister. While the agent cannot be reached, the registration stays wanted.
deregister_host() {
    lock_registration -w "$((3 * GPUBOARD_LIMIT))" || return 1
    put_to_consul register "agent/service/deregister/$service_id"
    case $http_status:$response_text in 200: | 404:* | 500:*[Uu]nknown*) ;; *) record_registration_failure || return 1 ;; esac
    rm -f "$SPOOL/registered" "$SPOOL/register.failed"
}
