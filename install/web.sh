# shellcheck shell=sh disable=SC2154 # variables of user.sh
# ./install.sh web: let this machine build the board, and serve it if --listen is given.

# parse_arguments OPTIONS...: set folder, data and listen.
parse_arguments() {
    folder='' data='' listen=''
    while [ $# -gt 0 ]; do
        word=$1 value=
        case $word in
            --folder=* | --data=* | --listen=*) value=${word#*=} && word=${word%%=*} ;;
            --folder | --data | --listen) [ $# -lt 2 ] || { value=$2 && shift; } ;;
            *) die "unknown argument '$word' for web: see ./install.sh --help" ;;
        esac
        [ -n "$value" ] || die "$word needs a value: see ./install.sh --help"
        case $word in
            --folder) folder=$(print_absolute_path "$value") ;;
            --data) data=$(print_absolute_path "$value") ;;
            --listen) listen=$value ;;
        esac
        shift
    done
    [ -z "$data" ] || [ -d "$data" ] || die "--data is $data, but that folder does not exist"
}

# check_listen: check it by the rule of the setting.
check_listen() {
    [ -z "$listen" ] || refusal=$("$python" -B -c '
import sys
from site_builder.config.schema import LISTEN
try:
    LISTEN.parse(sys.argv[1])
except ValueError:
    sys.exit(print(LISTEN.refusal) or 1)' "$listen") || die "--listen is '$listen', $refusal"
}

# choose_folders: set data, www and state to what the command line names, else to the settings, else to folders in ~/gpuboard.
choose_folders() {
    for key in GPUBOARD_DATA GPUBOARD_WWW GPUBOARD_STATE; do
        case $(read_conf_value "$key") in
            '' | /*) ;;
            *) die "$key in $(find_conf_file) is not an absolute path, so cron would use it relative to where it starts: start it with /" ;;
        esac
    done
    www=$(read_conf_value GPUBOARD_WWW) state=$(read_conf_value GPUBOARD_STATE) state_before=$state
    data=${data:-$(read_conf_value GPUBOARD_DATA)}
    if [ -n "$folder" ] && [ "$www" != "$folder/www" ]; then
        [ "$data" != "${www%/*}/data" ] || data= # it was in the previous folder, and moves with it
        www='' state=''
    fi
    folder=${folder:-${www%/*}}
    folder=${folder:-$HOME/gpuboard}
    data=${data:-$folder/data}
    www=${www:-$folder/www}
    state_note=
    [ -n "$state" ] || choose_state
    check_place 'the data folder' "$data"
    check_place 'the site' "$www"
    check_place 'the state folder' "$state"
}

# choose_state: set state to a folder on a local disk, which locks and a database need.
choose_state() {
    existing=$folder
    while [ ! -d "$existing" ]; do existing=$(dirname "$existing"); done
    file_system=$(stat -f -c %T "$existing")
    state=$folder/state
    case $file_system in
        nfs* | cifs | smb* | fuse* | lustre | gpfs | ceph | *afs | beegfs | panfs | v9fs | 9p | ocfs2 | gfs* | coda | UNKNOWN*) ;;
        *) return 0 ;;
    esac
    state=/var/tmp/gpuboard-state-$(id -u)
    state_note=" (a local disk: $folder is on a network file system, $file_system)"
    # anybody can write to /var/tmp: somebody else may have made a folder or a link of that name
    # shellcheck disable=SC3067 # -O: in every sh that we know
    if [ -h "$state" ] || { [ -e "$state" ] && [ ! -O "$state" ]; }; then die "$state is not a folder of this user: remove it, or set GPUBOARD_STATE in $CONF"; fi
}

# read_sources: set version, and id to the version with a checksum of all that is installed; scripts too, which the demo needs.
read_sources() {
    version=$(sed -n 's/^__version__ = "\(.*\)"/\1/p' site_builder/__init__.py)
    checksum=$(find pyproject.toml README.md LICENSE site_builder scripts www/assets docs/gpuboard.1 -type f ! -path '*/__pycache__/*' -exec cksum {} + | LC_ALL=C sort | sha256sum | cut -c1-12)
    id=$version-$checksum
}

# install_package: make a venv for each state of the sources. The link to it is replaced when it is complete, so that a running build, or a kill
# at any moment, finds a complete one. The previous one stays until the next upgrade, for programs that run in it.
install_package() {
    upgraded=no
    read_sources
    before=$(readlink "$VENV" || :)
    home=$SHARE/venvs/$id
    if ! is_sound_venv "$home" || [ ! -e "$home/complete" ]; then
        make_folder 0755 "$SHARE/venvs"
        create_venv "$home"
        print_line "Installing gpuboard $version and its dependencies there"
        pip_install "$home" '.[alerts,slack]' || die 'pip could not install gpuboard (see above); fix that and run this again'
        for shell in bash fish; do "$home/bin/python" -I -m site_builder completion "$shell" >"$home/share/gpuboard.$shell"; done
        : >"$home/complete"
        upgraded=yes
    fi
    [ "$before" != "venvs/$id" ] || return 0
    rm -f "$VENV.new"
    ln -s "venvs/$id" "$VENV.new"
    "$python" -c 'import os, sys; os.replace(*sys.argv[1:])' "$VENV.new" "$VENV"
    upgraded=yes
    for old in "$SHARE"/venvs/*; do
        case $old in "$home" | "$SHARE/$before") ;; *) rm -rf "$old" ;; esac
    done
}

# link_command: put a link to `gpuboard` into ~/.local/bin, and set gpuboard to how people call it. What is not ours stays.
link_command() {
    if [ "$(readlink "$LINK" || :)" = "$VENV/bin/gpuboard" ]; then
        gpuboard=$LINK
    elif [ -e "$LINK" ] || [ -h "$LINK" ]; then
        gpuboard=$VENV/bin/gpuboard
        print_line "$LINK is not ours and is kept; run gpuboard as $gpuboard."
    else
        make_folder 0755 "${LINK%/*}"
        ln -s "$VENV/bin/gpuboard" "$LINK"
        gpuboard=$LINK
    fi
    case ":$PATH:" in *":${LINK%/*}:"*) [ "$gpuboard" != "$LINK" ] || gpuboard=gpuboard ;; esac
}

# put_extra_link PLACE FILE: put a link there. What is not ours stays.
put_extra_link() {
    if [ "$(readlink "$1" || :)" = "$2" ]; then
        return 0
    elif [ -e "$1" ] || [ -h "$1" ]; then
        print_line "$1 is not ours and is kept."
    else
        make_folder 0755 "${1%/*}"
        ln -s "$2" "$1"
    fi
}

# check_settings: check all settings before they are written: folders must differ, and private ones must not be served.
check_settings() {
    run_as_cron "$VENV/bin/python" -I -m site_builder config --data "$data" --www "$www" --state "$state" >/dev/null 2>"$work/words" && return
    cat "$work/words" >&2
    exit 2
}

# write_settings: write them, and create the folders.
write_settings() {
    set_conf GPUBOARD_DATA "$data"
    set_conf GPUBOARD_WWW "$www"
    set_conf GPUBOARD_STATE "$state"
    if [ -n "$listen" ]; then
        set_conf GPUBOARD_LISTEN "$listen"
        has_conf_key GPUBOARD_BOOK_URL || set_conf GPUBOARD_BOOK_URL book # needs a token, which nobody has yet
    fi
    make_folder 0755 "$folder"
    make_folder 0750 "$data"
    make_folder 0755 "$www"
    make_folder 0700 "$state"
}

# write_crontab: start a builder every minute; a server if --listen was given, now or earlier; the bot if it has tokens.
write_crontab() {
    line="* * * * * $(quote_for_crontab "$VENV/bin/python") -I -m site_builder build --every 10 --for 60"
    serving=no
    if [ -n "$listen" ] || { has_conf_key GPUBOARD_LISTEN && grep -qF '/gpuboard/venv/bin/python' "$work/before" && grep -qF 'site_builder serve' "$work/before"; }; then
        serving=yes
        line="$line
* * * * * flock -n $(quote_for_crontab "$state/serve.lock") $(quote_for_crontab "$VENV/bin/python") -I -m site_builder serve"
    fi
    answering=no
    if [ -n "$(read_conf_value GPUBOARD_SLACK_BOT_TOKEN)" ] && [ -n "$(read_conf_value GPUBOARD_SLACK_APP_TOKEN)" ]; then
        answering=yes
        line="$line
* * * * * $(quote_for_crontab "$VENV/bin/python") -I -m site_builder slack"
    fi
    note_role web
    change_crontab web "$line"
}

# protect_data: give bookings their own folder where other accounts book, so that these can put no links into data/.
protect_data() {
    protected=yes
    run_as_cron "$VENV/bin/python" -I -m site_builder.web.booking_folder || protected=no
}

# start_services: start everything now, before cron's next minute. End what runs with old code or old settings first.
start_services() {
    if [ "$upgraded$conf_changed" != nono ]; then
        for place in "$state" "$state_before"; do
            [ -z "$place" ] || {
                end_own_holders "$place/lock"
                end_own_holders "$place/serve.lock"
                end_own_holders "$place/slack.lock"
            } || :
        done
    fi
    end_own_holders "$state/serve.lock" || : # it reads its settings once, and they may have changed, for example to require a password
    end_own_holders "$state/slack.lock" || : # the same
    built=yes served=yes
    if [ -n "$(list_own_holders "$state/lock")" ]; then
        print_line 'A builder is already running.'
    else
        print_line "Building the board in $www"
        run_as_cron "$VENV/bin/python" -I -m site_builder build || built=no
        start_in_background "$VENV/bin/python" -I -m site_builder build --every 10 --for 60
    fi
    [ "$serving" = no ] || start_server
    [ "$answering" = no ] || start_in_background "$VENV/bin/python" -I -m site_builder slack
}

# start_server: start it unless it serves already. If that fails, set served to no, and print why.
start_server() {
    where=$(read_conf_value GPUBOARD_LISTEN)
    ! is_serving "${where##*:}" || return 0
    end_own_holders "$state/serve.lock" || :
    start_in_background flock -n "$state/serve.lock" "$VENV/bin/python" -I -m site_builder serve
    for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
        sleep 0.5
        ! is_serving "${where##*:}" || return 0
    done
    served=no
    run_as_cron timeout 5 "$VENV/bin/python" -I -m site_builder serve || :
}

# is_serving PORT: whether our server listens there. That the port answers is not enough: it may be somebody else's.
is_serving() {
    for pid in $(list_own_holders "$state/serve.lock"); do
        {
            ls -l "/proc/$pid/fd"
            cat "/proc/$pid/net/tcp" "/proc/$pid/net/tcp6"
        } 2>/dev/null | awk -v port="$(printf ':%04X' "$1")" '
            / socket:\[/ { gsub(/.*\[|\]/, ""); own[$0] = 1 }
            $4 == "0A" && ($10 in own) && substr($2, length($2) - 4) == port { found = 1 }
            END { exit !found }' && return
    done
    return 1
}

# list_closed_folders: print the folders on the path to the site that other users cannot enter.
list_closed_folders() {
    place=$www
    while [ "$place" != / ]; do
        case $(stat -c %a "$place") in *[1357]) ;; *) printf ' %s' "$(quote_for_crontab "$place")" ;; esac
        place=$(dirname "$place")
    done
}

# report_web: print what was done, and what is left to do.
report_web() {
    print_line ''
    print_line 'Installed:'
    print_line "  programs  $SHARE/venv, run as $gpuboard"
    print_line "  scripts   $SCRIPTS"
    print_line "  manual    man gpuboard"
    print_line "  TAB       in bash and fish; for zsh a line in ~/.zshrc: eval \"\$($gpuboard completion zsh)\""
    print_line "  settings  $(find_conf_file)"
    print_line "  data      $data"
    print_line "  site      $www"
    print_line "  state     $state$state_note"
    print_line "  crontab   $line" | sed '2,$s/^/            /'
    is_cron_running || print_line 'No cron daemon seems to be running: without one, the board is not built.'
    [ "$protected" = yes ] || print_line 'The permissions of the data folder could not be corrected (see above).'
    [ "$built" = yes ] || print_line 'The board could not be built (see above); cron keeps trying.'
    if [ "$serving$served" = yesno ]; then
        print_line "The board is not served at $where (see above); cron keeps trying. To serve it elsewhere: ./install.sh web --listen ADDRESS:PORT"
    elif [ "$serving" = yes ]; then
        case $where in 0.0.0.0:* | '[::]':*) where=$MACHINE:${where##*:} ;; *:*) ;; *) where=127.0.0.1:$where ;; esac
        print_line "The board is at http://$where/; to stop serving it: remove GPUBOARD_LISTEN from $(find_conf_file) and run ./install.sh web again."
        [ "$(read_conf_value GPUBOARD_BOOK_URL)" != book ] || print_line "To let people book there, give each a token: $gpuboard token NAME"
    else
        print_line "The board is $www/index.html. To serve it: $gpuboard serve (only for this machine),"
        print_line "./install.sh web --listen 0.0.0.0:8080 (for the network), or any web server over that folder."
        closed=$(list_closed_folders)
        [ -z "$closed" ] || print_line "The user of another web server cannot read it yet; to allow that: chmod o+x$closed"
    fi
    [ "$answering" = no ] || print_line 'The Slack bot:     started; send it a message. If it does not answer, gpuboard slack shows why'
    print_line "The GPU hosts:     gpuboard deploy HOST... (from here, by ssh),"
    print_line "                   or on each: ./install.sh host --dest ssh://$(id -un)@$MACHINE"
    print_line 'Uninstall:         ./install.sh remove'
}

# install_web OPTIONS...: do all of it.
install_web() {
    parse_arguments "$@"
    find_python
    check_listen
    check_home
    choose_folders
    open_share_folder
    install_package
    check_settings
    copy_scripts
    write_settings
    protect_data
    link_command
    run_for_extra_links put_extra_link
    write_crontab
    start_services
    report_web
    [ "$protected$built$served" = yesyesyes ] || exit 1
}
