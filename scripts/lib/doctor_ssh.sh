# shellcheck shell=sh disable=SC2034,SC2154 # variables come from gpu-doctor.sh, and go back to it
# Checks of ssh, where snapshots go that way: the key, and one login.

# print_own_key: print the private key of this host, if it has one; only ssh:// uses it.
print_own_key() {
    case $GPUBOARD_DEST in ssh://*) ;; *) return 0 ;; esac
    key=${GPUBOARD_SSH_KEY:-$HOME/.config/gpuboard/keys/$HOST}
    [ ! -e "$key" ] && [ -z "${GPUBOARD_SSH_KEY:-}" ] || printf '%s\n' "$key"
}

# try_ssh OPTION [COMMAND]: call ssh like the push, but without its open connection.
try_ssh() {
    option=$1 command=${2:-}
    known_hosts=$HOME/.config/gpuboard/known_hosts
    key=$(print_own_key | sed 's/%/%%/g')
    set -- ssh
    [ -z "$key" ] || set -- "$@" -i "$key" -o IdentitiesOnly=yes
    [ ! -e "$known_hosts" ] || set -- "$@" -o "GlobalKnownHostsFile /etc/ssh/ssh_known_hosts \"$known_hosts\""
    [ -z "${GPUBOARD_SSH_CONFIG:-}" ] || set -- "$@" -F "$GPUBOARD_SSH_CONFIG"
    [ -z "$port" ] || set -- "$@" -p "$port"
    run_with_timeout "$@" -a -x -o BatchMode=yes -o LogLevel=VERBOSE -o StrictHostKeyChecking=yes -o ConnectTimeout="$GPUBOARD_LIMIT" -o ControlMaster=no \
        -o ControlPath=none -o ClearAllForwardings=yes -o RemoteCommand=none -o PermitLocalCommand=no "$option" -- "$target" ${command:+"$command"}
}

# inspect_ssh_key: whether there is a key that works without an agent, which cron does not have: a file, readable by this user alone, without a passphrase.
inspect_ssh_key() {
    require_transport ssh || return 0
    keys=$(print_own_key)
    if [ -z "$keys" ]; then
        try_ssh -G
        keys=$(awk -v home="$HOME" '$1 == "identityfile" {sub(/^identityfile /, ""); sub(/^~/, home); print}' "$out")
    fi
    tried='' good='' bad=''
    while IFS= read -r key; do
        [ -e "$key" ] || continue
        tried=$key
        run_with_timeout ssh-keygen -y -P '' -f "$key"
        case $rc:$(cat "$err") in
            0:*) good=$key ;;
            *'bad permissions'* | *'too open'*) bad="others may read it: chmod 600 $key" ;;
            *passphrase*) bad="it needs a passphrase, which nobody types for cron: ssh-keygen -p -f $key" ;;
            *) bad="$(print_last_line): make a new one with ./install.sh host" ;;
        esac
        [ -z "$good" ] || break
    done <<KEYS
$keys
KEYS
    if [ -n "$good" ]; then
        report_pass "$good"
    elif [ -n "$tried" ]; then
        report_failure "the key $tried cannot be used" "$bad"
    else
        report_failure "this user has no ssh key for $GPUBOARD_DEST" 'create one with ./install.sh host, then enrol it on the web host'
    fi
}

# inspect_receiver: whether the key of ssh:// is answered by the receiver of this host.
inspect_receiver() {
    refusal=$(sed -n 's/^refused //p' "$out" | head -n 1)
    case $refusal in
        "this key takes snapshots of $HOST and no commands") report_pass "$target accepts this host, in $(format_seconds "$took")" ;;
        'this key takes snapshots of '*) report_failure "$target has this key enrolled for another host: $refusal" "enrol it there under the right name: gpu-enrol.sh add $HOST" ;;
        ?*) report_failure "$target accepts this host, but refuses what it sends: $refusal" 'correct that on the web host: gpuboard doctor there shows more' ;;
        *) report_failure "$target accepts this host, but gpu-receive.sh does not answer there: ${message:-$(tail -n 1 "$out")}" "enrol the key there again: gpu-enrol.sh add $HOST" ;;
    esac
}

# inspect_ssh: try one login. A restricted key ignores the command; any other prints the time of the web host.
inspect_ssh() {
    require_transport ssh && require_checks ssh-key || return 0
    asked_at=$(date +%s)
    try_ssh -T 'date +%s'
    message=$(grep -vE '^(Authenticated|Transferred|Bytes|debug|Warning: Permanently)' "$err" | tr -d '\r' | awk 'NF {last = $0} END {print substr(last, 1, 200)}')
    web_time=$(grep -xE '[0-9]{9,11}' "$out" | tail -n 1 || :)
    if grep -q '^Authenticated to' "$err"; then
        case $GPUBOARD_DEST:$web_time in
            ssh://*:) inspect_receiver ;;
            ssh://*) report_warning "this key opens a shell at $GPUBOARD_DEST: whoever has it can do everything that account can" 'enrol it on the web host with gpu-enrol.sh, which restricts it to pushing: docs/security.md' ;;
            *) report_pass "$target accepts this host, in $(format_seconds "$took")" ;;
        esac
        return
    fi
    case $rc:$(cat "$err") in
        *'IDENTIFICATION HAS CHANGED'*) report_failure "the host key of $target has changed" "ask its admin for the new key; then remove the old one (ssh-keygen -R) and log in once by hand: ssh ${port:+-p $port }$target" ;;
        *'Host key verification failed'* | *'host key is known'*) report_failure "the host key of $target is not known here" "log in there once by hand as this user (ssh ${port:+-p $port }$target), or add it to known_hosts" ;;
        *'Permission denied'*) report_failure "$target does not accept this host's key: $message" "enrol it on the web host: gpu-enrol.sh add $HOST, or for user@web:/path ssh-copy-id" ;;
        124:* | 137:*) report_failure "$target does not answer within $GPUBOARD_LIMIT s" 'check the network, the firewall and sshd' ;;
        *) report_failure "$target cannot be reached: $message" "find out why this fails: ssh ${port:+-p $port }$target" ;;
    esac
}
