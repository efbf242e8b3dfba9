//! The permissions as roles: objects to apply, and the template of the chart.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Value, json};

use super::{Scope, Verbs, When, rules};

/// Name of the leader election Lease in the template and in `nap rbac`.
const LEASE: &str = "karpenter-leader-election";

/// Service account, roles and bindings, for a nap of this name in this namespace.
pub fn roles(name: &str, namespace: &str, default_spread: bool) -> Vec<Value> {
    let wanted = |when: When| when == When::Always || default_spread;
    let rules = rules();
    let (mut cluster, mut own) = (Vec::new(), Vec::new());
    for ((scope, when), verbs) in &rules {
        if !wanted(*when) {
            continue;
        }
        let (list, names) = match scope {
            Scope::Cluster => (&mut cluster, Vec::new()),
            Scope::Named(names) => (&mut cluster, names.to_vec()),
            Scope::Own => (&mut own, Vec::new()),
            Scope::OwnNamed(names) => (&mut own, names.to_vec()),
            Scope::OwnLease => (&mut own, vec![LEASE]),
        };
        list.extend(policy_rules(verbs, &names));
    }
    let metadata = json!({ "name": name });
    let local = json!({ "name": name, "namespace": namespace });
    let group = "rbac.authorization.k8s.io";
    let version = "rbac.authorization.k8s.io/v1";
    let subjects = json!([{ "kind": "ServiceAccount", "name": name, "namespace": namespace }]);
    let refers = |kind: &str| json!({ "apiGroup": group, "kind": kind, "name": name });
    vec![
        json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": local }),
        json!({ "apiVersion": version, "kind": "ClusterRole", "metadata": metadata, "rules": cluster }),
        json!({
            "apiVersion": version, "kind": "ClusterRoleBinding", "metadata": metadata,
            "roleRef": refers("ClusterRole"), "subjects": subjects,
        }),
        json!({ "apiVersion": version, "kind": "Role", "metadata": local, "rules": own }),
        json!({
            "apiVersion": version, "kind": "RoleBinding", "metadata": local,
            "roleRef": refers("Role"), "subjects": subjects,
        }),
    ]
}

/// Rules of RBAC: resources of one group with the same verbs share one.
fn policy_rules(verbs: &Verbs, names: &[&str]) -> Vec<Value> {
    let mut grouped: BTreeMap<(&str, Vec<&str>), Vec<&str>> = BTreeMap::new();
    for ((group, resource), verbs) in verbs {
        let verbs: Vec<&str> = verbs.iter().copied().collect();
        grouped.entry((*group, verbs)).or_default().push(*resource);
    }
    let rule = |((group, verbs), resources): ((&str, Vec<&str>), Vec<&str>)| {
        let mut rule = json!({ "apiGroups": [group], "resources": resources, "verbs": verbs });
        if !names.is_empty() {
            rule["resourceNames"] = json!(names);
        }
        rule
    };
    grouped.into_iter().map(rule).collect()
}

const TEMPLATE_HEAD: &str = "\
{{- /* Made from the permissions that each controller declares; do not edit.
       `NAP_BLESS=1 cargo test -p nap-controllers --lib permissions` refreshes it. */ -}}
{{- if .Values.rbac.create }}
";

/// The template of the chart with the roles and their bindings.
pub fn chart_template() -> String {
    let mut text = TEMPLATE_HEAD.to_owned();
    let rules = rules();
    let section = |scopes: fn(&Scope) -> bool| {
        let mut lines = String::new();
        for ((scope, when), verbs) in rules.iter().filter(|((scope, _), _)| scopes(scope)) {
            let names: Vec<&str> = match scope {
                Scope::Named(names) | Scope::OwnNamed(names) => names.to_vec(),
                Scope::OwnLease => vec!["{{ .Values.settings.leaderElectionName }}"],
                Scope::Cluster | Scope::Own => Vec::new(),
            };
            if *when == When::DefaultSpread {
                lines.push_str("  {{- if .Values.settings.schedulerConfig }}\n");
            }
            for rule in policy_rules(verbs, &names) {
                write_rule(&mut lines, &rule);
            }
            if *when == When::DefaultSpread {
                lines.push_str("  {{- end }}\n");
            }
        }
        lines
    };
    let labels = "  labels:\n    {{- include \"nap.labels\" . | nindent 4 }}\n";
    let is_cluster = |scope: &Scope| matches!(scope, Scope::Cluster | Scope::Named(_));
    let is_own = |scope: &Scope| !matches!(scope, Scope::Cluster | Scope::Named(_));
    for (kind, rules, namespaced) in
        [("ClusterRole", section(is_cluster), false), ("Role", section(is_own), true)]
    {
        let namespace = if namespaced { "  namespace: {{ .Release.Namespace }}\n" } else { "" };
        let name = "  name: {{ include \"nap.fullname\" . }}\n";
        let version = "apiVersion: rbac.authorization.k8s.io/v1\n";
        // Writing to a String cannot fail.
        let _ = write!(
            text,
            "---\n{version}kind: {kind}\nmetadata:\n{name}{namespace}{labels}rules:\n{rules}\
             ---\n{version}kind: {kind}Binding\nmetadata:\n{name}{namespace}{labels}roleRef:\n  \
             apiGroup: rbac.authorization.k8s.io\n  kind: {kind}\n{name}subjects:\n  \
             - kind: ServiceAccount\n    name: {{{{ include \"nap.serviceAccountName\" . }}}}\n    \
             namespace: {{{{ .Release.Namespace }}}}\n"
        );
    }
    text.push_str("{{- end }}\n");
    text
}

fn write_rule(text: &mut String, rule: &Value) {
    let mut dash = "- ";
    for key in ["apiGroups", "resources", "resourceNames", "verbs"] {
        let Some(values) = rule[key].as_array() else { continue };
        let values: Vec<String> = values
            .iter()
            .filter_map(Value::as_str)
            .map(|value| if value.is_empty() { "\"\"".to_owned() } else { value.to_owned() })
            .collect();
        let _ = writeln!(text, "  {dash}{key}: [{}]", values.join(", "));
        dash = "  ";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_template_of_the_chart_is_that_of_the_declarations() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../charts/nap/templates/rbac.yaml");
        if std::env::var_os("NAP_BLESS").is_some() {
            std::fs::write(path, chart_template()).unwrap();
        }
        let written = std::fs::read_to_string(path).unwrap_or_default();
        let hint = "charts/nap/templates/rbac.yaml is stale; \
                    `NAP_BLESS=1 cargo test -p nap-controllers --lib permissions` refreshes it";
        assert!(written == chart_template(), "{hint}");
    }

    #[test]
    fn services_are_read_only_with_default_spread_constraints() {
        let text = |default_spread| json!(roles("nap", "karpenter", default_spread)).to_string();
        assert!(!text(false).contains("services") && text(true).contains("services"));
    }
}
