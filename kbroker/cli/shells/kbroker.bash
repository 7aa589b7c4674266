# Completion of kbroker in bash: source <(kbroker completion bash)
_kbroker() {
    mapfile -t COMPREPLY < <("${COMP_WORDS[0]}" completion bash --line "${COMP_LINE:0:COMP_POINT}" 2>/dev/null)
    if [[ ${COMPREPLY[0]} == "<files>" ]]; then
        COMPREPLY=()
        compopt -o default
    fi
}
complete -F _kbroker kbroker
