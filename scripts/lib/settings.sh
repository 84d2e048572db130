# shellcheck shell=sh disable=SC2034 # used by the scripts that read this one
# Settings: from the environment, else from gpuboard.conf, else defaults.

# load_settings: read KEY=value lines of gpuboard.conf; the environment wins; nothing is executed.
load_settings() {
    if [ -z "${HOME:-}" ]; then
        HOME=$(getent passwd "$(id -u)" | cut -d: -f6) || HOME=
        export HOME
    fi
    if [ -z "${GPUBOARD_CONF:-}" ]; then
        for conf in "$PWD/gpuboard.conf" "$HOME/.config/gpuboard/gpuboard.conf" /etc/gpuboard/gpuboard.conf; do
            [ -f "$conf" ] || continue
            # shellcheck disable=SC3067 # -O: in every sh that we know
            if [ "$conf" = "$PWD/gpuboard.conf" ] && [ ! -O "$conf" ]; then # another user's file in the current folder
                say "$conf belongs to another user and is ignored"
                continue
            fi
            GPUBOARD_CONF=$conf
            break
        done
    fi
    if [ -n "${GPUBOARD_CONF:-}" ]; then
        [ -r "$GPUBOARD_CONF" ] || die "the settings file $GPUBOARD_CONF cannot be read"
        read_conf_file <"$GPUBOARD_CONF"
        export GPUBOARD_CONF
    fi
    GPUBOARD_GPUS_EVERY=${GPUBOARD_GPUS_EVERY:-20}
    GPUBOARD_PROCESSES_EVERY=${GPUBOARD_PROCESSES_EVERY:-20}
    GPUBOARD_PS_EVERY=${GPUBOARD_PS_EVERY:-10}
    GPUBOARD_LIMIT=${GPUBOARD_LIMIT:-10}
    GPUBOARD_NVIDIA=${GPUBOARD_NVIDIA:-auto}
    case $GPUBOARD_NVIDIA in
        auto | csv | xml | no) ;;
        *) die "GPUBOARD_NVIDIA is '$GPUBOARD_NVIDIA', but must be auto, csv, xml or no" ;;
    esac
    for key in GPUBOARD_GPUS_EVERY GPUBOARD_PROCESSES_EVERY GPUBOARD_PS_EVERY GPUBOARD_LIMIT; do
        eval "value=\$$key"
        # shellcheck disable=SC2154 # value is set by the eval
        case $value in
            '' | *[!0-9]* | 0* | ?????*) die "$key is '$value', but must be whole seconds from 1 to 9999" ;;
        esac
    done
    GPUBOARD_AMD=${GPUBOARD_AMD:-auto}
    case $GPUBOARD_AMD in
        auto | no | amd-smi | rocm-smi) ;;
        *) die "GPUBOARD_AMD is '$GPUBOARD_AMD', but must be auto, amd-smi, rocm-smi or no" ;;
    esac
}

# set_interval TASK: set every to its interval.
set_interval() {
    case $1 in
        1) every=$GPUBOARD_GPUS_EVERY ;;
        2) every=$GPUBOARD_PROCESSES_EVERY ;;
        3) every=$GPUBOARD_PS_EVERY ;;
    esac
}

# set_hang_limit EVERY: set hang_limit to the age at which something hangs: three intervals, but at least three time limits, for what is only slow.
set_hang_limit() {
    hang_limit=$((3 * $1))
    [ "$hang_limit" -ge $((3 * GPUBOARD_LIMIT)) ] || hang_limit=$((3 * GPUBOARD_LIMIT))
}

# read_conf_file: read the settings of the host scripts from stdin, and keep those that are set.
read_conf_file() {
    cr=$(printf '\r')
    while IFS= read -r line || [ -n "$line" ]; do
        key=${line%%=*} shown_line=$line
        case $key in *TOKEN*) shown_line="$key=•••" ;; esac
        case $key in
            GPUBOARD_*' ' | CONSUL_*' ') die "$GPUBOARD_CONF: no spaces around = in '$shown_line'" ;;
            GPUBOARD_DEST | GPUBOARD_SPOOL | GPUBOARD_LIMIT | GPUBOARD_DISK_USE | GPUBOARD_SSH_CONFIG | GPUBOARD_SSH_KEY) ;;
            GPUBOARD_GPUS_EVERY | GPUBOARD_PROCESSES_EVERY | GPUBOARD_PS_EVERY | GPUBOARD_NVIDIA | GPUBOARD_AMD) ;;
            CONSUL_HTTP_ADDR | CONSUL_HTTP_TOKEN | CONSUL_HTTP_SSL | CONSUL_HTTP_SSL_VERIFY) ;; # used by the builder too
            CONSUL_CACERT | CONSUL_CLIENT_CERT | CONSUL_CLIENT_KEY | GPUBOARD_CONSUL_SERVICE) ;;
            GPUBOARD_DATA | GPUBOARD_STATE) [ -n "${web_keys:-}" ] || continue ;; # for the scripts of the web host
            *) continue ;;
        esac
        eval "[ -n \"\${$key+set}\" ]" && continue
        value=${line#*=}
        case $value in ' '*) die "$GPUBOARD_CONF: no spaces around = in '$shown_line'" ;; esac
        value=${value%"$cr"}
        eval "$key=\$value"
    done
}

# check_destination: refuse a destination that can never work now, not at every push.
check_destination() {
    case ${GPUBOARD_DEST:-} in
        '') die "GPUBOARD_DEST is not set${GPUBOARD_CONF:+ (nor in $GPUBOARD_CONF)}: set where snapshots go, for example ssh://gpuboard@web" ;;
        [!/]*:) die "GPUBOARD_DEST is '$GPUBOARD_DEST', but has no folder after the colon: write user@web:/path/data" ;;
        ssh://*[!][A-Za-z0-9._@:%-]* | ssh://-* | ssh://*@-* | ssh:// | ssh://*@) die "GPUBOARD_DEST is '$GPUBOARD_DEST', but must be ssh://user@web or ssh://user@web:port: the web host chooses the folder" ;;
        ssh://*) ;;
        consul://*)
            # shellcheck source=scripts/lib/consul.sh
            . "$LIB/consul.sh"
            parse_consul_destination
            check_consul_settings
            ;;
        *://*) die "GPUBOARD_DEST is '$GPUBOARD_DEST', which this version does not support: use ssh://user@web, a folder, user@web:/path/data, or consul://addr:port/prefix" ;;
        /* | [!\"\']*:*) ;;
        *) die "GPUBOARD_DEST is '$GPUBOARD_DEST', but must be ssh://user@web, an absolute folder, or user@web:/path/data, without quotes" ;;
    esac
}
