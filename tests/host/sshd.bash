# A real sshd on loopback, for the tests of the push over ssh.
# shellcheck shell=bash disable=SC2034,SC2046,SC2086 # used by the tests; one word a pid

SFTP_SERVER=/usr/lib/openssh/sftp-server

# setup_sshd: keys, a configuration for each side, a free port; `web` is then its name.
setup_sshd() {
    helper_setup
    command -v sshd >/dev/null || [ -x /usr/sbin/sshd ] || missing 'sshd is not installed'
    export GPUBOARD_LIMIT=5
    S=$TMP/sshd
    mkdir -p "$S"
    ssh-keygen -q -t ed25519 -N '' -f "$S/host"
    ssh-keygen -q -t ed25519 -N '' -f "$S/user"
    cp "$S/user.pub" "$S/authorized"
    PORT=$(choose_ports 1)
    cat >"$S/config" <<EOF
Port $PORT
ListenAddress 127.0.0.1
HostKey $S/host
AuthorizedKeysFile $S/authorized
PidFile $S/pid
StrictModes no
UsePAM no
PermitRootLogin yes
LogLevel VERBOSE
Subsystem sftp $SFTP_SERVER
SetEnv XDG_STATE_HOME=$TMP/xdg
EOF
    cat >"$S/client" <<EOF
Host web web2
  HostName 127.0.0.1
  Port $PORT
  User $(id -un)
  IdentityFile $S/user
  IdentitiesOnly yes
  UserKnownHostsFile $S/known
  GlobalKnownHostsFile none
EOF
    sed "s/^/[127.0.0.1]:$PORT /" "$S/host.pub" >"$S/known"
    export GPUBOARD_SSH_CONFIG=$S/client
    [ "$(id -u)" != 0 ] || mkdir -p /run/sshd
}

start_sshd() {
    "${IN[@]}" /usr/sbin/sshd -D -e -f "$S/config" 2>>"$S/log" &
    SSHD=$!
    wait_until bash -c "exec 3<>/dev/tcp/127.0.0.1/$PORT" 2>/dev/null
}

# connections: the sshd processes that serve ours.
# Beside the process that sshd started stands, for an ordinary user, the one that this started for the session.
connections() {
    local monitors
    monitors=$(pgrep -d, -P "$SSHD") || return
    pgrep -P "$SSHD,$monitors" sshd
}
logins() { grep -c 'Accepted publickey' "$S/log"; }
logged_in() { [ "$(logins)" = "$1" ]; }
stop_sshd() {
    local pids
    pids="$SSHD $(connections) $(for pid in $(connections); do pgrep -P "$pid"; done)"
    kill -9 $pids 2>/dev/null || true
    wait "$SSHD" 2>/dev/null || true
}

teardown() {
    [ -z "${SSHD:-}" ] || stop_sshd
    end_processes
}

arrived_since() { [ "$(sed -n '1s/.* time=\([0-9]*\) .*/\1/p' "$DATA/host.txt" 2>/dev/null || echo 0)" -gt "${1:-0}" ]; }
# next_arrival: waits for a snapshot that is taken after now.
next_arrival() { wait_until arrived_since "$(date +%s)"; }
