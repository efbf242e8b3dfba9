# Shared by the guides: steps that fail loudly. Needs kubectl on the PATH and KUBECONFIG.

set -eu

# step TEXT: says what comes next.
step() {
    echo "== $*"
}

# eventually TEXT COMMAND…: repeats a command until it succeeds.
eventually() {
    what=$1
    shift
    tries=0
    until "$@" >/dev/null 2>&1; do
        tries=$((tries + 1))
        if [ "$tries" -gt "${GUIDE_TRIES:-240}" ]; then
            echo "never: $what" >&2
            kubectl get nodes,nodeclaims,nodepools,pods >&2 || true
            exit 1
        fi
        sleep 0.5
    done
    echo "   $what"
}

# counted NUMBER COMMAND…: whether the command prints so many lines.
counted() {
    wanted=$1
    shift
    [ "$("$@" | grep -c .)" -eq "$wanted" ]
}

# printed TEXT COMMAND…: whether the output of the command contains the text.
printed() {
    wanted=$1
    shift
    "$@" | grep -q -- "$wanted"
}

# refused TEXT COMMAND…: whether the command fails and says so.
refused() {
    wanted=$1
    shift
    if said=$("$@" 2>&1); then
        return 1
    fi
    printf '%s\n' "$said" | grep -q -- "$wanted"
}

running() {
    kubectl get pods -l app=inflate --field-selector=status.phase=Running -o name
}
