//! The kubectl commands of the suite. A word has no spaces: there is no shell between.

/// Commands, one after another; each group reads this manifest where it says `-f -`.
pub(super) const COMMANDS: [(&str, &[&str]); 8] = [
    (NONE, &CREATING),
    (NONE, &READING),
    (NONE, &CHANGING),
    (PAINT, &APPLYING),
    (REPAINT, &REAPPLYING),
    (ANSWER, &REPLACING),
    (UNKNOWN, &NOT_SERVED),
    (NODE, &NODES),
];

const NONE: &str = "";

/// Stands for the output of the last command that read something.
pub(super) const ANSWER: &str = "the answer";

const CREATING: [&str; 24] = [
    "create deployment web --image pause:3.9 --replicas 2",
    "get deployment web -o name",
    "set image deployment/web pause=pause:3.10",
    "scale deployment web --replicas 3",
    "label deployment web team=a",
    "annotate deployment web note=b",
    "autoscale deployment web --min 1 --max 5 --cpu 60%",
    "create job once --image busybox -- sleep 1",
    "create cronjob night --image busybox --schedule=@hourly -- date",
    "create job manual --from cronjob/night",
    "create quota team --hard pods=5",
    "create role reader --verb get --resource pods",
    "create rolebinding reader --role reader --user ann",
    "create clusterrole watcher --verb watch --resource nodes",
    "create clusterrolebinding watcher --clusterrole watcher --user ann",
    "create service clusterip web --tcp 80:8080",
    "create ingress web --rule=example.com/=web:80",
    "create configmap settings --from-literal colour=red",
    "create secret generic password --from-literal word=sesame",
    "create serviceaccount robot",
    "create poddisruptionbudget web --selector app=web --min-available 1",
    "create priorityclass high --value 1000",
    "expose deployment web --port 80 --name exposed",
    "create configmap settings --from-literal colour=red",
];

const READING: [&str; 51] = [
    "auth can-i create pods",
    "auth can-i --list",
    "auth whoami",
    "explain deployment.spec.strategy.rollingUpdate",
    "explain pod.spec.containers.resources",
    "explain node.spec --recursive",
    "api-resources --api-group batch",
    "get hpa",
    "get cronjob",
    "get storageclasses",
    "get nothings",
    "get deployment missing",
    "get deployment missing --ignore-not-found",
    "get deployment web -o wide",
    "get deployments --show-labels",
    "get deployments -L app",
    "get deployments -l team=a -o name",
    "get deployments --no-headers",
    "get deployment/web configmap/settings",
    "get deployment web -o jsonpath={.spec.replicas}",
    "get deployment web -o jsonpath={.spec.nothing}",
    "get deployments -o custom-columns=NAME:.metadata.name,COUNT:.spec.replicas,NO:.spec.no",
    "get deployments -o go-template={{range.items}}{{.metadata.name}}{{end}}",
    "get configmaps,secrets,serviceaccounts --sort-by .metadata.name",
    "get services --sort-by .spec.ports[0].port -o name",
    "get configmaps --chunk-size 1",
    "get configmaps --field-selector metadata.name=settings",
    "get jobs -o wide",
    "get poddisruptionbudgets",
    "get priorityclasses",
    "get roles,rolebindings -o wide",
    "describe deployment web",
    "describe configmap settings",
    "describe secret password",
    "describe service web",
    "describe job once",
    "describe cronjob night",
    "describe hpa web",
    "describe role reader",
    "describe poddisruptionbudget web",
    "describe ingress web",
    "describe priorityclass high",
    "describe deployment missing",
    "get deployment web -o yaml",
    "get cronjob night -o yaml",
    "get service web -o yaml",
    // Without the warnings of a repair of addresses, which begins after some minutes.
    "events --types Normal",
    "rollout status deployment web --timeout 1s",
    r#"run solo --image pause:3.9 --overrides={"spec":{"schedulerName":"none"}}"#,
    "get pod solo -o yaml",
    "get all",
];

const CHANGING: [&str; 36] = [
    r#"patch deployment web --type merge -p {"spec":{"replicas":4}}"#,
    r#"patch deployment web --type json -p [{"op":"replace","path":"/spec/replicas","value":5}]"#,
    r#"patch deployment web --type json -p [{"op":"remove","path":"/spec/nothing"}]"#,
    r#"patch deployment web -p {"metadata":{"labels":{"team":null}}}"#,
    r#"patch deployment web -p {"spec":{"replicas":5}}"#,
    r#"patch deployment web --subresource scale --type merge -p {"spec":{"replicas":6}}"#,
    r#"patch deployment web --type merge -p {"spec":{"replicas":"many"}}"#,
    "wait deployment/web --for jsonpath={.spec.replicas}=6",
    "wait deployment/web --for condition=Available --timeout 1s",
    "wait configmap/missing --for delete",
    "wait deployment/missing --for condition=Available",
    "scale deployment web --replicas 1 --current-replicas 9",
    "set env deployment/web COLOUR=red",
    "set env deployment/web --list",
    "set resources deployment web --requests cpu=100m --limits memory=64Mi",
    "set serviceaccount deployment web robot",
    "label deployment web team=b",
    "label deployment web team=c",
    "label deployment web team=c --overwrite",
    "label deployment web team-",
    "annotate deployment web note-",
    "rollout history deployment web",
    "rollout pause deployment web",
    "rollout pause deployment web",
    "rollout resume deployment web",
    "rollout resume deployment web",
    "rollout undo deployment web",
    "rollout restart deployment web --dry-run=server",
    "create configmap dry --from-literal a=b --dry-run=server -o name",
    "get configmap dry",
    "delete clusterrole,clusterrolebinding watcher",
    "delete configmap missing",
    "delete configmap settings --dry-run=server",
    "delete service,ingress --all",
    "delete deployment web",
    "delete priorityclass high",
];

const PAINT: &str = r"
apiVersion: v1
kind: ConfigMap
metadata:
  name: paint
data:
  colour: red
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: painter
spec:
  selector:
    matchLabels: { app: painter }
  template:
    metadata:
      labels: { app: painter }
    spec:
      containers:
        - { name: main, image: pause:3.9 }
";

const APPLYING: [&str; 8] = [
    "diff -f -",
    "apply -f - --dry-run=server",
    "apply -f -",
    "apply -f -",
    "create -f -",
    "get -f - -o name",
    "apply view-last-applied configmap paint",
    "diff -f -",
];

const REPAINT: &str = r"
apiVersion: v1
kind: ConfigMap
metadata:
  name: paint
data:
  colour: blue
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: painter
spec:
  replicas: 2
  selector:
    matchLabels: { app: painter }
  template:
    metadata:
      labels: { app: painter }
    spec:
      containers:
        - { name: side, image: pause:3.9 }
        - { name: main, image: pause:3.10 }
";

const REAPPLYING: [&str; 7] = [
    "diff -f -",
    "apply -f -",
    "get deployment painter -o jsonpath={.spec.template.spec.containers[*].name}",
    "apply -f - --server-side",
    "apply -f - --server-side --force-conflicts",
    "replace -f -",
    "get configmap paint -w --request-timeout 2s",
];

const REPLACING: [&str; 11] = [
    "edit configmap paint",
    "edit configmap paint",
    "get configmap paint -o jsonpath={.data.colour}",
    "get configmap paint -o yaml",
    "replace -f -",
    "replace -f -",
    "delete -f -",
    "replace -f -",
    "delete deployment painter",
    "get deployment painter --ignore-not-found",
    "delete configmap paint --ignore-not-found",
];

const UNKNOWN: &str = r"
apiVersion: monitoring.coreos.com/v1
kind: ServiceMonitor
metadata:
  name: web
spec:
  selector: {}
---
apiVersion: v1
kind: ConfigMap
metadata:
  name: beside
";

const NOT_SERVED: [&str; 5] =
    ["apply -f -", "apply -f - --server-side", "create -f -", "diff -f -", "delete -f -"];

const NODE: &str = r"
apiVersion: v1
kind: Node
metadata:
  name: hand
spec:
  taints:
    - { key: node.kubernetes.io/not-ready, effect: NoSchedule }
";

const NODES: [&str; 17] = [
    "apply -f -",
    "get node hand",
    "get node hand -o wide",
    "cordon hand",
    "cordon hand",
    "uncordon hand",
    "taint node hand team=a:NoSchedule",
    "taint node hand team=a:NoSchedule",
    "taint node hand team=b:NoSchedule --overwrite",
    "taint node hand team-",
    "taint node hand team-",
    "label node hand team=a",
    "describe node hand",
    "drain hand --ignore-daemonsets",
    "get nodes -l team=a -o jsonpath={.items[*].spec.unschedulable}",
    "delete node hand",
    "cordon hand",
];
