# shellcheck shell=sh disable=SC2154 # variables of user.sh
# ./install.sh web: this machine builds the board from now on, and serves it if told to.

# read_words WORDS...: sets folder, data and listen.
read_words() {
    folder='' data='' listen=''
    while [ $# -gt 0 ]; do
        word=$1 value=
        case $word in
            --folder=* | --data=* | --listen=*) value=${word#*=} && word=${word%%=*} ;;
            --folder | --data | --listen) [ $# -lt 2 ] || { value=$2 && shift; } ;;
            *) die "there is no '$word' for web: see ./install.sh --help" ;;
        esac
        [ -n "$value" ] || die "$word needs a word behind it: see ./install.sh --help"
        case $word in
            --folder) folder=$(absolute "$value") ;;
            --data) data=$(absolute "$value") ;;
            --listen) listen=$value ;;
        esac
        shift
    done
    [ -z "$data" ] || [ -d "$data" ] || die "--data is $data, but there is no such folder"
}

# check_listen: by the rule of the setting itself.
check_listen() {
    [ -z "$listen" ] || refusal=$("$python" -B -c '
import sys
from site_builder.config.types import LISTEN
try:
    LISTEN.parse(sys.argv[1])
except ValueError:
    sys.exit(print(LISTEN.refusal) or 1)' "$listen") || die "--listen is '$listen', $refusal"
}

# choose_folders: what the command line names, else what the settings say, else what is in ~/gpuboard. Sets data, www and state.
choose_folders() {
    for key in GPUBOARD_DATA GPUBOARD_WWW GPUBOARD_STATE; do
        case $(conf_value "$key") in
            '' | /*) ;;
            *) die "$key in $(conf_in_force) is not an absolute folder, and would count from where cron starts: write it whole, beginning with /" ;;
        esac
    done
    www=$(conf_value GPUBOARD_WWW) state=$(conf_value GPUBOARD_STATE) state_before=$state
    data=${data:-$(conf_value GPUBOARD_DATA)}
    if [ -n "$folder" ] && [ "$www" != "$folder/www" ]; then
        [ "$data" != "${www%/*}/data" ] || data= # it was in the folder of before, and goes with it
        www='' state=''
    fi
    folder=${folder:-${www%/*}}
    folder=${folder:-$HOME/gpuboard}
    data=${data:-$folder/data}
    www=${www:-$folder/www}
    state_told=
    [ -n "$state" ] || choose_state
    check_place 'the data folder' "$data"
    check_place 'the site' "$www"
    check_place 'the state folder' "$state"
}

# choose_state: locks and a database need a local disk.
choose_state() {
    near=$folder
    while [ ! -d "$near" ]; do near=$(dirname "$near"); done
    kind=$(stat -f -c %T "$near")
    state=$folder/state
    case $kind in
        nfs* | cifs | smb* | fuse* | lustre | gpfs | ceph | *afs | beegfs | panfs | v9fs | 9p | ocfs2 | gfs* | coda | UNKNOWN*) ;;
        *) return 0 ;;
    esac
    state=/var/tmp/gpuboard-state-$(id -u)
    state_told=" (a local disk: $folder is on a network file system, $kind)"
    # /var/tmp is everybody's: somebody else may have put a folder or a link of that name there
    # shellcheck disable=SC3067 # -O: in every sh that we know
    if [ -h "$state" ] || { [ -e "$state" ] && [ ! -O "$state" ]; }; then die "$state is not a folder of this user: remove it, or set GPUBOARD_STATE in $CONF"; fi
}

# read_sources: sets version, and id to that with a checksum of what is installed from here; scripts too, which the demo needs.
read_sources() {
    version=$(sed -n 's/^__version__ = "\(.*\)"/\1/p' site_builder/__init__.py)
    sum=$(find pyproject.toml README.md LICENSE site_builder scripts www/assets docs/gpuboard.1 -type f ! -path '*/__pycache__/*' -exec cksum {} + | sort | sha256sum | cut -c1-12)
    id=$version-$sum
}

# install_package: a venv for each state of the sources; the link to it moves when it is complete, so that a build under way, or a kill
# at any moment, finds a whole one. The one before stays until the next upgrade, for those that run in it.
install_package() {
    upgraded=no
    read_sources
    before=$(readlink "$VENV" || :)
    home=$SHARE/venvs/$id
    if ! sound_venv "$home" || [ ! -e "$home/complete" ]; then
        make_folder 0755 "$SHARE/venvs"
        new_venv "$home"
        tell "Installing gpuboard $version and what it needs there"
        pip_install "$home" '.[alerts,slack]' || die 'pip could not install gpuboard, for the reason above; once that is mended, call this again'
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

# put_link: `gpuboard` for people. What is not ours stays.
put_link() {
    if [ "$(readlink "$LINK" || :)" = "$VENV/bin/gpuboard" ]; then
        gpuboard=$LINK
    elif [ -e "$LINK" ] || [ -h "$LINK" ]; then
        gpuboard=$VENV/bin/gpuboard
        tell "$LINK is not ours, and stays; gpuboard is $gpuboard."
    else
        make_folder 0755 "${LINK%/*}"
        ln -s "$VENV/bin/gpuboard" "$LINK"
        gpuboard=$LINK
    fi
    case ":$PATH:" in *":${LINK%/*}:"*) [ "$gpuboard" != "$LINK" ] || gpuboard=gpuboard ;; esac
}

# put_beside PLACE FILE: a link there. What is not ours stays.
put_beside() {
    if [ "$(readlink "$1" || :)" = "$2" ]; then
        return 0
    elif [ -e "$1" ] || [ -h "$1" ]; then
        tell "$1 is not ours, and stays."
    else
        make_folder 0755 "${1%/*}"
        ln -s "$2" "$1"
    fi
}

# check_settings: as a whole, before they are written: no folder may be another, nor be served that should not.
check_settings() {
    as_cron "$VENV/bin/python" -I -m site_builder config --data "$data" --www "$www" --state "$state" >/dev/null 2>"$work/words" && return
    cat "$work/words" >&2
    exit 2
}

write_settings() {
    set_conf GPUBOARD_DATA "$data"
    set_conf GPUBOARD_WWW "$www"
    set_conf GPUBOARD_STATE "$state"
    if [ -n "$listen" ]; then
        set_conf GPUBOARD_LISTEN "$listen"
        conf_has GPUBOARD_BOOK_URL || set_conf GPUBOARD_BOOK_URL book # with a token, which nobody has yet
    fi
    make_folder 0755 "$folder"
    make_folder 0750 "$data"
    make_folder 0755 "$www"
    make_folder 0700 "$state"
}

# write_crontab: a builder every minute; a server where --listen was given, now or earlier; the bot where it has tokens.
write_crontab() {
    line="* * * * * $(quoted "$VENV/bin/python") -I -m site_builder build --every 10 --for 60"
    serving=no
    if [ -n "$listen" ] || { conf_has GPUBOARD_LISTEN && grep -qF '/gpuboard/venv/bin/python' "$work/before" && grep -qF 'site_builder serve' "$work/before"; }; then
        serving=yes
        line="$line
* * * * * flock -n $(quoted "$state/serve.lock") $(quoted "$VENV/bin/python") -I -m site_builder serve"
    fi
    answering=no
    if [ -n "$(conf_value GPUBOARD_SLACK_BOT_TOKEN)" ] && [ -n "$(conf_value GPUBOARD_SLACK_APP_TOKEN)" ]; then
        answering=yes
        line="$line
* * * * * $(quoted "$VENV/bin/python") -I -m site_builder slack"
    fi
    note_role web
    change_crontab web "$line"
}

# protect_data: bookings get a folder of their own where other accounts book, and these can put no links into data/ any more.
protect_data() {
    protected=yes
    as_cron "$VENV/bin/python" -I -m site_builder.web.booking_folder || protected=no
}

# start_now: nobody waits for cron's next minute. What runs with old code or old settings is ended first.
start_now() {
    if [ "$upgraded$conf_changed" != nono ]; then
        for place in "$state" "$state_before"; do
            [ -z "$place" ] || {
                end_ours "$place/lock"
                end_ours "$place/serve.lock"
                end_ours "$place/slack.lock"
            } || :
        done
    fi
    end_ours "$state/serve.lock" || : # it reads its settings once, and somebody may have changed them: to ask for a password, say
    end_ours "$state/slack.lock" || : # the same
    built=yes served=yes
    if [ -n "$(running "$state/lock")" ]; then
        tell 'A builder is at work already.'
    else
        tell "Building the board in $www"
        as_cron "$VENV/bin/python" -I -m site_builder build || built=no
        in_background "$VENV/bin/python" -I -m site_builder build --every 10 --for 60
    fi
    [ "$serving" = no ] || start_server
    [ "$answering" = no ] || in_background "$VENV/bin/python" -I -m site_builder slack
}

# start_server: unless it serves already. If it does not then, served is no, and it tells why.
start_server() {
    where=$(conf_value GPUBOARD_LISTEN)
    ! serves "${where##*:}" || return 0
    end_ours "$state/serve.lock" || :
    in_background flock -n "$state/serve.lock" "$VENV/bin/python" -I -m site_builder serve
    for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
        sleep 0.5
        ! serves "${where##*:}" || return 0
    done
    served=no
    as_cron timeout 5 "$VENV/bin/python" -I -m site_builder serve || :
}

# serves PORT: whether our own server listens there. That the port answers would not do: it may be somebody else's.
serves() {
    for pid in $(running "$state/serve.lock"); do
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

# closed_folders: those on the way to the site that users other than this one cannot pass.
closed_folders() {
    place=$www
    while [ "$place" != / ]; do
        case $(stat -c %a "$place") in *[1357]) ;; *) printf ' %s' "$(quoted "$place")" ;; esac
        place=$(dirname "$place")
    done
}

report_web() {
    tell ''
    tell 'What was put where:'
    tell "  programs  $SHARE/venv, to call as $gpuboard"
    tell "  scripts   $SCRIPTS"
    tell "  manual    man gpuboard"
    tell "  TAB       in bash and fish; for zsh a line in ~/.zshrc: eval \"\$($gpuboard completion zsh)\""
    tell "  settings  $(conf_in_force)"
    tell "  data      $data"
    tell "  site      $www"
    tell "  state     $state$state_told"
    tell "  crontab   $line" | sed '2,$s/^/            /'
    cron_runs || tell 'No cron daemon seems to run here: without one, nobody builds the board.'
    [ "$protected" = yes ] || tell 'Who may write to the data folder could not be set right, for the reason above.'
    [ "$built" = yes ] || tell 'The board could not be built, for the reason above; cron tries on.'
    if [ "$serving$served" = yesno ]; then
        tell "The board is not served at $where, for the reason above; cron tries on. To serve it elsewhere: ./install.sh web --listen ADDRESS:PORT"
    elif [ "$serving" = yes ]; then
        case $where in 0.0.0.0:* | '[::]':*) where=$MACHINE:${where##*:} ;; *:*) ;; *) where=127.0.0.1:$where ;; esac
        tell "The board is at http://$where/; to end that: take GPUBOARD_LISTEN out of $(conf_in_force), and call ./install.sh web again."
        [ "$(conf_value GPUBOARD_BOOK_URL)" != book ] || tell "People book there with a token that you give them: $gpuboard token NAME"
    else
        tell "The board is $www/index.html. To serve it: $gpuboard serve (for this machine alone),"
        tell "./install.sh web --listen 0.0.0.0:8080 (for the network), or any web server over that folder."
        closed=$(closed_folders)
        [ -z "$closed" ] || tell "The user of another web server cannot reach it yet; to let it pass: chmod o+x$closed"
    fi
    [ "$answering" = no ] || tell 'The bot in Slack:  started; write to it. If it stays silent, gpuboard slack says why'
    tell "The GPU hosts:     gpuboard deploy HOST... (from here, by ssh),"
    tell "                   or on each: ./install.sh host --dest ssh://$(id -un)@$MACHINE"
    tell 'Uninstall:         ./install.sh remove'
}

install_web() {
    read_words "$@"
    find_python
    check_listen
    check_home
    choose_folders
    begin
    install_package
    check_settings
    copy_scripts
    write_settings
    protect_data
    put_link
    beside_link put_beside
    write_crontab
    start_now
    report_web
    [ "$protected$built$served" = yesyesyes ] || exit 1
}
