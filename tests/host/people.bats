#!/usr/bin/env bats
# People in ps.txt: who is behind sudo, and names of users, whole and kept.
load helper
load processes
load containers

setup() { container_setup; }

@test "the person behind sudo is who logged in" {
    is_in session 100
    is_in service 101
    is_in service 102
    is_in service 103
    is_in docker 104
    is_in session 105 1002
    echo 1002 >"$TMP/proc/100/loginuid"
    echo 1002 >"$TMP/proc/101/loginuid"
    echo 4294967295 >"$TMP/proc/102/loginuid"
    echo 0 >"$TMP/proc/103/loginuid"
    echo 1002 >"$TMP/proc/104/loginuid" # who started docker last
    gpu_process 100 101 102 103 104 105
    take
    [ "$(column person 100)" = Bob ]
    [ "$(column person 101)" = Bob ]
    [ "$(column person 102)" = - ]
    [ "$(column person 103)" = - ]
    [ "$(column person 104)" = - ]
    [ "$(column person 105)" = - ]
    rm "$TMP/proc/100/loginuid" "$SPOOL/minute.time" # a kernel without audit
    take
    [ "$(column person 100)" = alice ] # whose session it is
}

# bats test_tags=shell
@test "a rootless container is whose session it runs in, whatever its number and its labels" {
    is_in podman 100 101000
    gpu_process 100
    take
    [ "$(column user 100) $(column person 100)" = '101000 alice' ]
}

@test "an environment that may be read tells the image of Apptainer, and who is behind root" {
    is_in service 100
    is_in session 101 1001
    is_in session 102 1001
    printf 'PATH=/bin\0SECRET=hunter2\0JUPYTERHUB_USER=zoe\0' >"$TMP/proc/100/environ"
    printf 'APPTAINER_NAME=torch.sif\0APPTAINER_CONTAINER=/home/alice/torch.sif\0GPUBOARD_USER=bob\0' >"$TMP/proc/101/environ"
    printf 'SINGULARITY_NAME=a b\nc\0USER=x\0' >"$TMP/proc/102/environ"
    gpu_process 100 101 102
    take
    [ "$(column person 100)" = zoe ]
    [ "$(column container 101) $(column image 101) $(column person 101)" = 'apptainer torch.sif -' ]
    [ "$(column container 102) $(column image 102)" = '- -' ]
    [ "$(column command 101)" = python ]
    [ -z "$(grep -rl hunter2 "$SPOOL")" ]
}

@test "a ps.txt of an older collector is read as it is" {
    is_in session 100 1001
    gpu_process 100
    take
    awk -F '\t' -v OFS='\t' 'NF == 15 {print $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $15; next} {print}' "$SPOOL/ps.txt" >"$TMP/old"
    mv "$TMP/old" "$SPOOL/ps.txt"
    echo changed >"$TMP/proc/100/cmdline"
    take
    [ "$(column command 100) $(column user 100) $(column image 100) $(column person 100)" = 'python alice - -' ]
}

@test "while nobody tells names, processes keep those that they had" {
    is_in session 100 1001
    gpu_process 100
    take
    printf '#!/bin/sh\nexit 2\n' >"$TMP/bin/getent"
    rm "$SPOOL/minute.time"
    is_in session 101 1001
    gpu_process 100 101
    take
    [ "$(column user 100) $(column user 101)" = 'alice 1001' ]
}

@test "names of users are told whole, whatever letters they have" {
    local uid=2000 name
    while IFS= read -r name; do
        uid=$((uid + 1))
        printf '%s:x:%s:1::/:/bin/sh\n' "$name" "$uid" >>"$TMP/passwd"
        is_in session "$uid" "$uid"
        printf '%s\n' "$name" >>"$TMP/wanted"
    done <<'EOF'
user-with-a-name-of-thirty-three-characters
müller
domain\user.name
john.doe@realm.example.org
machine$
12345678
domain users
张伟
EOF
    gpu_process $(seq 2001 "$uid")
    take
    for uid in $(seq 2001 "$uid"); do column user "$uid"; done | diff - "$TMP/wanted"
}
