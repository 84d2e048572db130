# shellcheck shell=sh disable=SC2034,SC2154 # variables of user.sh, and of the scripts
# ./install.sh host: this GPU host sends its snapshots from now on.

# read_words WORDS...: sets named and dest.
read_words() {
    named='' dest='' given=''
    while [ $# -gt 0 ]; do
        case $1 in
            --name | --dest) [ $# -ge 2 ] || die "$1 needs a word behind it: see ./install.sh --help" ;;
        esac
        case $1 in
            --name) named=$2 && check_host "$2" && shift ;;
            --name=*) named=${1#*=} && check_host "$named" ;;
            --dest) dest=$2 && given=1 && shift ;;
            --dest=*) dest=${1#*=} && given=1 ;;
            *) die "there is no '$1' for host: see ./install.sh --help" ;;
        esac
        shift
    done
}

# choose_name: the one given, now or when this host was installed; sets board_name to what the board will show.
choose_name() {
    name=${named:-$(noted host | sed -n '$s/^host *//p')}
    board_name=${name:-$(own_name)}
    (check_host "$board_name") 2>/dev/null || die "this machine is called '$board_name', which cannot be a host's name on the board: choose one with --name"
}

# choose_dest: the one given, or that of the settings file that cron will find.
choose_dest() {
    known=$(cd "$HOME" && load_settings && printf '%s\n' "${GPUBOARD_DEST:-}")
    [ -n "$given" ] || dest=$known
    [ -n "$dest" ] || die 'say where the snapshots go: ./install.sh host --dest ssh://USER@WEB, or a folder that the web host sees too'
    case $dest in
        *[[:cntrl:]]* | ' '*) die "'$(shown "$dest")' cannot be a destination: it begins with a blank, or holds control characters" ;;
        *:* | [\"\']*) ;; # the check below knows more
        *) dest=$(absolute "$dest") ;;
    esac
    (check_this "$dest") || exit 2
}

# check_this DEST: by the rule of the scripts themselves.
check_this() {
    GPUBOARD_DEST=$1
    check_dest
}

# end_old_names: loops under a name that the crontab had before would run on until the next boot.
end_old_names() {
    for old in $(noted_names); do
        [ "$old" = "$board_name" ] || end_loops "$old" || say "loops of $old still run here: end them by hand"
    done
}

# advice REASON: what helps, for what ssh and our own push say most often.
advice() {
    case $dest in consul://*) echo 'mend that (docs/scaling.md tells what Consul must allow), then look again' && return ;; esac
    read_target
    target=${port:+-p $port }$target
    case $dest:$1 in
        ssh://*'Permission denied'* | ssh://*'is not enrolled'*) echo 'let the key of this host in, by the line below' && return ;;
        ssh://*'refuses it'*) echo 'see receive.log in the folder receive/ of the state folder of the web host' && return ;;
    esac
    case $1 in
        *'is not known here'* | *'Host key'*) echo "log in there once by hand, to see and accept its key: ssh $target" ;;
        *'Permission denied'*publickey* | *'Permission denied'*password*) echo "let this user log in there with a key that needs no password: ssh-keygen (unless there is one), then ssh-copy-id $target" ;;
        *'is not there'*) echo "make or mount the folder $dest; on the web host, ./install.sh web makes one" ;;
        *'No such file'* | *'not found'*) echo "make the folder there, by ./install.sh web, or: ssh $target mkdir -p $path" ;;
        *resolve* | *refused* | *'timed out'* | *'no answer'* | *unreachable*) echo "find out why this does not work: ssh $target" ;;
        *) echo "see whether this user may write there, then look again" ;;
    esac
}

# make_key: a key of this host alone, for ssh://; one that is there stays. Sets public to the file with its public half.
make_key() {
    public=
    case $dest in ssh://*) ;; *) return 0 ;; esac
    key=$(conf_value GPUBOARD_SSH_KEY)
    key=${key:-$KEYS/$board_name}
    if [ ! -e "$key" ]; then
        make_folder 0700 "${key%/*}"
        printf 'key %s\n' "$key" >>"$MADE"
        { ssh-keygen -q -t ed25519 -N '' -C "gpuboard $board_name" -f "$work/key" && mv -f "$work/key.pub" "$key.pub" && mv -f "$work/key" "$key"; } ||
            die "the key $key could not be made"
        as_cron "$SCRIPTS/gpu-check.sh" kill "$board_name" >/dev/null 2>&1 || : # with a connection by another key
    fi
    public=$key.pub
    [ -e "$public" ] || ssh-keygen -y -f "$key" >"$public" || die "the key $key cannot be read: remove it, and a new one is made"
}

# enrol: by a login that this user has there anyway, so that nobody need do it by hand; then what was refused is sent again.
enrol() {
    case $arrived:$dest:$reason in
        no:ssh://*'Permission denied'* | no:ssh://*'is not enrolled'*) ;;
        *) return 0 ;;
    esac
    read_target
    config=$(conf_value GPUBOARD_SSH_CONFIG)
    timeout 30 ssh ${config:+-F "$config"} ${port:+-p "$port"} -T -o BatchMode=yes -o StrictHostKeyChecking=yes -o ConnectTimeout=10 -- "$target" \
        ".local/share/gpuboard/scripts/gpu-enrol.sh add $board_name" <"$public" 2>"$work/words" || return 0
    tell "The key of this host was enrolled there, by your own login"
    first_snapshot
}

# read_target: what ssh calls the place of dest; sets target, and port or path.
read_target() {
    HOST=$board_name
    GPUBOARD_DEST=$dest port=
    # shellcheck source=/dev/null
    case $dest in
        ssh://*) . "$LIB/to-ssh.sh" && parse_url ;;
        *) . "$LIB/to-sftp.sh" && parse_dest ;;
    esac
}

# tell_enrol: the one line for the web host, by which it takes this host's snapshots.
tell_enrol() {
    case $dest in *@*) account=${dest#ssh://} && account=${account%@*} ;; *) account=$(id -un) ;; esac
    tell "On the web host, as $account:  echo '$(cat "$public")' | ~/.local/share/gpuboard/scripts/gpu-enrol.sh add $board_name"
}

# first_snapshot: sets arrived, and reason if it did not.
first_snapshot() {
    arrived=yes reason=
    tell "Taking a first snapshot, as $board_name, for $dest"
    as_cron env HOST="$board_name" "$SCRIPTS/gpu-run.sh" once 2>"$work/words" && return
    arrived=no
    cat "$work/words" >&2
    reason=$(tail -n 1 "$work/words")
}

# await_loops: until they have pushed too, so that who asks gpu-check.sh next hears the same as here.
await_loops() {
    [ "$arrived" = yes ] || return 0
    tries=20
    until as_cron "$SCRIPTS/gpu-check.sh" status "$board_name" >/dev/null 2>&1; do
        tries=$((tries - 1))
        [ "$tries" -gt 0 ] || break
        sleep 1
    done
}

report_host() {
    check=$(quoted "$SCRIPTS/gpu-check.sh")
    tell ''
    if [ "$arrived" = yes ]; then
        tell "The first snapshot arrived at $dest: this host is on the board as $board_name, and the loops run."
    else
        tell "All is in place, but nothing has arrived at $dest yet; the loops try on. To fix it: $(advice "$reason")"
        [ -z "$public" ] || tell_enrol
        tell "Then this host is on the board as $board_name."
    fi
    tell 'What was put where:'
    tell "  scripts   $SCRIPTS"
    tell "  settings  $(conf_in_force)"
    tell "  crontab   $line"
    [ -z "$public" ] || tell "  key       ${public%.pub}"
    tool_of_maker || tell 'nvidia-smi was not found here, nor amd-smi or rocm-smi: the board shows this host as failed until the driver of its GPUs is installed.'
    cron_runs || tell 'No cron daemon seems to run here: without one, nobody starts the loops again after a reboot.'
    [ -z "$by_hand" ] || tell "The crontab has a line of its own that calls gpu-check.sh; take it out: crontab -e"
    tell "Check it:   $check status"
    tell "Uninstall:  ./install.sh remove"
}

# tool_of_maker: whether there is one that tells the GPUs.
tool_of_maker() {
    for program in nvidia-smi amd-smi rocm-smi /opt/rocm/bin/amd-smi /opt/rocm/bin/rocm-smi; do
        ! command -v "$program" >/dev/null || return 0
    done
    return 1
}

install_host() {
    read_words "$@"
    choose_name
    check_home
    choose_dest
    begin
    choose_name # again: another install.sh may have been at work until now
    copy_scripts
    make_key
    [ "$dest" = "$known" ] || set_conf GPUBOARD_DEST "$dest"
    line="* * * * * $(quoted "$SCRIPTS/gpu-check.sh")${name:+ $name}"
    printf '%s\n' "host${name:+ $name}" >>"$NOTE"
    change_crontab host "$line"
    by_hand=$(grep -v '^[[:space:]]*#' "$work/before" | grep -F /gpu-check.sh | grep -vF /gpuboard/scripts/ || :)
    end_old_names
    note_role host ${name:+"$name"}
    first_snapshot
    enrol
    as_cron "$SCRIPTS/gpu-check.sh" ${name:+"$name"} >/dev/null || arrived=no
    await_loops
    report_host
    [ "$arrived" = yes ] || exit 1
}
