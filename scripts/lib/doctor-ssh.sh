# shellcheck shell=sh disable=SC2034,SC2154 # variables come from gpu-doctor.sh, and go back to it
# Checks of ssh, where snapshots go that way: the key, and one login.

# own_key: the private key of this host alone, if it has one; only ssh:// uses it.
own_key() {
    case $GPUBOARD_DEST in ssh://*) ;; *) return 0 ;; esac
    key=${GPUBOARD_SSH_KEY:-$HOME/.config/gpuboard/keys/$HOST}
    [ ! -e "$key" ] && [ -z "${GPUBOARD_SSH_KEY:-}" ] || printf '%s\n' "$key"
}

# with_ssh OPTION [COMMAND]: ssh as the push calls it, but without the connection that it keeps open.
with_ssh() {
    option=$1 command=${2:-}
    more=$HOME/.config/gpuboard/known_hosts
    key=$(own_key | sed 's/%/%%/g')
    set -- ssh
    [ -z "$key" ] || set -- "$@" -i "$key" -o IdentitiesOnly=yes
    [ ! -e "$more" ] || set -- "$@" -o "GlobalKnownHostsFile /etc/ssh/ssh_known_hosts \"$more\""
    [ -z "${GPUBOARD_SSH_CONFIG:-}" ] || set -- "$@" -F "$GPUBOARD_SSH_CONFIG"
    [ -z "$port" ] || set -- "$@" -p "$port"
    asked "$@" -a -x -o BatchMode=yes -o LogLevel=VERBOSE -o StrictHostKeyChecking=yes -o ConnectTimeout="$GPUBOARD_LIMIT" -o ControlMaster=no \
        -o ControlPath=none -o ClearAllForwardings=yes -o RemoteCommand=none -o PermitLocalCommand=no "$option" -- "$target" ${command:+"$command"}
}

# see_ssh_key: without an agent, which cron does not have, it must be a file, this user's alone, and without a passphrase.
see_ssh_key() {
    applies ssh || return 0
    keys=$(own_key)
    if [ -z "$keys" ]; then
        with_ssh -G
        keys=$(awk -v home="$HOME" '$1 == "identityfile" {sub(/^identityfile /, ""); sub(/^~/, home); print}' "$out")
    fi
    tried='' good='' bad=''
    while IFS= read -r key; do
        [ -e "$key" ] || continue
        tried=$key
        asked ssh-keygen -y -P '' -f "$key"
        case $rc:$(cat "$err") in
            0:*) good=$key ;;
            *'bad permissions'* | *'too open'*) bad="others may read it: chmod 600 $key" ;;
            *passphrase*) bad="it needs a passphrase, which nobody types for cron: ssh-keygen -p -f $key" ;;
            *) bad="$(last_words): make a new one with ./install.sh host" ;;
        esac
        [ -z "$good" ] || break
    done <<KEYS
$keys
KEYS
    if [ -n "$good" ]; then
        pass "$good"
    elif [ -n "$tried" ]; then
        fail "the key $tried cannot be used" "$bad"
    else
        fail "there is no key of this user for $GPUBOARD_DEST" './install.sh host makes one; then let it in on the web host'
    fi
}

# see_receiver: a key of ssh:// is let in; what answers it must be the receiver of this host.
see_receiver() {
    told=$(sed -n 's/^refused //p' "$out" | head -n 1)
    case $told in
        "this key takes snapshots of $HOST and no commands") pass "$target lets this host in, after $(seconds "$took")" ;;
        'this key takes snapshots of '*) fail "$target takes this key for another host: $told" "enrol it there under the right name: gpu-enrol.sh add $HOST" ;;
        ?*) fail "$target lets this host in, and refuses what it sends: $told" 'mend that on the web host: gpuboard doctor there tells more' ;;
        *) fail "$target lets this host in, but gpu-receive.sh does not answer there: ${words:-$(tail -n 1 "$out")}" "enrol the key there again: gpu-enrol.sh add $HOST" ;;
    esac
}

# see_ssh: one login. A key that may do one thing only ignores what we ask; any other tells the web host's time.
see_ssh() {
    applies ssh || return 0
    asked_at=$(date +%s)
    with_ssh -T 'date +%s'
    words=$(grep -vE '^(Authenticated|Transferred|Bytes|debug|Warning: Permanently)' "$err" | tr -d '\r' | awk 'NF {last = $0} END {print substr(last, 1, 200)}')
    web_time=$(grep -xE '[0-9]{9,11}' "$out" | tail -n 1 || :)
    if grep -q '^Authenticated to' "$err"; then
        case $GPUBOARD_DEST:$web_time in
            ssh://*:) see_receiver ;;
            ssh://*) warn "$GPUBOARD_DEST lets this key in, and it opens a shell there: whoever has it can do all that this account can" 'enrol it on the web host with gpu-enrol.sh, which lets it push and no more: docs/security.md' ;;
            *) pass "$target lets this host in, after $(seconds "$took")" ;;
        esac
        return
    fi
    case $rc:$(cat "$err") in
        *'IDENTIFICATION HAS CHANGED'*) fail "the key of $target is another than the known one" "ask its admin for the new one; only then take the old one out (ssh-keygen -R), and log in once by hand: ssh ${port:+-p $port }$target" ;;
        *'Host key verification failed'* | *'host key is known'*) fail "the key of $target is not known here" "log in there once by hand as this user (ssh ${port:+-p $port }$target), or add it to known_hosts" ;;
        *'Permission denied'*) fail "$target does not take the key of this host: $words" "let it in on the web host: gpu-enrol.sh add $HOST, or for user@web:/path ssh-copy-id" ;;
        124:* | 137:*) fail "$target does not answer within $GPUBOARD_LIMIT s" 'see whether the network, a firewall or sshd is in the way' ;;
        *) fail "$target cannot be reached: $words" "find out why this does not work: ssh ${port:+-p $port }$target" ;;
    esac
}
