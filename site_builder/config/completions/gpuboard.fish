function __gpuboard_offered
    set -l typed (commandline -ct)
    set -l head (string match -r -- '^--[^=]*=' $typed)
    set -l rest (string replace -r -- '^--[^=]*=' '' $typed)
    set -l line (commandline -cp | string collect)
    for one in (env _GPUBOARD_LINE="$line" _GPUBOARD_COMPLETE=fish_complete gpuboard 2>/dev/null)
        set -l parts (string split -m 2 \t -- $one)
        switch $parts[1]
            case dir
                printf "$head%s\n" (__fish_complete_directories "$rest" '')
            case file
                printf "$head%s\n" (__fish_complete_path "$rest")
            case plain
                printf "$head%s\t%s\n" $parts[2] "$parts[3]"
        end
    end
end
complete -c gpuboard -f -a '(__gpuboard_offered)'
