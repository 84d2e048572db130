# shellcheck shell=sh disable=SC2034,SC2154,SC3067 # HOST and parts of sentences are set by the script that reads this one, which uses rejection and new_mode; -O: in every sh that we know
# Write into a folder that other accounts may write to, too. Nothing is written by a path that they can redirect: enter DATA/HOST
# first, and then check `.`, which nobody can replace any more. From then on all names are relative to it.

# can_others_write FOLDER MODE GID: whether another account can replace files in a folder with this mode (stat's %a) and group. In a sticky
# folder it cannot. A group with the name of this account and no other members (umask 002) has nobody else in it; but with an access list,
# which ls shows by a +, these bits are not about the group.
can_others_write() {
    case $2 in
        '' | *[!0-7]*) return 0 ;;
        [1357]???) return 1 ;;
        *[2367]) return 0 ;;
        *[2367]?) ;;
        *) return 1 ;;
    esac
    case $(ls -ld "$1/") in ??????????+*) return 0 ;; esac
    case $(getent group "$3") in "$(id -un)":*:) return 1 ;; esac
    return 0
}

# set_rejection DATA SENTENCE: set rejection to the sentence, or to the more serious one that others can write to DATA.
set_rejection() {
    rejection=$2
    # shellcheck disable=SC2046 # two words
    ! can_others_write "$1" $(stat -c '%a %g' "$1/.") || rejection="other accounts can write to $data_label$where and so redirect what is written: $remedy"
    return 1
}

# enter_host_folder DATA: enter DATA/HOST, which is created if need be, and check it. If it cannot be used, set rejection to the reason:
# `data_label` is DATA as sentences name it, `where` says on which machine, `remedy` what to do if others can write to it.
# DATA may belong to anybody if `allowed_owners` is any; else to us or root.
enter_host_folder() {
    rejection=
    CDPATH='' cd -P -- "$1" 2>/dev/null || { rejection="the folder $1 does not exist$where (not mounted?)" && return 1; }
    data_path=$PWD
    [ -d "$HOST" ] || [ -h "$HOST" ] || mkdir "$HOST" 2>/dev/null || [ -d "$HOST" ] || {
        rejection="the folder $data_label/$HOST cannot be created$where: check that $(id -un) may write to $data_label, and that its disk is not full"
        return 1
    }
    CDPATH='' cd -P -- "$HOST" 2>/dev/null || { set_rejection "$1" "the folder $data_label/$HOST cannot be entered$where: it must be a folder of $(id -un)" || return; }
    [ "$PWD" = "$data_path/$HOST" ] || { set_rejection "$1" "$data_label/$HOST is a link$where, and links are not followed: remove it" || return; }
    [ -O . ] || { set_rejection "$1" "$data_label/$HOST belongs to $(stat -c %U .)$where, not to $(id -un): remove it there, or give it to $(id -un) (chown)" || return; }
    {
        read -r top_mode top_group top_owner
        read -r mode _
        read -r new_mode _ || new_mode=
    } <<END
$(stat -c '%a %g %u' .. . .new 2>/dev/null)
END
    if [ "$allowed_owners" != any ] && [ "$top_owner" != 0 ] && [ ! -O .. ]; then
        rejection="the folder $data_label$where belongs to $(stat -c %U ..), not to $(id -un): give it to $(id -un) (chown)"
        return 1
    fi
    ! can_others_write .. "$top_mode" "$top_group" || { set_rejection .. '' || return; }
    case $mode in *[2367] | *[2367]?) ;; *) return 0 ;; esac # made with a umask of 002, or by hand
    chmod go-w . 2>/dev/null || { rejection="other accounts can write to $data_label/$HOST$where: chmod go-w $1/$HOST" && return 1; }
}

# set_folder_sentences DATA: set how sentences on the web host name the data folder.
set_folder_sentences() {
    data_label=data where=' on the web host' allowed_owners=ours
    remedy="run ./install.sh web there as $(id -un), or: chmod go-w $1"
}

# is_in_host_folder DATA: whether `.` is still DATA/HOST, which may have been removed, or its share mounted again.
# shellcheck disable=SC3013 # -ef: in every sh that we know, and in POSIX since 2024
is_in_host_folder() { [ . -ef "$1/$HOST" ] && [ -d .new ]; }

# make_new_folder: after enter_host_folder, create an empty folder .new for this account alone; files are written there, and renamed.
make_new_folder() {
    rejection=
    rm -rf .new 2>/dev/null || :
    mkdir -m 0700 .new 2>/dev/null || { # a umask has no effect with a default access list
        rejection="$data_label/$HOST/.new cannot be created$where: remove whatever is in its place, and check whether the disk is full"
        return 1
    }
}
