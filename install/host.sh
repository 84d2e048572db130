# shellcheck shell=sh disable=SC2034,SC2154 # variables of user.sh, and of the scripts
# ./install.sh host: let this GPU host send its snapshots.

# parse_arguments OPTIONS...: set name_option and dest.
parse_arguments() {
    name_option='' dest='' has_dest_option=''
    while [ $# -gt 0 ]; do
        case $1 in
            --name | --dest) [ $# -ge 2 ] || die "$1 needs a value: see ./install.sh --help" ;;
        esac
        case $1 in
            --name) name_option=$2 && check_host_name "$2" && shift ;;
            --name=*) name_option=${1#*=} && check_host_name "$name_option" ;;
            --dest) dest=$2 && has_dest_option=1 && shift ;;
            --dest=*) dest=${1#*=} && has_dest_option=1 ;;
            *) die "unknown argument '$1' for host: see ./install.sh --help" ;;
        esac
        shift
    done
}

# choose_name: take the name given, now or when this host was installed; set board_name to the name on the board.
choose_name() {
    name=${name_option:-$(read_note host | sed -n '$s/^host *//p')}
    board_name=${name:-$(print_own_name)}
    (check_host_name "$board_name") 2>/dev/null || die "this machine is called '$board_name', which is not a valid name on the board: choose one with --name"
}

# choose_destination: take the one given, or that of the settings file that cron will read.
choose_destination() {
    current_dest=$(cd "$HOME" && load_settings && printf '%s\n' "${GPUBOARD_DEST:-}")
    [ -n "$has_dest_option" ] || dest=$current_dest
    [ -n "$dest" ] || die 'where should the snapshots go? Use ./install.sh host --dest ssh://USER@WEB, or a folder shared with the web host'
    case $dest in
        *[[:cntrl:]]* | ' '*) die "'$(escape_control "$dest")' is not a valid destination: it starts with a space or contains control characters" ;;
        *:* | [\"\']*) ;; # checked below
        *) dest=$(print_absolute_path "$dest") ;;
    esac
    (check_given_destination "$dest") || exit 2
}

# check_given_destination DEST: check it by the rule of the scripts.
check_given_destination() {
    GPUBOARD_DEST=$1
    check_destination
}

# end_old_names: end loops under a previous name, which would run until the next boot.
end_old_names() {
    for old in $(list_noted_names); do
        [ "$old" = "$board_name" ] || end_loops "$old" || say "loops of $old still run here: end them by hand"
    done
}

# print_advice REASON: print what helps, for common errors of ssh and the push.
print_advice() {
    case $dest in consul://*) echo 'correct that (docs/scaling.md lists what Consul must allow), then check again' && return ;; esac
    parse_target
    target=${port:+-p $port }$target
    case $dest:$1 in
        ssh://*'Permission denied'* | ssh://*'is not enrolled'*) echo 'enrol the key of this host with the line below' && return ;;
        ssh://*'refuses it'*) echo 'see receive.log in the folder receive/ of the state folder of the web host' && return ;;
    esac
    case $1 in
        *'is not known here'* | *'Host key'*) echo "log in there once by hand to check and accept its key: ssh $target" ;;
        *'Permission denied'*publickey* | *'Permission denied'*password*) echo "let this user log in there with a key without a passphrase: ssh-keygen (unless you have one), then ssh-copy-id $target" ;;
        *'does not exist'*) echo "create or mount the folder $dest; on the web host, ./install.sh web creates one" ;;
        *'No such file'* | *'not found'*) echo "create the folder there with ./install.sh web, or: ssh $target mkdir -p $path" ;;
        *resolve* | *refused* | *'timed out'* | *'no answer'* | *unreachable*) echo "find out why this fails: ssh $target" ;;
        *) echo "check that this user may write there, then check again" ;;
    esac
}

# make_key: make a key for this host alone, for ssh://, unless there is one. Set public to the file of its public key.
make_key() {
    public=
    case $dest in ssh://*) ;; *) return 0 ;; esac
    key=$(read_conf_value GPUBOARD_SSH_KEY)
    key=${key:-$KEYS/$board_name}
    if [ ! -e "$key" ]; then
        make_folder 0700 "${key%/*}"
        printf 'key %s\n' "$key" >>"$MADE"
        { ssh-keygen -q -t ed25519 -N '' -C "gpuboard $board_name" -f "$work/key" && mv -f "$work/key.pub" "$key.pub" && mv -f "$work/key" "$key"; } ||
            die "the key $key could not be created"
        run_as_cron "$SCRIPTS/gpu-check.sh" kill "$board_name" >/dev/null 2>&1 || : # they may have a connection with another key
    fi
    public=$key.pub
    [ -e "$public" ] || ssh-keygen -y -f "$key" >"$public" || die "the key $key cannot be read: remove it, and a new one will be created"
}

# enrol_host: enrol the key by a login that this user has on the web host, if there is one; then send again what was refused.
enrol_host() {
    case $arrived:$dest:$reason in
        no:ssh://*'Permission denied'* | no:ssh://*'is not enrolled'*) ;;
        *) return 0 ;;
    esac
    parse_target
    config=$(read_conf_value GPUBOARD_SSH_CONFIG)
    timeout 30 ssh ${config:+-F "$config"} ${port:+-p "$port"} -T -o BatchMode=yes -o StrictHostKeyChecking=yes -o ConnectTimeout=10 -- "$target" \
        ".local/share/gpuboard/scripts/gpu-enrol.sh add $board_name" <"$public" 2>"$work/words" || return 0
    print_line "The key of this host was enrolled there, using your own login"
    take_first_snapshot
}

# parse_target: set target, and port or path, from dest.
parse_target() {
    HOST=$board_name
    GPUBOARD_DEST=$dest port=
    # shellcheck source=/dev/null
    case $dest in
        ssh://*) . "$LIB/push_ssh.sh" && parse_ssh_destination ;;
        *) . "$LIB/push_sftp.sh" && parse_sftp_destination ;;
    esac
}

# print_enrol_command: print the command for the web host that enrols this host.
print_enrol_command() {
    case $dest in *@*) account=${dest#ssh://} && account=${account%@*} ;; *) account=$(id -un) ;; esac
    print_line "On the web host, as $account:  echo '$(cat "$public")' | ~/.local/share/gpuboard/scripts/gpu-enrol.sh add $board_name"
}

# take_first_snapshot: set arrived, and reason if it did not.
take_first_snapshot() {
    arrived=yes reason=
    print_line "Taking a first snapshot, as $board_name, for $dest"
    run_as_cron env HOST="$board_name" "$SCRIPTS/gpu-run.sh" once 2>"$work/words" && return
    arrived=no
    cat "$work/words" >&2
    reason=$(tail -n 1 "$work/words")
}

# wait_for_loops: wait until they have pushed too, so that gpu-check.sh says the same as this.
wait_for_loops() {
    [ "$arrived" = yes ] || return 0
    tries=60
    until run_as_cron "$SCRIPTS/gpu-check.sh" status "$board_name" >/dev/null 2>&1; do
        tries=$((tries - 1))
        [ "$tries" -gt 0 ] || break
        sleep 0.3
    done
}

# report_host: print what was done, and what is left to do.
report_host() {
    check=$(quote_for_crontab "$SCRIPTS/gpu-check.sh")
    print_line ''
    if [ "$arrived" = yes ]; then
        print_line "The first snapshot arrived at $dest: this host is on the board as $board_name, and the loops are running."
    else
        print_line "Everything is installed, but nothing has arrived at $dest yet; the loops keep trying. To fix it: $(print_advice "$reason")"
        [ -z "$public" ] || print_enrol_command
        print_line "Then this host is on the board as $board_name."
    fi
    print_line 'Installed:'
    print_line "  scripts   $SCRIPTS"
    print_line "  settings  $(find_conf_file)"
    print_line "  crontab   $line"
    [ -z "$public" ] || print_line "  key       ${public%.pub}"
    has_vendor_tool || print_line 'No nvidia-smi, amd-smi or rocm-smi was found: the board shows this host as failed until a GPU driver is installed.'
    is_cron_running || print_line 'No cron daemon seems to be running: without one, the loops do not start again after a reboot.'
    [ -z "$manual_line" ] || print_line "The crontab has another line that calls gpu-check.sh; remove it: crontab -e"
    print_line "Check it:   $check status"
    print_line "Uninstall:  ./install.sh remove"
}

# has_vendor_tool: whether there is a tool that lists GPUs.
has_vendor_tool() {
    for program in nvidia-smi amd-smi rocm-smi /opt/rocm/bin/amd-smi /opt/rocm/bin/rocm-smi; do
        ! command -v "$program" >/dev/null || return 0
    done
    return 1
}

# install_host OPTIONS...: do all of it.
install_host() {
    parse_arguments "$@"
    choose_name
    check_home
    choose_destination
    open_share_folder
    choose_name # again: another install.sh may have changed it until now
    copy_scripts
    make_key
    [ "$dest" = "$current_dest" ] || set_conf GPUBOARD_DEST "$dest"
    line="* * * * * $(quote_for_crontab "$SCRIPTS/gpu-check.sh")${name:+ $name}"
    printf '%s\n' "host${name:+ $name}" >>"$NOTE"
    change_crontab host "$line"
    manual_line=$(grep -v '^[[:space:]]*#' "$work/before" | grep -F /gpu-check.sh | grep -vF /gpuboard/scripts/ || :)
    end_old_names
    note_role host ${name:+"$name"}
    take_first_snapshot
    enrol_host
    run_as_cron "$SCRIPTS/gpu-check.sh" ${name:+"$name"} >/dev/null || arrived=no
    wait_for_loops
    report_host
    [ "$arrived" = yes ] || exit 1
}
