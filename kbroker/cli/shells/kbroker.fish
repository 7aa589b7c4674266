# Completion of kbroker in fish: kbroker completion fish | source
function __kbroker_complete
    set -l line (commandline -cp | string collect)
    set -l found (kbroker completion fish --line "$line" 2>/dev/null)
    if test "$found[1]" = "<files>"
        __fish_complete_path (commandline -ct)
    else
        printf '%s\n' $found
    end
end
complete -c kbroker -f -a '(__kbroker_complete)'
