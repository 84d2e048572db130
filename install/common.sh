# shellcheck shell=sh
# What every part of install.sh shares, and tests/run.sh with it: words, apt, Python, .venv. It is read in the folder of the clone.

# the host scripts' own words and checks; their umask and locale are for snapshots alone
kept_umask=$(umask) kept_locale=${LC_ALL-}
LIB=scripts/lib
# shellcheck source=scripts/lib/common.sh
. scripts/lib/common.sh
umask "$kept_umask"
unset LC_ALL
[ -z "$kept_locale" ] || export LC_ALL="$kept_locale"

# tell WORDS...: how it goes on, a line a step. What goes wrong is said by say and die.
tell() { printf '%s\n' "$*"; }

# become_root: sets sudo to what makes a command root's, or fails: nobody is asked for a password.
become_root() {
    sudo=
    [ "$(id -u)" = 0 ] || { sudo='sudo -n' && $sudo true 2>/dev/null; }
}

# apt_install PACKAGE...: as root.
apt_install() {
    become_root && command -v apt-get >/dev/null || return 1
    tell "Installing $* by apt-get"
    { $sudo apt-get update -q && $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends "$@"; } >/dev/null
}

# find_python: sets python to one that is new enough and can make a venv, or says which one command helps.
find_python() {
    for python in python3 python3.13 python3.12 python3.11 python3.10 python3.9 ''; do
        [ -n "$python" ] || die 'Python 3.9 or newer was not found here; Debian and Ubuntu have it: sudo apt-get install python3 python3-venv'
        "$python" -c 'import sys; sys.exit(sys.version_info < (3, 9))' 2>/dev/null && break
    done
    can_make_venv || { apt_install "$python-venv" && can_make_venv; } ||
        die "$python cannot make a venv here; Debian and Ubuntu have what it lacks: sudo apt-get install $python-venv"
}

can_make_venv() { "$python" -c 'import ensurepip, venv' 2>/dev/null; }

# venv_facts VENV: where this venv is, and of which Python: a venv that was moved, or whose Python was replaced, tells something else.
venv_facts() { "$1/bin/python" -I -c 'import sys; print("%d.%d" % sys.version_info[:2], sys.prefix)' 2>/dev/null; }

# new_venv VENV: an empty one in its place.
new_venv() {
    find_python
    rm -rf "$1"
    tell "Making $1 with $python"
    "$python" -m venv "$1"
    venv_facts "$1" >"$1/made-as"
}

# sound_venv VENV: it is there, and still what it was when it was made. One that somebody else made here counts too, if it works.
sound_venv() {
    [ -s "$1/made-as" ] || ! works_here "$1" || venv_facts "$1" >"$1/made-as"
    [ -s "$1/made-as" ] && [ "$(venv_facts "$1")" = "$(cat "$1/made-as")" ]
}

# works_here VENV: it can install, and knows itself in this place. It is asked in a shell of its own, which it changes.
works_here() {
    "$1/bin/python" -m pip --version >/dev/null 2>&1 || return
    # shellcheck disable=SC2016 # for the inner shell
    sh -c '. "$1/bin/activate" && [ "$VIRTUAL_ENV" -ef "$1" ]' - "$1" 2>/dev/null
}

# pip_install VENV WORDS...: what pip says is shown only if it fails.
pip_install() {
    venv=$1
    shift
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$@"
}

# make_venv EXTRA: the package, editable, with what it needs, in .venv; again only if pyproject.toml changed.
make_venv() {
    sound_venv .venv || new_venv .venv
    stamp=.venv/.installed${1:+-$1}
    if [ ! -e "$stamp" ] || [ -n "$(find pyproject.toml -newer "$stamp")" ]; then
        tell 'Installing gpuboard and what it needs into .venv'
        pip_install .venv --editable ".${1:+[$1]}" || die 'pip could not install what gpuboard needs, for the reason above; once that is mended, call this again'
        touch "$stamp"
    fi
}
