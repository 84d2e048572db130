#!/usr/bin/env bats
# The push into Consul's KV and the registration of the host, with a real Consul: one that leads, with ACLs and TLS, and one without a leader.
load helper

ROOT_TOKEN=5e0c1f7a-0000-4000-8000-000000000001

setup_file() {
    CONSUL=$(command -v consul || echo "$BATS_TEST_DIRNAME/../../.tools/usr/bin/consul")
    [ -x "$CONSUL" ] || missing 'consul is not here; ./install.sh test fetches it'
    local dir=$BATS_FILE_TMPDIR ports
    read -ra ports < <(choose_ports 9)
    export PORT=${ports[0]} TLS_PORT=${ports[1]} LEADERLESS=${ports[2]} ODD=${ports[3]}
    (
        cd "$dir" || exit
        key=(-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes)
        openssl req -x509 "${key[@]}" -days 2 -subj /CN=lab -keyout ca.key -out ca.pem -addext keyUsage=critical,keyCertSign
        openssl req "${key[@]}" -subj /CN=consul -keyout server.key -out server.csr
        echo subjectAltName=IP:127.0.0.1 >names
        openssl x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile names -out server.pem
    ) >/dev/null 2>&1
    # shellcheck disable=SC2016
    cat >"$dir/consul.json" <<EOF2
{"disable_update_check": true, "ca_file": "$dir/ca.pem", "cert_file": "$dir/server.pem", "key_file": "$dir/server.key",
 "ports": {"http": $PORT, "https": $TLS_PORT, "dns": -1, "grpc": -1, "server": ${ports[4]}, "serf_lan": ${ports[5]}, "serf_wan": -1},
 "acl": {"enabled": true, "default_policy": "deny", "tokens": {"master": "$ROOT_TOKEN"}}}
EOF2
    cat >"$dir/leaderless.json" <<EOF2
{"disable_update_check": true, "server": true, "bootstrap_expect": 3, "data_dir": "$dir/leaderless", "performance": {"rpc_hold_timeout": "100ms"},
 "ports": {"http": $LEADERLESS, "dns": -1, "grpc": -1, "server": ${ports[6]}, "serf_lan": ${ports[7]}, "serf_wan": -1}}
EOF2
    cat >"$dir/odd.py" <<'EOF2'
import http.server, sys, time
class Odd(http.server.BaseHTTPRequestHandler):
    def do_PUT(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        kind = self.path.split("/")[3]
        if kind == "hang": time.sleep(30)
        said = {"html": b"<!doctype html>", "echo": self.headers.get("X-Consul-Token", "").encode()}.get(kind, b"true")
        self.send_response({"moved": 301, "echo": 418}.get(kind, 200))
        if kind == "moved": self.send_header("Location", "/v1/kv/elsewhere")
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)
    def log_message(self, *_): pass
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Odd).serve_forever()
EOF2
    "$CONSUL" agent -dev -bind=127.0.0.1 -client=127.0.0.1 -node=gpu1.lab -config-file="$dir/consul.json" >"$dir/log" 2>&1 3>&- &
    SERVERS=$!
    "$CONSUL" agent -bind=127.0.0.1 -client=127.0.0.1 -node=alone -config-file="$dir/leaderless.json" >"$dir/leaderless.log" 2>&1 3>&- &
    SERVERS="$SERVERS $!"
    python3 "$dir/odd.py" "$ODD" >/dev/null 2>&1 3>&- &
    export SERVERS="$SERVERS $!" CONSUL
    wait_until ready
    local rules='service_prefix "gpuboard" { policy = "write" }' number
    for number in {1..20}; do rules="$rules key \"lab$number/data/gpu1\" { policy = \"write\" }"; done # tests run side by side
    api PUT acl/policy -d "{\"Name\": \"gpu1\", \"Rules\": $(jsoned "$rules")}" >/dev/null
    TOKEN=$(api PUT acl/token -d '{"Policies": [{"Name": "gpu1"}]}' | python3 -c 'import json, sys; print(json.load(sys.stdin)["SecretID"])')
    export TOKEN
}

teardown_file() {
    local pid
    for pid in ${SERVERS:-}; do
        kill -9 "$pid"
        wait "$pid" 2>/dev/null || true
    done
}

setup() {
    helper_setup
    LAB=lab$BATS_TEST_NUMBER SERVICE=gpuboard$BATS_TEST_NUMBER
    export GPUBOARD_LIMIT=5 GPUBOARD_DEST=consul://127.0.0.1:$PORT/$LAB CONSUL_HTTP_TOKEN=$TOKEN GPUBOARD_CONSUL_SERVICE=$SERVICE
    unset CONSUL_HTTP_ADDR CONSUL_HTTP_SSL CONSUL_HTTP_SSL_VERIFY CONSUL_CACERT CONSUL_CLIENT_CERT CONSUL_CLIENT_KEY
}

# api METHOD PATH [CURL-OPTION...]: Consul itself, with all rights.
api() { curl -qsSf -H "X-Consul-Token: $ROOT_TOKEN" -X "$1" "http://127.0.0.1:$PORT/v1/$2" "${@:3}"; }
jsoned() { python3 -c 'import json, sys; print(json.dumps(sys.argv[1]))' "$1"; }
ready() {
    api PUT kv/ready -d yes >/dev/null 2>&1 && (exec 4<>"/dev/tcp/127.0.0.1/$LEADERLESS" 5<>"/dev/tcp/127.0.0.1/$ODD") 2>/dev/null
}
value() { api GET "kv/$LAB/data/gpu1?raw" | zcat; }
firsts() { value | grep -c '^# gpuboard 1 task='; }
# health: the status of our check in Consul; nothing if there is none.
health() { api GET health/checks/$SERVICE | python3 -c 'import json, sys; print(*(one["Status"] for one in json.load(sys.stdin)))'; }
is() { [ "$(health)" = "$1" ]; }

# without_curl: a PATH of all that is here but curl; one that ends so is left as it is by the scripts.
without_curl() {
    mkdir "$TMP/all"
    ln -s /usr/bin/* /bin/* "$TMP/all/" 2>/dev/null || true
    rm -f "$TMP/all/curl"
    PATH=$TMP/bin:$TMP/all:/usr/lib/wsl/lib
}

# bats test_tags=quick,shell
@test "a push to Consul is one value with all four files, each whole; the next one takes its place" {
    "$RUN_SH" once
    value >"$TMP/value"
    [ "$(grep -o '^# gpuboard 1 task=[a-z]* host=gpu1' "$TMP/value" | cut -d= -f2 | cut -d' ' -f1 | xargs)" = 'gpus processes ps host' ]
    [ "$(grep -c '^# end$' "$TMP/value")" = 4 ]
    [ "$(api GET "kv/$LAB?keys" | tr -d '[] \n')" = "\"$LAB/data/gpu1\"" ]
    before=$(head -n 1 "$SPOOL/host.txt")
    newer() { run_whole "$RUN_SH" tick 3 && [ "$(head -n 1 "$SPOOL/host.txt")" != "$before" ]; }
    wait_until newer
    wait_until has "$SPOOL/sent" "$(head -n 1 "$SPOOL/host.txt")"
    run "$TMP/scripts/gpu-doctor.sh" gpu1
    [[ $output == *"pass  consul        Consul at 127.0.0.1:$PORT answers, and has the"* ]]
    value | has /dev/stdin "$(head -n 1 "$SPOOL/host.txt")"
    [ "$(firsts)" = 4 ]
}

# bats test_tags=shell
@test "a push to Consul goes by wget where there is no curl, and busybox wget is told to be too little" {
    without_curl
    "$RUN_SH" once
    [ "$(PATH=/usr/bin:/bin firsts)" = 4 ]
    ln -sf "$(command -v busybox)" "$TMP/bin/wget"
    run "$RUN_SH" once
    [ "$status" = 1 ]
    [[ $output == *'neither curl nor GNU wget is on this host (busybox wget cannot PUT): install curl'* ]]
}

# bats test_tags=shell
@test "the token of Consul is no argument of any program, and in no file that stays" {
    for program in curl wget; do
        printf '#!/bin/sh\ntr "\\000" " " </proc/$$/cmdline >>%s/calls\nps -ww -eo args >>%s/calls\nexec /usr/bin/%s "$@"\n' "$TMP" "$TMP" "$program" >"$TMP/bin/$program"
        chmod +x "$TMP/bin/$program"
    done
    "$CHECK" --register
    "$RUN_SH" once
    without_curl
    rm "$TMP/bin/curl"
    "$RUN_SH" once
    has "$TMP/calls" "$TMP/bin/curl -q"
    has "$TMP/calls" "$TMP/bin/wget --config"
    has_not "$TMP/calls" "$TOKEN"
    "$CHECK" --deregister
    "$CHECK" kill
    fails grep -rqF "$TOKEN" "$TMP/spool"
}

@test "settings of Consul stand in gpuboard.conf, and its TLS is checked" {
    mkdir -p "$HOME/.config/gpuboard"
    for line in 'CONSUL_HTTP_TOKEN = hush' 'CONSUL_HTTP_TOKEN= hush'; do
        echo "$line" >"$HOME/.config/gpuboard/gpuboard.conf"
        run env -u CONSUL_HTTP_TOKEN "$RUN_SH" once
        [ "$status" = 2 ]
        [[ $output == *'no spaces around ='* && $output != *hush* ]]
    done
    printf 'CONSUL_HTTP_TOKEN=%s\nCONSUL_HTTP_SSL=true\nGPUBOARD_DEST=consul://127.0.0.1:%s/%s\n' "$TOKEN" "$TLS_PORT" "$LAB" >"$HOME/.config/gpuboard/gpuboard.conf"
    unset CONSUL_HTTP_TOKEN GPUBOARD_DEST
    run "$RUN_SH" once
    [ "$status" = 1 ]
    [[ $output == *certificate* ]]
    echo "CONSUL_CACERT=$BATS_FILE_TMPDIR/ca.pem" >>"$HOME/.config/gpuboard/gpuboard.conf"
    "$RUN_SH" once
    [ "$(firsts)" = 4 ]
    CONSUL_CACERT='' CONSUL_HTTP_SSL_VERIFY=false "$RUN_SH" once
    CONSUL_CACERT=/nowhere run "$RUN_SH" once
    [ "$status" = 2 ]
    [[ $output == *'/nowhere cannot be read'* ]]
    run env CONSUL_HTTP_SSL=false "$RUN_SH" once
    [[ $output == *'speaks TLS: set CONSUL_HTTP_SSL=true'* ]]
    without_curl
    "$RUN_SH" once
    CONSUL_CACERT='' run "$RUN_SH" once
    [ "$status" = 1 ]
    [[ $output == *certificate* ]]
}

@test "each way in which Consul can refuse is one sentence in status, and the old value stays" {
    "$RUN_SH" once
    value >"$TMP/before"
    rm "$SPOOL/host.txt" # so that each push has something new
    "$RUN_SH" tick 3
    said() {
        wait_until has "$SPOOL/push.failed" "$1"
        run "$CHECK" status
        [ "$status" = 1 ]
        [[ $output == *"push         fails: "*"$1"* ]]
    }
    refused() {
        rm -f "$SPOOL/push.failed" "$SPOOL/sent"
        fails "$RUN_SH" push
        said "$1"
    }
    wait_until test -s "$SPOOL/sent"
    value >"$TMP/before"
    GPUBOARD_DEST=consul://127.0.0.1:$LEADERLESS/$LAB refused "Consul at 127.0.0.1:$LEADERLESS has no leader at the moment"
    CONSUL_HTTP_TOKEN=00000000-0000-4000-8000-000000000002 refused "needs key \"$LAB/data/gpu1\" { policy = \"write\" }"
    CONSUL_HTTP_TOKEN='' refused "refuses the key $LAB/data/gpu1 (Permission denied): the token in CONSUL_HTTP_TOKEN (none is set) needs"
    GPUBOARD_DEST=consul://127.0.0.1:$PORT/other refused 'refuses the key other/data/gpu1'
    GPUBOARD_DEST=consul://127.0.0.1:1/$LAB refused 'Consul at 127.0.0.1:1 cannot be reached'
    GPUBOARD_DEST=consul://127.0.0.1:$ODD/moved refused 'answers with a redirect (301), which is not followed'
    GPUBOARD_DEST=consul://127.0.0.1:$ODD/html refused 'answers, but not as Consul does (a page in HTML)'
    GPUBOARD_DEST=consul://127.0.0.1:$ODD/echo refused 'answers with an error (418: words with our token in them)'
    GPUBOARD_LIMIT=1 GPUBOARD_DEST=consul://127.0.0.1:$ODD/hang refused 'no answer within 1 s'
    CONSUL_HTTP_TOKEN='a b' refused 'CONSUL_HTTP_TOKEN is not a token'
    [ "$(value)" = "$(cat "$TMP/before")" ]
    rm -f "$SPOOL/sent"
    "$RUN_SH" push
    [ ! -e "$SPOOL/push.failed" ]
    run env HOST=gpu2 "$RUN_SH" once # a stolen token lies about one host only
    [[ $output == *"refuses the key $LAB/data/gpu2"* ]]
}

@test "a value over 512 KB is refused before it is sent" {
    "$RUN_SH" once
    value >"$TMP/before"
    { head -n 1 "$SPOOL/ps.txt" && head -c 700000 /dev/urandom | base64 && echo '# end'; } >"$TMP/large"
    mv "$TMP/large" "$SPOOL/ps.txt"
    run "$RUN_SH" push
    [ "$status" = 1 ]
    has "$SPOOL/push.failed" 'KB compressed, and Consul accepts 512 KB: nothing was sent'
    [ "$(value)" = "$(cat "$TMP/before")" ]
}

@test "a prefix or an address that leads elsewhere is refused at once" {
    for rest in 127.0.0.1:8500 127.0.0.1:8500/ 127.0.0.1/../x 127.0.0.1/a//b 127.0.0.1/a/./b 127.0.0.1/.a 127.0.0.1/a/-b 127.0.0.1/a..b '127.0.0.1/a?b' '127.0.0.1/a b' 127.0.0.1//a \
        127.0.0.1:0/a 127.0.0.1:65536/a '127.0.0.1:8500;x/a' /a :8500/a '[::1/a' name:secret@127.0.0.1/a 127.0.0.1/%2e%2e/a; do
        run env GPUBOARD_DEST="consul://$rest" "$RUN_SH" once
        [ "$status" = 2 ]
        [[ $output == *Consul* || $output == *prefix* ]]
        [[ $output != *secret* ]]
    done
    run "$CHECK" ../gpu1
    [ "$status" = 2 ]
}

@test "a registered host passes in Consul while its pushes arrive, and is critical, but listed, when they stop" {
    unset GPUBOARD_CONSUL_SERVICE
    export GPUBOARD_LIMIT=1 SERVICE=gpuboard # by default
    "$CHECK" --register gpu1
    wait_until is passing
    api GET catalog/service/gpuboard | has /dev/stdin '"host": "gpu1"'
    run "$CHECK" status
    [ "$status" = 0 ]
    [[ $output == *"Consul       registered as gpuboard-gpu1 at 127.0.0.1:$PORT"* ]]
    api PUT agent/service/deregister/gpuboard-gpu1 # as an agent that lost its data
    wait_until is passing
    "$CHECK" kill
    wait_until is critical
    "$CHECK" --deregister gpu1
    is ''
    "$RUN_SH" once
    is ''
}

# bats test_tags=shell
@test "a host that pushes elsewhere registers with the agent of CONSUL_HTTP_ADDR, and one that hangs delays no push" {
    export GPUBOARD_DEST=$TMP/data CONSUL_HTTP_ADDR=http://127.0.0.1:$PORT/
    "$CHECK" --register gpu1
    wait_until is passing
    "$CHECK" kill
    export CONSUL_HTTP_ADDR=127.0.0.1:1
    "$RUN_SH" once
    has "$SPOOL/register.failed" 'Consul at 127.0.0.1:1 cannot be reached'
    run "$CHECK" status
    [[ $output == *'Consul       not registered: Consul at 127.0.0.1:1 cannot be reached'* ]]
    export CONSUL_HTTP_ADDR=127.0.0.1:$PORT CONSUL_HTTP_TOKEN=''
    run "$CHECK" --register gpu1
    [ "$status" = 2 ]
    [[ $output == *"refuses the service $SERVICE"*"needs service \"$SERVICE\" { policy = \"write\" }"* ]]
    run "$CHECK" kill --register
    [ "$status" = 2 ]
    "$CHECK" kill
    CONSUL_HTTP_TOKEN=$TOKEN "$CHECK" --deregister
    is ''
}
