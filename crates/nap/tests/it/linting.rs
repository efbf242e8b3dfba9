//! `nap lint`: errors, warnings and notes without a cluster.

use std::path::PathBuf;

use crate::process::{output, text};

/// Lints a manifest; returns whether it passed, and the output.
fn lint(test: &str, yaml: &str, more: &[&str]) -> (bool, String) {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let file = folder.join(format!("lint-{test}.yaml"));
    std::fs::write(&file, yaml).unwrap();
    let file = file.display().to_string();
    let arguments: Vec<&str> =
        ["lint", "-f", &file].into_iter().chain(more.iter().copied()).collect();
    let output = output(&arguments);
    (output.status.success(), text(&output.stdout))
}

fn pool(name: &str, spec: &str, requirements: &str) -> String {
    format!(
        "apiVersion: karpenter.sh/v1\nkind: NodePool\nmetadata:\n  name: {name}\nspec:\n{spec}  template:\n    spec:\n      \
         nodeClassRef: {{ group: karpenter.azure.com, kind: AKSNodeClass, name: default }}\n      requirements: [{requirements}]\n"
    )
}

const D_FAMILY: &str = "{ key: karpenter.azure.com/sku-family, operator: In, values: [D] }";

#[test]
fn valid_nodepool_has_no_findings() {
    let (passed, said) = lint("good", &pool("good", "", D_FAMILY), &["--deny-warnings"]);
    assert!(passed, "{said}");
    assert_eq!(said, "0 refused, 0 likely mistakes, in 1 files\n");
}

#[test]
fn deprecated_fields_are_notes() {
    let yaml = pool(
        "old",
        "  disruption: { consolidationPolicy: WhenUnderutilized, expireAfter: Never }\n",
        D_FAMILY,
    )
    .replace("karpenter.sh/v1\n", "karpenter.sh/v1beta1\n");
    let (passed, said) = lint("old", &yaml, &["--deny-warnings"]);
    assert!(passed, "{said}");
    assert!(
        said.contains(
            ":1: NodePool old: apiVersion: `karpenter.sh/v1beta1` means `karpenter.sh/v1`"
        ),
        "{said}"
    );
    assert!(said.contains("`WhenUnderutilized` means `WhenEmptyOrUnderutilized`"), "{said}");
    assert!(said.contains("`Never` means `spec.template.spec.expireAfter: Never`"), "{said}");
}

#[test]
fn invalid_fields_are_errors_with_their_path() {
    let class = "apiVersion: karpenter.azure.com/v1beta1\nkind: AKSNodeClass\nmetadata:\n  name: default\nspec:\n";
    for (test, yaml, expected) in [
        (
            "policy",
            pool("a", "  disruption: { consolidationPolicy: A | B }\n", ""),
            "spec.disruption.consolidationPolicy: Unsupported",
        ),
        (
            "typo",
            pool("a", "  limit: { cpu: 1 }\n", ""),
            "spec.limit: unknown field; did you mean `limits`?",
        ),
        (
            "version",
            pool("a", "", "").replace("karpenter.sh/v1\n", "karpenter.sh/v2\n"),
            "is not served; write `karpenter.sh/v1`",
        ),
        (
            "reserved",
            pool("a", "", "{ key: karpenter.azure.com/mine, operator: Exists }"),
            "may not be required",
        ),
        (
            "subnet",
            format!(
                "{class}  vnetSubnetID: /subscriptions/<id>/resourceGroups/g/providers/Microsoft.Network/virtualNetworks/n/subnets/s\n"
            ),
            "still has a placeholder",
        ),
        (
            "period",
            format!("{class}  kubelet: {{ cpuCFSQuotaPeriod: 2s }}\n"),
            "spec.kubelet.cpuCFSQuotaPeriod: `2s` is not a duration from `1ms` to `1s`",
        ),
        (
            "schedule",
            pool(
                "a",
                "  disruption: { budgets: [{ nodes: \"1\", schedule: \"* * * * tue-mon\", duration: 1h }] }\n",
                "",
            ),
            "spec.disruption.budgets[0].schedule: `* * * * tue-mon` cannot be read as a schedule",
        ),
        ("limit", pool("a", "  limits: { cpu: -5 }\n", ""), "spec.limits[cpu]: `-5` is negative"),
        ("yaml", "a: [".to_owned(), "is not YAML"),
    ] {
        let (passed, said) = lint(test, &yaml, &[]);
        assert!(!passed, "{test}: {said}");
        assert!(said.starts_with("error: ") && said.contains(expected), "{test}: {said}");
    }
}

#[test]
fn suspicious_settings_are_warnings() {
    let heavy =
        format!("{}---\n{}", pool("light", "", D_FAMILY), pool("heavy", "  weight: 10\n", ""));
    let tainted = pool("a", "", D_FAMILY)
        .replace("    spec:\n", "    spec:\n      taints: [{ key: gpu, effect: NoSchedule }]\n");
    let workload = "---\napiVersion: v1\nkind: Pod\nmetadata: { name: p }\nspec: { containers: [{ name: c, image: i }] }\n";
    for (test, yaml, expected) in [
        (
            "never",
            pool("a", "  disruption: { budgets: [{ nodes: \"100%\" }] }\n", D_FAMILY),
            "limits nothing",
        ),
        (
            "always",
            pool("a", "  disruption: { budgets: [{ nodes: \"0\" }] }\n", D_FAMILY),
            "allows no node at any time",
        ),
        (
            "sku",
            pool("a", "", "{ key: karpenter.azure.com/sku-family, operator: In, values: [Q] }"),
            "no VM size of the region meets it",
        ),
        (
            "value",
            pool(
                "a",
                "",
                "{ key: node.kubernetes.io/instance-type, operator: In, values: [Standard_D2s_v5, Standard_D3s_v5] }",
            ),
            "`Standard_D3s_v5` is not offered in eastus: no such size is known",
        ),
        (
            "together",
            pool(
                "a",
                "",
                &format!(
                    "{D_FAMILY}, {{ key: node.kubernetes.io/instance-type, operator: In, values: [Standard_E2s_v5] }}"
                ),
            ),
            "all together",
        ),
        (
            "limits",
            pool("a", "  limits: { cpu: 1 }\n", D_FAMILY),
            "spec.limits.cpu: is below the smallest node",
        ),
        (
            "dear",
            pool("a", "", "{ key: kubernetes.io/arch, operator: In, values: [amd64] }"),
            "/h (`Standard_M",
        ),
        ("shadow", heavy, "no pod can reach this pool: `heavy`"),
        ("taint", format!("{tainted}{workload}"), "tolerates `gpu:NoSchedule`"),
    ] {
        let (passed, said) = lint(test, &yaml, &[]);
        assert!(passed, "{test}: {said}");
        assert!(said.starts_with("warning: ") && said.contains(expected), "{test}: {said}");
        assert!(!lint(test, &yaml, &["--deny-warnings"]).0, "{test}");
    }
}

#[test]
fn a_ceiling_answers_the_warning_of_an_extreme_price_and_must_be_a_price() {
    let any = pool("a", "", "{ key: kubernetes.io/arch, operator: In, values: [amd64] }");
    let with = |price: &str| {
        let annotation = format!("nap.karpenter.sh/max-price-per-node-hour: \"{price}\"");
        any.replace("  name: a\n", &format!("  name: a\n  annotations: {{ {annotation} }}\n"))
    };
    let (passed, said) = lint("ceiling", &with("2.50"), &["--deny-warnings"]);
    assert!(passed, "{said}");
    for wrong in ["cheap", "0", "-1", ""] {
        let (passed, said) = lint("ceiling-wrong", &with(wrong), &[]);
        let expected = format!("`{wrong}` is not a price in dollars per hour; write one such as");
        assert!(!passed && said.contains(&expected), "{wrong}: {said}");
        assert!(said.contains("metadata.annotations[nap.karpenter.sh/max-price"), "{said}");
    }
    let (passed, said) = lint(
        "limited",
        &any.replace(
            "spec:\n  template",
            "spec:\n  limits: { cpu: 64, memory: 512Gi }\n  template",
        ),
        &["--deny-warnings"],
    );
    assert!(passed, "{said}");
}

#[test]
fn folders_and_workloads_are_read_and_every_problem_of_an_object_is_found() {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("lint-folder");
    std::fs::create_dir_all(folder.join("deeper")).unwrap();
    let deployment =
        "apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: web\nspec:\n  replicas: three\n";
    std::fs::write(folder.join("deeper/web.yaml"), deployment).unwrap();
    let wrong = pool("a", "  limit: {}\n  weight: 500\n", "{ key: a, operator: Like }");
    std::fs::write(folder.join("pool.yml"), wrong).unwrap();
    std::fs::write(folder.join("broken.yaml"), "a: [").unwrap();
    let output = output(&["lint", "-f", &folder.display().to_string()]);
    let said = text(&output.stdout);
    assert!(!output.status.success(), "{said}");
    for expected in [
        "web.yaml:6: Deployment web: spec.replicas: Invalid value: \"three\"",
        "web.yaml:5: Deployment web: spec.selector: Required value",
        "pool.yml:6: NodePool a: spec.limit: unknown field",
        "pool.yml:7: NodePool a: spec.weight: Invalid value: 500",
        "pool.yml:11: NodePool a: spec.template.spec.requirements[0].operator: Unsupported",
        "broken.yaml:1: is not YAML",
    ] {
        assert!(said.contains(expected), "{expected}: {said}");
    }
}

#[test]
fn objects_of_other_clouds_and_old_versions_get_a_remedy() {
    for (test, version, kind, expected) in [
        ("aws", "karpenter.k8s.aws/v1", "EC2NodeClass", "write an `AKSNodeClass`"),
        ("provisioner", "karpenter.sh/v1alpha5", "Provisioner", "was replaced by `NodePool`"),
        ("cron", "batch/v1beta1", "CronJob", "`batch/v1beta1` is not served; write `batch/v1`"),
        ("old", "extensions/v1beta1", "Deployment", "is not served; write `apps/v1`"),
        ("ingress", "extensions/v1beta1", "Ingress", "write `networking.k8s.io/v1`"),
        ("kind", "apps/v1", "Deploymint", "there is no `Deploymint` in `apps/v1`"),
    ] {
        let yaml = format!("apiVersion: {version}\nkind: {kind}\nmetadata: {{ name: x }}\n");
        let (passed, said) = lint(&format!("foreign-{test}"), &yaml, &[]);
        assert!(!passed && said.contains(expected), "{said}");
    }
}

#[test]
fn findings_can_be_read_by_programs() {
    let yaml = pool("a", "  limit: {}\n", D_FAMILY);
    let (passed, said) = lint("json", &yaml, &["-o", "json"]);
    let document: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert!(!passed);
    let finding = &document["findings"][0];
    assert_eq!(
        (&finding["level"], &finding["line"], &finding["field"], &finding["object"]),
        (&"error".into(), &6.into(), &"spec.limit".into(), &"NodePool a".into())
    );
    let (_, said) = lint("sarif", &yaml, &["-o", "sarif"]);
    let document: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(document["version"], "2.1.0");
    let result = &document["runs"][0]["results"][0];
    assert_eq!((&result["ruleId"], &result["level"]), (&"refused".into(), &"error".into()));
    let place = &result["locations"][0]["physicalLocation"];
    assert_eq!(place["region"]["startLine"], 6);
    assert!(place["artifactLocation"]["uri"].as_str().unwrap().ends_with("lint-sarif.yaml"));
}

#[test]
fn an_unknown_field_hides_no_other_problem_and_a_region_must_exist() {
    let spec = "  limit: {}\n  disruption:\n    budgets: [{ nodes: \"1\", schedule: \"61 * * * *\", duration: 1h }]\n";
    let family = "{ key: karpenter.azure.com/sku-family, operator: In, values: [ZZ] }";
    let (accepted, said) = lint("unknown-and-more", &pool("a", spec, family), &[]);
    assert!(!accepted);
    for expected in ["spec.limit: unknown field", "61 * * * *", "no VM size of the region"] {
        assert!(said.contains(expected), "{expected}: {said}");
    }
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("lint-region.yaml");
    std::fs::write(&file, "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: a\n").unwrap();
    let error =
        crate::errors::refused(&["lint", "-f", &file.display().to_string(), "--region", "mars"]);
    assert!(error.contains("there is no region `mars`"), "{error}");
}
