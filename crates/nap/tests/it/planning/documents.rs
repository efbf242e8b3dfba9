//! The JSON document of `nap plan`, the README's example, and `nap replay`.

use std::path::PathBuf;

use serde_json::Value;

use super::{containers, folder, plan, pod, refusals, said, workload};
use crate::process::{nap, output, text, unpacked};

#[test]
fn document_matches_its_schema_and_its_totals() {
    let schema: Value =
        serde_json::from_str(include_str!("../../../../../docs/plan.schema.json")).unwrap();
    let yaml = format!(
        "{}{}",
        refusals(),
        workload("Deployment", "web", "replicas: 3").replace(
            "spec: { containers",
            "spec: { tolerations: [{ operator: Exists }], containers"
        )
    );
    let document = plan("schema", &yaml);
    let mut problems = Vec::new();
    validate("plan", &document, &schema, &schema, &mut problems);
    assert!(problems.is_empty(), "{problems:#?}");
    assert!(!document["launches"].as_array().unwrap().is_empty());
    let reasons: Vec<&Value> = document["unschedulable"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| &one["reasons"][0]["reason"])
        .collect();
    assert_eq!(reasons, ["requirements", "resources", "resources", "volume", "taint"]);

    let (first, second) = (
        said(&["plan", "-o", "json"], "stable", &yaml).0,
        said(&["plan", "-o", "json"], "stable", &yaml).0,
    );
    assert_eq!(first, second);
    let mut turned: Vec<&str> = yaml.split("---\n").collect();
    turned.reverse();
    let turned = turned.join("---\n");
    assert_eq!(
        first,
        said(&["plan", "-o", "json"], "stable", &turned).0,
        "the order of documents makes no difference"
    );
    let yaml_form = said(&["plan", "-o", "yaml"], "stable", &yaml).0;
    assert!(yaml_form.starts_with("version: 1\n"), "{yaml_form}");
}

/// Validates a value against the subset of JSON Schema that the schema uses.
fn validate(path: &str, value: &Value, schema: &Value, root: &Value, problems: &mut Vec<String>) {
    if let Some(reference) = schema.get("$ref").and_then(Value::as_str) {
        let target =
            root.pointer(reference.trim_start_matches('#')).expect("a reference leads somewhere");
        return validate(path, value, target, root, problems);
    }
    if let Some(choices) = schema.get("oneOf").and_then(Value::as_array) {
        let fitting = choices.iter().filter(|choice| {
            let mut found = Vec::new();
            validate(path, value, choice, root, &mut found);
            found.is_empty()
        });
        if fitting.count() != 1 {
            problems.push(format!("{path}: fits none, or more than one: {value}"));
        }
        return;
    }
    if schema.get("const").is_some_and(|only| only != value) {
        problems.push(format!("{path}: is {value}"));
    }
    if schema.get("enum").and_then(Value::as_array).is_some_and(|allowed| !allowed.contains(value))
    {
        problems.push(format!("{path}: {value} is not listed"));
    }
    let name = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let wrong = match schema.get("type") {
        Some(Value::String(kind)) => kind != name,
        Some(Value::Array(kinds)) => !kinds.iter().any(|kind| kind == name),
        _ => false,
    };
    if wrong {
        problems.push(format!("{path}: is a {name}"));
    }
    if let Some(map) = value.as_object() {
        let known = schema.get("properties").and_then(Value::as_object);
        for key in schema
            .get("required")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
        {
            if !map.contains_key(key) {
                problems.push(format!("{path}.{key}: is missing"));
            }
        }
        for (key, child) in map {
            match known.and_then(|known| known.get(key)) {
                Some(schema) => validate(&format!("{path}.{key}"), child, schema, root, problems),
                None => problems.push(format!("{path}.{key}: is not in the schema")),
            }
        }
    }
    for (index, item) in value.as_array().into_iter().flatten().enumerate() {
        if let Some(schema) = schema.get("items") {
            validate(&format!("{path}[{index}]"), item, schema, root, problems);
        }
    }
}

#[test]
fn replay_reproduces_the_saved_plan() {
    let yaml = format!(
        "{}{}",
        refusals(),
        pod("free", &format!("tolerations: [{{ operator: Exists }}], {}", containers("1")))
    );
    let stored = folder("replay", &[("empty", "")]).join("plan.json");
    let file = stored.display().to_string();
    let (planned, _) = said(&["plan", "-o", "json", "--save", &file], "replayed", &yaml);
    let again = output(&["replay", &file, "-o", "json"]);
    assert!(again.status.success());
    assert_eq!(text(&again.stdout), planned);
    assert!(text(&again.stderr).contains("identical"));
    assert!(text(&output(&["replay", &file]).stdout).ends_with("\nidentical to the stored plan\n"));

    let written = unpacked(&stored);
    let size = std::fs::metadata(&stored).unwrap().len();
    assert!(size * 4 < written.len() as u64, "it is compressed");
    // Files of earlier versions are plain.
    std::fs::write(&stored, &written).unwrap();
    assert!(output(&["replay", &file]).status.success());
    let price = |plan: &str| {
        serde_json::from_str::<Value>(plan).unwrap()["launches"][0]["priceUsdPerHour"].to_string()
    };
    let other = written.replacen(
        &format!("\"priceUsdPerHour\":{}", price(&planned)),
        "\"priceUsdPerHour\":99.5",
        1,
    );
    assert_ne!(other, written);
    std::fs::write(&stored, other).unwrap();
    let changed = output(&["replay", &file]);
    assert!(!changed.status.success());
    let error = text(&changed.stderr);
    assert!(
        error.contains("stored 99.5, now ") && error.contains("differs from the stored one"),
        "{error}"
    );

    for (content, expected) in [
        ("{", "is not JSON"),
        ("{}", "is not a stored plan"),
        ("{\"kind\": \"nap plan\", \"version\": 7}", "has version 7"),
    ] {
        std::fs::write(&stored, content).unwrap();
        let refused = output(&["replay", &file]);
        assert!(
            !refused.status.success() && text(&refused.stderr).contains(expected),
            "{}",
            text(&refused.stderr)
        );
    }
}

/// Runs the README's example and compares the output. `NAP_BLESS=1` updates the README.
#[test]
fn the_readme_shows_what_is_printed() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let readme = std::fs::read_to_string(root.join("README.md")).unwrap();
    let command = "nap plan -f examples/shop.yaml";
    let begin = format!("```console\n$ {command}\n");
    let start = readme.find(&begin).expect("the README shows the command") + begin.len();
    let end = start + readme[start..].find("```").unwrap();
    let arguments: Vec<&str> = command.split(' ').skip(1).collect();
    let output = nap(&arguments).current_dir(&root).output().unwrap();
    let printed = text(&output.stderr) + &text(&output.stdout);
    if std::env::var_os("NAP_BLESS").is_some() {
        let blessed = format!("{}{printed}{}", &readme[..start], &readme[end..]);
        std::fs::write(root.join("README.md"), blessed).unwrap();
    } else {
        assert_eq!(&readme[start..end], printed, "NAP_BLESS=1 writes it anew");
    }
}

#[test]
fn the_readme_tells_the_story_of_the_demo() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let readme = std::fs::read_to_string(root.join("README.md")).unwrap();
    let begin = "```console\n$ make demo\n";
    let start = readme.find(begin).expect("the README shows the command") + begin.len();
    let end = start + readme[start..].find("```").unwrap();
    let tell = || {
        let told = nap(&["demo", "--speed", "1000"]).output().unwrap();
        assert!(told.status.success(), "{}", text(&told.stderr));
        text(&told.stdout).replace("at 1000x speed", "at 20x speed")
    };
    let told = tell();
    assert_eq!(told, tell(), "the story is the same on every run");
    if std::env::var_os("NAP_BLESS").is_some() {
        let blessed = format!("{}{told}{}", &readme[..start], &readme[end..]);
        std::fs::write(root.join("README.md"), blessed).unwrap();
    } else {
        assert_eq!(&readme[start..end], told, "NAP_BLESS=1 writes it anew");
    }
}

/// Runs every command of the README that needs neither a cluster, a cloud nor minutes.
#[test]
fn commands_of_the_readme_run() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let readme = std::fs::read_to_string(root.join("README.md")).unwrap();
    // A command may be broken over two lines.
    let flat = readme.split_whitespace().collect::<Vec<_>>().join(" ");
    let in_backticks = flat.split('`').skip(1).step_by(2);
    let in_blocks = readme.lines().filter_map(|line| line.strip_prefix("$ "));
    let mut commands: Vec<&str> =
        in_backticks.chain(in_blocks).filter(|text| text.starts_with("nap ")).collect();
    commands.sort_unstable();
    commands.dedup();
    let needs_more = |command: &str| {
        let words: Vec<&str> = command.split(' ').collect();
        let needs_cluster = ["run", "try", "decisions", "what-if", "windows", "replay"];
        let placeholders = ["FILE", "NAME"];
        words.len() < 3
            || needs_cluster.contains(&words[1])
            || ["azure check", "azure smoke", "crds install", "plan disruption", "explain node"]
                .iter()
                .any(|start| command.starts_with(&format!("nap {start}")))
            || words.iter().any(|word| placeholders.contains(word))
    };
    let runnable: Vec<&str> =
        commands.iter().copied().filter(|command| !needs_more(command)).collect();
    assert!(runnable.len() >= 3, "{commands:?}");
    for command in runnable {
        let shorter = command.replace("--hours 24", "--hours 1");
        let arguments: Vec<&str> = shorter.split(' ').skip(1).collect();
        let ran = nap(&arguments).current_dir(&root).output().unwrap();
        assert!(ran.status.success(), "{command}: {}", text(&ran.stderr));
    }
}
