# shellcheck shell=sh
# What `gpuboard deploy` wants to know of a GPU host before it changes anything there: a fact a line, a word and a value.
# It comes on the stdin of sh, before anything of ours is on the host: NAME (or -), then the names by which the web host may be known.

LC_ALL=C
export LC_ALL
PATH="${PATH:+$PATH:}/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
share=$HOME/.local/share/gpuboard
conf=$HOME/.config/gpuboard/gpuboard.conf
[ -f "$conf" ] || conf=/etc/gpuboard/gpuboard.conf

# fact WORD VALUE: in one line, of bounded length.
fact() { printf '%s %s\n' "$1" "$(printf '%s' "$2" | tr '[:cntrl:]' ' ' | cut -c 1-4000)"; }

# noted_name: the one that was given when this host was installed.
noted_name() { sed -n 's/^host *//p' "$share/installed/$machine" 2>/dev/null | tail -n 1; }

# tell_programs: what is missing of what the scripts call.
tell_programs() {
    for program in awk base64 crontab cut find flock getent grep mktemp sed setsid sha256sum ssh ssh-keygen tar timeout; do
        command -v "$program" >/dev/null || fact missing "$program"
    done
    for program in nvidia-smi amd-smi rocm-smi /opt/rocm/bin/amd-smi /opt/rocm/bin/rocm-smi; do
        ! command -v "$program" >/dev/null || return 0
    done
    fact missing nvidia-smi
}

# tell_installed: the scripts, by what is in them, the line of the crontab, the settings.
tell_installed() {
    [ ! -f "$share/installed/$machine" ] || ! grep -qs '^host' "$share/installed/$machine" || fact installed "${noted:-$own}"
    [ ! -d "$share/scripts" ] || fact scripts "$(cd "$share/scripts" && find . -type f | sort | while IFS= read -r path; do sha256sum "$path"; done | sha256sum | cut -c 1-64)"
    fact version "$(sed -n 's/^GPUBOARD_VERSION=//p' "$share/scripts/lib/common.sh" 2>/dev/null)"
    fact crontab "$(crontab -l 2>/dev/null | sed -n '/^# >>> gpuboard host >>>/,/^# <<< gpuboard host <<</{/gpu-check\.sh/p;}' | tail -n 1)"
    fact dest "$(sed -n 's/^GPUBOARD_DEST=//p' "$conf" 2>/dev/null | head -n 1)"
}

# tell_key: the public half, if the private one is there too, and that of its last name; and the web host's keys that are known.
tell_key() {
    keys=$HOME/.config/gpuboard/keys
    key=$(sed -n 's/^GPUBOARD_SSH_KEY=//p' "$conf" 2>/dev/null | head -n 1)
    key=${key:-$keys/$name}
    [ ! -s "$key" ] || fact key "$(head -n 1 "$key.pub" 2>/dev/null)"
    [ ! -s "$keys/${noted:-$own}" ] || fact key-before "$(head -n 1 "$keys/${noted:-$own}.pub" 2>/dev/null)"
    [ ! -f "$HOME/.config/gpuboard/known_hosts" ] || head -n 50 "$HOME/.config/gpuboard/known_hosts" | while IFS= read -r line; do fact known "$line"; done
}

# tell_loops: `ok`, or the first thing that is not.
tell_loops() {
    [ -x "$share/scripts/gpu-check.sh" ] || return
    if words=$(cd "$HOME" && timeout 20 "$share/scripts/gpu-check.sh" status "$name" 2>&1 </dev/null); then
        fact loops ok
    else
        fact loops "$(printf '%s\n' "$words" | grep -E 'does not run|hangs|fails|nothing' | head -n 1 | tr -s ' ')"
    fi
}

machine=$(uname -n)
own=${machine%%.*}
noted=$(noted_name)
name=$1
shift
[ "$name" != - ] || name=${noted:-$own}
fact gpuboard-look 1
fact own "$own"
fact name "$name"
fact home "$HOME"
fact seen "${SSH_CONNECTION:-}"
for web in "$@"; do fact reach "$web $(getent ahosts "$web" 2>/dev/null | cut -d ' ' -f 1 | sort -u | tr '\n' ' ')"; done
tell_programs
tell_installed
tell_key
tell_loops
fact end 1
