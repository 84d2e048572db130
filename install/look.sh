# shellcheck shell=sh
# Print what `gpuboard deploy` must know of a GPU host before it changes anything there: one fact per line, a word and a value.
# It is sent to the stdin of sh, before anything is installed. Arguments: NAME (or -), then the names that the web host may have.

LC_ALL=C
export LC_ALL
PATH="${PATH:+$PATH:}/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
share=$HOME/.local/share/gpuboard
conf=$HOME/.config/gpuboard/gpuboard.conf
[ -f "$conf" ] || conf=/etc/gpuboard/gpuboard.conf

# print_fact WORD VALUE: print it on one line of limited length.
print_fact() { printf '%s %s\n' "$1" "$(printf '%s' "$2" | tr '[:cntrl:]' ' ' | cut -c 1-4000)"; }

# read_noted_name: print the name that was given when this host was installed.
read_noted_name() { sed -n 's/^host *//p' "$share/installed/$machine" 2>/dev/null | tail -n 1; }

# print_missing_programs: print which programs of those that the scripts call are missing.
print_missing_programs() {
    for program in awk base64 crontab cut find flock getent grep mktemp sed setsid sha256sum ssh ssh-keygen tar timeout; do
        command -v "$program" >/dev/null || print_fact missing "$program"
    done
    for program in nvidia-smi amd-smi rocm-smi /opt/rocm/bin/amd-smi /opt/rocm/bin/rocm-smi; do
        ! command -v "$program" >/dev/null || return 0
    done
    print_fact missing nvidia-smi
}

# print_installed: print the scripts, by their checksum, the line of the crontab, and the settings.
print_installed() {
    [ ! -f "$share/installed/$machine" ] || ! grep -qs '^host' "$share/installed/$machine" || print_fact installed "${noted_name:-$own_name}"
    [ ! -d "$share/scripts" ] || print_fact scripts "$(cd "$share/scripts" && find . -type f | sort | while IFS= read -r path; do sha256sum "$path"; done | sha256sum | cut -c 1-64)"
    print_fact version "$(sed -n 's/^GPUBOARD_VERSION=//p' "$share/scripts/lib/common.sh" 2>/dev/null)"
    print_fact crontab "$(crontab -l 2>/dev/null | sed -n '/^# >>> gpuboard host >>>/,/^# <<< gpuboard host <<</{/gpu-check\.sh/p;}' | tail -n 1)"
    print_fact dest "$(sed -n 's/^GPUBOARD_DEST=//p' "$conf" 2>/dev/null | head -n 1)"
}

# print_keys: print the public key, if the private one is there too, and that of the previous name; and the known keys of the web host.
print_keys() {
    keys=$HOME/.config/gpuboard/keys
    key=$(sed -n 's/^GPUBOARD_SSH_KEY=//p' "$conf" 2>/dev/null | head -n 1)
    key=${key:-$keys/$name}
    [ ! -s "$key" ] || print_fact key "$(head -n 1 "$key.pub" 2>/dev/null)"
    [ ! -s "$keys/${noted_name:-$own_name}" ] || print_fact key-before "$(head -n 1 "$keys/${noted_name:-$own_name}.pub" 2>/dev/null)"
    [ ! -f "$HOME/.config/gpuboard/known_hosts" ] || head -n 50 "$HOME/.config/gpuboard/known_hosts" | while IFS= read -r line; do print_fact known "$line"; done
}

# print_loops: print `ok`, or the first error.
print_loops() {
    [ -x "$share/scripts/gpu-check.sh" ] || return
    if words=$(cd "$HOME" && timeout 20 "$share/scripts/gpu-check.sh" status "$name" 2>&1 </dev/null); then
        print_fact loops ok
    else
        print_fact loops "$(printf '%s\n' "$words" | grep -E 'not run|hangs|fails|nothing|never been started' | head -n 1 | tr -s ' ')"
    fi
}

machine=$(uname -n)
own_name=${machine%%.*}
noted_name=$(read_noted_name)
name=$1
shift
[ "$name" != - ] || name=${noted_name:-$own_name}
print_fact gpuboard-look 1
print_fact own "$own_name"
print_fact name "$name"
print_fact home "$HOME"
print_fact seen "${SSH_CONNECTION:-}"
for web in "$@"; do print_fact reach "$web $(getent ahosts "$web" 2>/dev/null | cut -d ' ' -f 1 | sort -u | tr '\n' ' ')"; done
print_missing_programs
print_installed
print_keys
print_loops
print_fact end 1
