# shellcheck shell=sh disable=SC2034,SC2154 # variables come from gpu-doctor.sh and consul.sh, and go back to them
# The check of Consul, where snapshots go there: one GET of this host's key tests address, TLS, leader, token, and time.

# inspect_consul: whether Consul answers, and has the last snapshot.
inspect_consul() {
    require_transport consul || return 0
    # shellcheck source=scripts/lib/consul.sh
    . "$LIB/consul.sh"
    if ! message=$( (parse_consul_destination && check_consul_settings) 2>&1); then
        report_failure "${message#"${0##*/}: "}" 'correct it in gpuboard.conf'
        return
    fi
    parse_consul_destination
    check_consul_settings
    asked_at=$(date +%s)
    query_consul "$scheme://$agent/v1/kv/$prefix/data/$HOST?raw"
    date_header=$(sed -n 's/^ *[Dd]ate: *//p' "$work/headers" | tr -d '\r' | tail -n 1)
    [ -z "$date_header" ] || web_time=$(date -d "$date_header" +%s 2>/dev/null) || web_time=
    case $http_status in
        200) report_pass "Consul at $agent answers, and has the last snapshot of this host" ;;
        404) report_pass "Consul at $agent answers; it has no snapshot of this host yet" ;;
        *) report_failure "$(explain_consul_answer "the key $prefix/data/$HOST" "key \"$prefix/data/$HOST\" { policy = \"write\" }" 2>&1)" 'the last snapshot stays there; the loops keep trying' ;;
    esac
}

# query_consul URL: set http_status (000 without a response), and response_text to the beginning of an error. The token is in a file that
# only we can read.
query_consul() {
    http_status='' response_text=''
    : >"$work/headers"
    : >"$work/body"
    if command -v curl >/dev/null; then
        (umask 077 && print_client_settings curl >"$work/rc")
        run_with_timeout curl -q -K "$work/rc" -gsS --noproxy '*' --max-time "$GPUBOARD_LIMIT" -D "$work/headers" -o "$work/body" -w '%{http_code}' "$1"
        http_status=$(cat "$out")
    else
        (umask 077 && print_client_settings wget >"$work/rc")
        run_with_timeout wget --config="$work/rc" -nv -S --no-proxy --no-hsts --tries=1 --max-redirect=0 --content-on-error -O "$work/body" "$1"
        cp "$err" "$work/headers"
        http_status=$(awk '$1 ~ /^HTTP\// {code = $2} END {print code}' "$err")
    fi
    case $http_status in
        [1-5][0-9][0-9]) response_text=$(head -c 150 "$work/body" | tr '\000-\037\177' ' ') ;;
        *)
            http_status=000 response_text=$(print_last_line | sed 's/^curl: ([0-9]*) //')
            ! is_timed_out && [ "$rc" != 28 ] || response_text="no answer within $GPUBOARD_LIMIT s"
            ;;
    esac
    case $response_text in '<'*) response_text='a page in HTML' ;; esac
}
