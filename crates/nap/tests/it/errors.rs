//! Errors of the command line: one line and a hint; help and version.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::Arc;

use crate::process::{nap, output, text};

pub(crate) fn refused(arguments: &[&str]) -> String {
    refused_by(&mut nap(arguments))
}

fn refused_by(command: &mut std::process::Command) -> String {
    let output = command.output().unwrap();
    assert!(!output.status.success(), "{command:?} succeeded");
    let error = text(&output.stderr);
    assert!(error.starts_with("error: "), "{error}");
    assert!(error.contains("\nhint: "), "{error}");
    assert_eq!(error.trim_end().lines().count(), 2, "{error}");
    error
}

#[test]
fn unknown_region_suggests_similar_names() {
    for command in ["demo", "try", "sim", "bench"] {
        let error = refused(&[command, "--region", "eastsu"]);
        assert!(error.contains("`eastsu`") && error.contains("eastus"), "{error}");
    }
}

#[test]
fn port_in_use_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let error = refused(&["try", "--listen", &address]);
    assert!(error.contains(&address) && error.contains("--listen"), "{error}");
}

#[test]
fn try_refuses_addresses_other_than_loopback() {
    let error = refused(&["try", "--listen", "0.0.0.0:0"]);
    assert!(error.contains("loopback"), "{error}");
}

#[test]
fn speed_needs_the_embedded_control_plane() {
    let error = refused(&["try", "--control-plane", "real", "--speed", "5"]);
    assert!(error.contains("--speed") && error.contains("--vm-delays"), "{error}");
}

#[test]
fn missing_control_plane_names_the_command_that_builds_it() {
    let mut command = nap(&["try", "--control-plane", "real"]);
    let empty = std::env::temp_dir();
    let output = command.env("XDG_CACHE_HOME", empty).env_remove("KUBEBUILDER_ASSETS").output();
    let error = text(&output.unwrap().stderr);
    assert!(error.contains("no control plane") && error.contains("make controlplane"), "{error}");
}

#[test]
fn missing_kubeconfig_is_named() {
    for command in [&["run"][..], &["crds", "install"], &["try"], &["windows"]] {
        let error = refused(&[command, &["--kubeconfig", "does/not/exist"]].concat());
        assert!(error.contains("no cluster to run on"), "{error}");
    }
}

#[test]
fn help_lists_every_command_with_a_description() {
    let help = text(&output(&["--help"]).stdout);
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let section: Vec<&str> = lines.take_while(|line| !line.is_empty()).collect();
    // A wrapped description is indented further than the names of commands.
    let commands = section.iter().filter(|line| !line.starts_with("   "));
    let described: Vec<(&str, &str)> =
        commands.filter_map(|line| line.trim().split_once("  ")).collect();
    let names: Vec<&str> = described.iter().map(|(name, _)| *name).collect();
    let expected = [
        "demo",
        "try",
        "run",
        "sim",
        "bench",
        "plan",
        "explain",
        "what-if",
        "replay",
        "decisions",
        "lint",
        "windows",
        "azure",
        "crds",
        "disable",
        "rbac",
        "completions",
        "man",
        "version",
        "help",
    ];
    assert_eq!(names, expected, "{help}");
    assert!(described.iter().all(|(_, about)| about.trim().len() > 10), "{help}");
}

#[test]
fn version_is_that_of_the_package_with_commit_and_day() {
    let printed = text(&nap(&["version"]).output().unwrap().stdout);
    assert!(printed.starts_with(&format!("nap {} (", env!("CARGO_PKG_VERSION"))), "{printed}");
    assert!(printed.contains(", ") && printed.ends_with(")\n"), "{printed}");
    assert_eq!(printed, text(&nap(&["--version"]).output().unwrap().stdout));
}

#[test]
fn completions_and_man_pages_are_made() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let script = text(&output(&["completions", shell]).stdout);
        assert!(script.contains("what-if"), "{shell}: {script}");
    }
    let folder = std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("man");
    let made = output(&["man", &folder.display().to_string()]);
    assert!(made.status.success(), "{}", text(&made.stderr));
    let page = std::fs::read_to_string(folder.join("nap-plan.1")).unwrap();
    assert!(page.contains("exit\\-code"), "{page}");
    let error = refused(&["man", "/dev/null/folder"]);
    assert!(error.contains("/dev/null/folder"), "{error}");
}

/// Runs a command whose output is closed before it writes.
fn closed(arguments: &[&str]) -> std::process::Output {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    nap(arguments).stdout(writer).output().unwrap()
}

#[test]
fn output_that_nobody_reads_ends_every_command_quietly() {
    let shop = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/shop.yaml");
    let windows = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/windows.yaml");
    let folder = std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("closed");
    std::fs::create_dir_all(&folder).unwrap();
    let saved = folder.join("plan.json").display().to_string();
    assert!(output(&["plan", "-f", shop, "--save", &saved]).status.success());
    let empty = kubeconfig("closed-empty", &serving(EMPTY.to_owned()));
    let commands: [&[&str]; 16] = [
        &["bench", "gen", "plain", "--pods", "10"],
        &["version"],
        &["crds"],
        &["plan", "-f", shop],
        &["explain", "pod", "shop/web", "-f", shop],
        &["lint", "-f", shop],
        &["sim", "--hours", "1"],
        &["demo", "--speed", "1000"],
        &["completions", "bash"],
        &["azure", "skus"],
        &["bench", "--help"],
        &["replay", &saved],
        &["what-if", "-f", windows, "--state", windows],
        &["rbac"],
        &["decisions", "--kubeconfig", &empty],
        &["windows", "-f", windows],
    ];
    for command in commands {
        let ended = closed(command);
        let error = text(&ended.stderr);
        assert_eq!(ended.status.code(), Some(0), "{command:?}: {error}");
        assert!(!error.contains("panicked"), "{command:?}: {error}");
    }
    let full = || std::fs::File::options().write(true).open("/dev/full").unwrap();
    for command in [
        &["version"][..],
        &["bench", "gen", "plain", "--pods", "10"],
        &["crds"],
        &["plan", "-f", shop],
        &["lint", "-f", shop],
        &["replay", &saved],
        &["what-if", "-f", windows, "--state", windows],
        &["rbac"],
        &["decisions", "--kubeconfig", &empty],
        &["windows", "-f", windows],
    ] {
        let ended = nap(command).stdout(full()).output().unwrap();
        let error = text(&ended.stderr);
        assert_eq!(ended.status.code(), Some(1), "{command:?}: {error}");
        assert!(error.contains("error: standard output cannot be written"), "{error}");
    }
}

/// A kubeconfig of one server, without credentials.
fn kubeconfig(test: &str, server: &str) -> String {
    let folder = std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("kubeconfigs");
    std::fs::create_dir_all(&folder).unwrap();
    let content = format!(
        "apiVersion: v1\nkind: Config\nclusters: [{{ name: c, cluster: {{ server: \"{server}\" }} }}]\nusers: [{{ name: u, user: {{}} }}]\n\
         contexts: [{{ name: c, context: {{ cluster: c, user: u }} }}]\ncurrent-context: c\n"
    );
    let file = folder.join(test).display().to_string();
    std::fs::write(&file, content).unwrap();
    file
}

/// A version and an empty list, whichever is asked for.
const EMPTY: &str = r#"200 OK {
    "major": "1", "minor": "33", "gitVersion": "v1.33.0", "gitCommit": "", "gitTreeState": "",
    "buildDate": "", "goVersion": "", "compiler": "", "platform": "",
    "kind": "List", "apiVersion": "v1", "metadata": {}, "items": []
}"#;

/// URL of an API server that refuses every request.
fn refusing(status: &str, message: &str) -> String {
    let code: u16 = status.split(' ').next().unwrap().parse().unwrap();
    let body = serde_json::json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": "Any",
        "message": message,
    });
    serving(format!("{status} {body}"))
}

/// URL of an API server with one answer, its status and body, as long as the test runs.
fn serving(answer: String) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (mut stream, mut request, mut part) = (stream, Vec::new(), [0; 4096]);
            // A request without a body, or the first bytes of TLS.
            while !request.ends_with(b"\r\n\r\n") && request.first() != Some(&0x16) {
                match stream.read(&mut part) {
                    Ok(read) if read > 0 => request.extend_from_slice(&part[..read]),
                    _ => break,
                }
            }
            let (status, body) = answer.split_at(answer.find('{').unwrap());
            let (status, length) = (status.trim(), body.len());
            let _ = write!(
                stream,
                "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: \
                 {length}\r\nConnection: close\r\n\r\n{body}"
            );
        }
    });
    url
}

/// URL of a server with a self-signed certificate.
fn self_signed() -> String {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let key = rustls::pki_types::PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let provider = rustls::crypto::ring::default_provider();
    let config = rustls::ServerConfig::builder_with_provider(provider.into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key.into())
        .unwrap();
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut session = rustls::ServerConnection::new(Arc::clone(&config)).unwrap();
            // The client ends the handshake.
            let _ = session.complete_io(&mut stream);
        }
    });
    url
}

#[test]
fn a_cluster_that_refuses_is_named_with_what_was_asked() {
    let forbidden = "pods is forbidden: User \"ada\" cannot list resource \"pods\"";
    let (unknown, denied) =
        (refusing("401 Unauthorized", "Unauthorized"), refusing("403 Forbidden", forbidden));
    let secure = |url: &str| url.replace("http:", "https:");
    let (plain, strange) = (secure(&refusing("400 Bad Request", "")), self_signed());
    let who = "does not accept the credentials of the kubeconfig (401): get /version";
    let pods = "forbids to list pods (403): pods is forbidden: User \"ada\" cannot list";
    for (test, server, cause, hint) in [
        ("401", &unknown, who, "`az aks get-credentials`"),
        ("403", &denied, pods, "`kubectl auth can-i list pods -A`"),
        ("plain", &plain, "cannot be reached: TLS: the server does not speak it", "--context"),
        ("strange", &strange, "cannot be reached: TLS: invalid peer certificate", "--context"),
    ] {
        let file = kubeconfig(test, server);
        for command in [&["plan"][..], &["explain", "pod", "a"]] {
            // By default nothing is logged beside the error.
            let mut command = nap(&[command, &["--kubeconfig", &file]].concat());
            let error = refused_by(command.env_remove("NAP_LOG"));
            assert!(error.contains(&format!("error: {server} {cause}")), "{command:?}: {error}");
            let (_, said) = error.split_once("\nhint: ").unwrap();
            assert!(said.contains(hint), "{command:?}: {error}");
        }
    }
    let file = kubeconfig("403-others", &denied);
    for (command, what) in [
        (&["run"][..], "get customresourcedefinitions"),
        (&["try"], "list nodes"),
        (&["try", "--force"], "get customresourcedefinitions"),
        (&["crds", "install"], "get customresourcedefinitions"),
        (&["disable"], "list nodepools"),
        (&["disable", "--status"], "list nodes"),
        (&["windows"], "list nodepools"),
    ] {
        let mut command = nap(&[command, &["--kubeconfig", &file]].concat());
        // Those of `nap run` are others', if a process listens on them.
        command.env("METRICS_PORT", "0").env("HEALTH_PROBE_PORT", "0");
        let error = refused_by(&mut command);
        let line = format!("error: {denied} forbids to {what} (403): ");
        assert!(error.starts_with(&line), "{command:?}: {error}");
    }
}

#[test]
fn a_missing_variable_has_its_hint_on_a_line_of_its_own() {
    // The answer passes for every definition.
    let definition = EMPTY
        .replace("\"List\"", "\"CustomResourceDefinition\"")
        .replace("\"apiVersion\": \"v1\"", "\"apiVersion\": \"apiextensions.k8s.io/v1\"");
    let file = kubeconfig("variables", &serving(definition));
    let mut command = nap(&["run", "--kubeconfig", &file]);
    for name in ["ARM_SUBSCRIPTION_ID", "AZURE_SUBSCRIPTION_ID"] {
        command.env_remove(name);
    }
    let error = refused_by(&mut command);
    let expected = "error: environment variable `ARM_SUBSCRIPTION_ID` is not set\nhint: set it to \
                    the id of the cluster's subscription; `docs/running.md` lists every variable\n";
    assert_eq!(error, expected);
    let cluster = ["ARM_RESOURCE_GROUP", "CLUSTER_NAME", "LOCATION", "AZURE_NODE_RESOURCE_GROUP"];
    command.envs(cluster.map(|name| (name, "x"))).env("ARM_SUBSCRIPTION_ID", "s");
    let error = refused_by(command.env("AKS_MACHINES_POOL_NAME", "my-pool"));
    let line = "error: environment variable `AKS_MACHINES_POOL_NAME` has the value `my-pool`, which \
                is not at most 12 lower-case letters and digits, a letter first\nhint: ";
    assert!(error.starts_with(line), "{error}");
}

#[test]
fn a_cluster_that_cannot_be_reached_is_named_with_the_cause() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for (test, server, cause) in [
        ("refused", format!("https://{free}"), "connection refused"),
        ("host", "https://no-such-host.invalid:6443".to_owned(), "unknown host"),
    ] {
        let file = kubeconfig(test, &server);
        for command in [&["plan"][..], &["explain", "pod", "a"], &["crds", "install"], &["run"]] {
            let error = refused(&[command, &["--kubeconfig", &file]].concat());
            assert!(error.contains(&server) && error.contains(cause), "{command:?}: {error}");
            assert!(!error.contains('\u{1b}'), "{error}");
        }
    }
}

#[test]
fn logs_in_a_file_have_no_colours() {
    let shop = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/shop.yaml");
    let mut command = nap(&["plan", "-f", shop]);
    let logged = command.env("NAP_LOG", "trace").env_remove("NO_COLOR").output().unwrap();
    assert!(!text(&logged.stderr).contains('\u{1b}'));
}

#[test]
fn try_refuses_a_bad_fault_plan_with_file_line_and_field() {
    let file = std::env::temp_dir().join(format!("nap-faults-{}.yaml", std::process::id()));
    let path = file.to_str().unwrap();
    for (text, parts) in [
        ("faults:\n- stockOut: {zone: mars-1}\n", [":2: stockOut.zone: `mars-1`", "eastus-1"]),
        ("faults:\n- at: 1m\n  explode: {}\n", [":3: ", "explode"]),
    ] {
        std::fs::write(&file, text).unwrap();
        let error = refused(&["try", "--faults", path]);
        for part in parts {
            assert!(error.contains(part), "{error}");
        }
        assert!(error.contains("docs/faults.md"), "{error}");
    }
    std::fs::remove_file(&file).unwrap();
    let error = refused(&["try", "--faults", path]);
    assert!(error.contains("--faults") && error.contains("examples/faults.plan"), "{error}");
}
