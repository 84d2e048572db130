# Programs that take a password in an unusual way. hide_value() in mask_values.awk masks each kind.

# add_flags: add options, each with the kind of its value, for every program in `programs`. A subcommand is joined by a slash.
function add_flags(programs, flags,    program, flag, i, j, n, m, key) {
    n = split(programs, program, " ")
    m = split(flags, flag, " ")
    for (i = 1; i <= n; i++) {
        key = add_program(program[i])
        for (j = 1; j < m; j += 2) FLAGS[key, flag[j]] = flag[j + 1]
    }
}

# add_positions: all words after the first `skipped` ones are secret.
function add_positions(programs, skipped,    program, i, n) {
    n = split(programs, program, " ")
    for (i = 1; i <= n; i++) POSITIONS[add_program(program[i])] = skipped
}

# add_program: add a name, or a name with its subcommand, and return the key of its tables.
function add_program(name,    at) {
    at = index(name, "/")
    if (at) {
        KNOWN[substr(name, 1, at - 1)] = 1
        sub("/", " ", name)
        SUBCOMMANDS[name] = 1
    } else KNOWN[name] = 1
    return name
}

BEGIN {
    # kinds: = whole, next word or joined; 1 whole, next word alone; + joined alone; : user:password; ? the same, or a token alone; % user%password;
    # , user,password; x name=value
    add_flags("sshpass", "-p =")
    add_flags("mysql mysqldump mysqladmin mysqlimport mysqlsh mysqlcheck mysqlshow mysqlbinlog mysqlpump mariadb mariadb-dump mariadb-admin", "-p +")
    add_flags("7z 7za 7zr 7zz unrar", "-p +")
    add_flags("rar", "-p + -hp +")
    add_flags("redis-cli valkey-cli keydb-cli", "-a =")
    add_flags("mongo mongosh mongodump mongorestore mongoexport mongoimport mongostat mongotop", "-p =")
    add_flags("cqlsh cypher-shell beeline mycli smbmap rdesktop racadm yt-dlp youtube-dl gallery-dl ncftp ncftpput ncftpget megadl megaput veracrypt steghide twine useradd usermod nxc netexec crackmapexec evil-winrm psexec", "-p =")
    add_flags("sqlcmd bcp osql isql zip unzip zipcloak ipmitool mosquitto_pub mosquitto_sub mosquitto_rr", "-P =")
    add_flags("ldapsearch ldapadd ldapmodify ldapdelete ldapwhoami ldapcompare ldapmodrdn ldapexop", "-w =")
    add_flags("ldappasswd", "-w = -a = -s =")
    add_flags("openssl", "-k 1 -K 1")
    add_flags("curl", "-u : -U : -b x -E : --cert :")
    add_flags("http https xh xhs httpie", "-a ?")
    add_flags("lftp open", "-u ,") # open is a command of lftp -e
    add_flags("ttyd gotty", "-c :")
    add_flags("miniserve dufs", "-a :")
    add_flags("transmission-remote", "-n :")
    add_flags("ntfy", "-u :")
    add_flags("pdftotext pdftoppm pdfimages pdfinfo", "-upw 1 -opw 1")
    add_flags("snmpget snmpset snmpwalk snmpbulkwalk snmptrap", "-A = -X = -c =")
    add_flags("swift", "-K 1")
    add_flags("frpc anaconda codecov vercel", "-t 1")
    add_flags("openai", "-k 1")
    add_flags("bw", "--session 1")
    add_flags("swaks", "-ap 1")
    add_flags("sendemail sendEmail", "-xp 1")
    add_flags("docker/login podman/login nerdctl/login buildah/login skopeo/login helm/login oras/login crane/login regctl/login az/login oc/login cf/login ibmcloud/login apptainer/login singularity/login poetry/publish", "-p =")
    add_flags("uv/publish", "-p 1 -t 1")
    add_flags("prefect/login nuget/push dotnet/push gem/push", "-k 1")
    add_flags("doctl/init influx/auth rosa/login glab/login", "-t 1")
    add_flags("gh/secret", "-b 1 --body 1")
    add_positions("wandb/login vault/login cargo/login ngrok/authtoken ngrok/add-authtoken snyk/auth bw/unlock b2/authorize-account rclone/obscure openssl/passwd", 0)
    add_positions("ansible-vault/encrypt_string iwconfig/key cloudflared/install nuget/setapikey mkpasswd vault/renew vault/lookup vault/revoke vault/unseal redis-cli/auth redis-cli/AUTH", 0)
    add_positions("bw/login rabbitmqctl/add_user rabbitmqctl/change_password wpa_passphrase gcloud/activate-refresh-token steamcmd/+login smbclient", 1)
    add_positions("mc/set mc/add net/use", 2)
    n = split("htpasswd sqlplus ssh scp sftp rsync", list, " ") # sshpass -p x ssh -p 22 host: the second is a port
    for (i = 1; i <= n; i++) add_program(list[i])
    PAIRS["vault put"] = PAIRS["vault patch"] = PAIRS["vault write"] = PAIRS["fly secrets"] = PAIRS["flyctl secrets"] = PAIRS["supabase secrets"] = PAIRS["heroku config:set"] = 1
    for (key in PAIRS) { sub(" ", "/", key); add_program(key) }
    # names that almost always mean the program, wherever they occur
    n = split("sshpass mysql mysqldump mysqladmin mysqlimport mysqlsh mariadb mariadb-dump mongosh mongodump mongorestore redis-cli valkey-cli sqlcmd cqlsh curl lftp " \
        "ldapsearch ldapmodify ldapadd ldappasswd ipmitool wandb ngrok 7z unzip zip openssl docker podman mosquitto_pub mosquitto_sub htpasswd", list, " ")
    for (i = 1; i <= n; i++) ANYWHERE[list[i]] = 1
    # programs that start another one, after options of their own
    n = split("sudo sshpass doas su runuser env nohup time nice ionice chrt timeout xargs parallel watch setsid stdbuf unbuffer chroot unshare nsenter numactl taskset cgexec systemd-run flock exec " \
        "command builtin eval sh bash dash zsh ksh ash fish busybox srun mpirun mpiexec orterun aprun jsrun prun ssh docker podman nerdctl kubectl oc apptainer singularity enroot " \
        "proxychains proxychains4 firejail screen tmux script find strace ltrace valgrind perf nsys ncu gosu tini dumb-init uv poetry conda mamba micromamba pipx npx flatpak-spawn", list, " ")
    for (i = 1; i <= n; i++) STARTS_OTHERS[list[i]] = 1
    # programs that read a password from a pipe
    READS_PASSWORD = "(sudo|su) .*-S( |$)|sudo -[A-Za-z]*S|-stdin|--with-token|chpasswd|passwd|cryptsetup|kinit|vncpasswd|--passphrase-fd|(huggingface-cli|hf|gh|glab|docker|podman) .*login"
}
