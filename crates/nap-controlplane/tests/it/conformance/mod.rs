//! One suite, two servers: the same requests and kubectl commands on the embedded API server and on
//! a real one. A difference is a bug of ours, or a row of `docs/conformance.md`.
//!
//! `NAP_BLESS=1` writes the rows that the run finds.

mod clients;
mod commands;
mod compare;
mod requests;
mod watches;
mod wrong;

use std::path::PathBuf;

use nap_controlplane::{Parts, Plane};
use serde_json::json;

use crate::support::{Cluster, kubectl};
use commands::{ANSWER, COMMANDS};
use compare::{JSON, differences, forgive, line_differences, normalised_text, send};
use requests::cases;

const BEGIN: &str = "<!-- differences: begin -->\n";
const END: &str = "<!-- differences: end -->\n";
const NAMESPACE: &str = "conformance";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[cfg_attr(no_control_plane, ignore = "there is no control plane; `make controlplane` builds it")]
async fn both_servers_answer_alike_except_as_documented() {
    let plane = Plane::start(Parts::Scheduler).await.unwrap();
    let real = plane.client().await.unwrap();
    let embedded = Cluster::embedded().await;
    let mut rows =
        vec!["| request | field | embedded | real |".to_owned(), "|---|---|---|---|".to_owned()];
    for client in [&embedded.client, &real] {
        let namespace =
            json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": NAMESPACE } });
        send(client, "", &("POST", "api/v1/namespaces", JSON, namespace)).await;
    }
    nap_controllers::install::install(&real, |_, _, _| {}).await.unwrap();
    let mut compared = 0;
    let (watched, found) = watches::compare(&embedded.client, &real).await;
    compared += watched;
    rows.extend(found);
    let (asked, found) = clients::compare(&embedded.client, &real).await;
    compared += asked;
    rows.extend(found);
    for (name, requests) in cases() {
        for (number, request) in requests.iter().enumerate() {
            let mut ours = send(&embedded.client, NAMESPACE, request).await;
            let mut theirs = send(&real, NAMESPACE, request).await;
            compared += 1;
            for (_, body) in [&mut ours, &mut theirs] {
                forgive(body, name == "server-side apply");
            }
            let of = format!("{name}: {} {} ({})", request.0, request.1, number + 1);
            rows.extend(differences(&of, &ours, &theirs));
        }
    }
    let (ours, theirs) = (embedded.kubeconfig(), plane.kubeconfig());
    let commands = COMMANDS
        .iter()
        .flat_map(|(manifest, commands)| commands.iter().map(move |command| (*manifest, *command)));
    // The last thing that was read from each server.
    let mut read = [String::new(), String::new()];
    for (manifest, command) in commands {
        let words =
            format!("{command} -n {NAMESPACE}").replace(" -- ", &format!(" -n {NAMESPACE} -- "));
        let words = if command.contains(" -- ") {
            words.trim_end_matches(&format!(" -n {NAMESPACE}")).to_owned()
        } else {
            words
        };
        let (mut answers, mut codes) = (Vec::new(), Vec::new());
        for (kubeconfig, read) in [ours, theirs.as_path()].into_iter().zip(&mut read) {
            let manifest = if manifest == ANSWER { read.as_str() } else { manifest };
            let output = kubectl(kubeconfig, &words, manifest).await;
            if command.starts_with("get ") {
                *read = String::from_utf8_lossy(&output.stdout).into_owned();
            }
            let text = String::from_utf8_lossy(&output.stdout).into_owned()
                + &String::from_utf8_lossy(&output.stderr);
            codes.push(output.status.success());
            answers.push(normalised_text(&text));
        }
        compared += 1;
        if codes[0] != codes[1] || answers[0] != answers[1] {
            rows.extend(line_differences(
                &format!("`kubectl {command}`"),
                &answers[0],
                &answers[1],
            ));
        }
    }
    // Fewer would mean that the cases are not run.
    assert!(compared > 270, "{compared}");
    let found = rows.join("\n") + "\n";
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/conformance.md");
    let document = std::fs::read_to_string(&path).unwrap();
    let start = document.find(BEGIN).expect("the begin mark") + BEGIN.len();
    let end = document.find(END).expect("the end mark");
    if std::env::var_os("NAP_BLESS").is_some() {
        let text = format!("{}{found}{}", &document[..start], &document[end..]);
        std::fs::write(&path, text).unwrap();
    } else {
        assert_eq!(found, &document[start..end], "NAP_BLESS=1 writes docs/conformance.md anew");
    }
}
