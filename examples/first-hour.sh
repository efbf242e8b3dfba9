#!/bin/sh
# The first hour of a new user, from a fresh clone: plans for the manifests in examples/workloads, the
# same manifests on `nap try` until everything is ready, and the two guides. Every step asserts what a
# user would expect. Needs Rust, and kubectl for all but the plans.
#
#   sh examples/first-hour.sh              # all parts
#   sh examples/first-hour.sh plan try     # some of: plan, try, guides

here=$(CDPATH='' cd -- "$(dirname "$0")" && pwd)
. "$here/guides/library.sh"

if [ -z "${NAP:-}" ]; then
    (cd "$here/.." && cargo build --package nap)
    NAP=$here/../target/debug/nap
fi
folder=$(mktemp -d)
cluster=

# cluster ARGUMENTS…: starts nap try and waits until it is up.
cluster() {
    "$NAP" try --speed 20 "$@" >"$folder/try.log" 2>&1 &
    cluster=$!
    eventually "the cluster is up" grep -q "Ctrl-C ends it" "$folder/try.log"
    KUBECONFIG=$(sed -n 's/^ *export KUBECONFIG=//p' "$folder/try.log")
    export KUBECONFIG
}

# stopped: ends nap try, which must say what it cost.
stopped() {
    kill -TERM "$cluster"
    wait "$cluster"
    cluster=
    grep -q "VM(s) created" "$folder/try.log"
}

clean() {
    [ -z "$cluster" ] || kill -TERM "$cluster" 2>/dev/null || true
    rm -rf "$folder"
}
trap clean EXIT
trap 'exit 1' INT TERM

# planned FILE PODS: plans a file; all of its pods must have a place, and be so many.
planned() {
    "$NAP" lint -f "$here/workloads/$1" >/dev/null
    "$NAP" plan -f "$here/workloads/$1" -o json >"$folder/plan.json" 2>/dev/null
    grep -q '"unschedulable": \[\]' "$folder/plan.json"
    pods=$(tr -d ' \n' <"$folder/plan.json" | grep -o '"pods":\[[^]]*\]' | grep -o '"[^",]*/[^",]*"' | grep -c .)
    if [ "$pods" -ne "$2" ]; then
        echo "$1: $pods pods are planned, and not $2" >&2
        exit 1
    fi
    echo "   $1: $("$NAP" plan -f "$here/workloads/$1" 2>/dev/null | head -n 1)"
}

plans() {
    step "Plans"
    planned autoscaled.yaml 4
    planned cronjob.yaml 1
    planned daemonset.yaml 2
    planned job.yaml 3
    planned keda.yaml 2
    planned limit-range.yaml 4
    planned pdb.yaml 3
    planned quota.yaml 4
    planned spot.yaml 3
    planned spread.yaml 6
    planned stateful.yaml 3
    "$NAP" explain pod stateful/queue -f "$here/workloads/stateful.yaml" 2>/dev/null | grep -q "gets a new VM"
    if "$NAP" plan -f "$here/workloads" --max-cost 1/month >/dev/null 2>&1; then
        echo "a plan above --max-cost succeeds" >&2
        exit 1
    fi
}

# same COMMAND…: whether it prints pairs of equal numbers, none of them zero.
same() {
    "$@" | tr ' ' '\n' | grep . | awk -F / '$1 != $2 || $1 == 0 { wrong = 1 } END { exit NR == 0 || wrong }'
}

tries() {
    step "The same on a cluster"
    cluster
    # The first time, the kind that a file defines is not known yet.
    eventually "everything is applied" kubectl apply -f "$here/workloads"
    eventually "every Deployment is ready" same kubectl get deployments -A -o \
        'jsonpath={range .items[*]}{.status.readyReplicas}/{.spec.replicas} {end}'
    eventually "every StatefulSet is ready" same kubectl get statefulsets -A -o \
        'jsonpath={range .items[*]}{.status.readyReplicas}/{.spec.replicas} {end}'
    eventually "every DaemonSet is ready" same kubectl get daemonsets -A -o \
        'jsonpath={range .items[*]}{.status.numberReady}/{.status.desiredNumberScheduled} {end}'
    eventually "the Job is complete" printed 6/6 kubectl get job render -n batch
    eventually "the CronJob has run" printed Complete kubectl get jobs -n nightly
    counted 3 kubectl get pvc -n stateful --no-headers
    eventually "the Service has endpoints" printed 10.244. kubectl get endpointslices -n spread
    printed PRICE kubectl get nodeclaims -o wide
    counted 4 kubectl get pods -n autoscaled --no-headers
    printed 750m kubectl get pods -n defaults -o yaml
    kubectl get nodeclaims
    stopped
}

guides() {
    step "The guides"
    cluster --retired-sizes
    sh "$here/guides/first-steps.sh"
    stopped
    cluster --system-nodes 3
    sh "$here/guides/disable.sh"
    stopped
}

[ $# -gt 0 ] || set -- plan try guides
for part in "$@"; do
    case $part in
    plan) plans ;;
    try) tries ;;
    guides) guides ;;
    *) echo "there is no part $part: plan, try, guides" >&2 && exit 2 ;;
    esac
done
echo "== the first hour is over"
