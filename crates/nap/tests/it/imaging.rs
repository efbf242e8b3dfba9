//! The container image that `make image` writes, judged by a tool for images.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::process::{Process, ports, text};

fn ok(command: &mut Command) -> Output {
    let output = command.output().expect("the program starts");
    let said = text(&output.stdout) + &text(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}");
    output
}

/// The last step of `make image`. The binary does not matter to it, as long as it is static, and
/// crane is.
#[test]
#[cfg_attr(no_tools, ignore = "crane is missing; `make controlplane` builds it")]
fn an_image_is_valid_and_can_be_pushed() {
    let tools = nap_controlplane_build::tools().expect("the test is ignored without it");
    let crane = tools.join("crane");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("image");
    std::fs::create_dir_all(&folder).expect("a folder");
    let (roots, archive) = (folder.join("roots.pem"), folder.join("nap.tar"));
    std::fs::write(&roots, "-----BEGIN CERTIFICATE-----\n").expect("ours");
    let mut write = Command::new(env!("CARGO"));
    write.args(["run", "--quiet", "--package", "xtask", "--", "image"]);
    write.args([crane.as_path(), roots.as_path(), Path::new("nap:test"), archive.as_path()]);
    ok(write.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")));
    ok(Command::new(&crane).arg("validate").arg("--tarball").arg(&archive));

    let address = format!("127.0.0.1:{}", ports()[0]);
    let mut serve = Command::new(&crane);
    serve.args(["registry", "serve", "--address", &address]);
    let registry = Process::start(serve.stdout(Stdio::null()).stderr(Stdio::null()));
    let name = format!("{address}/nap:test");
    let push =
        || Command::new(&crane).arg("push").arg(&archive).args([&name, "--insecure"]).output();
    let pushed = (0..50).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(200));
        push().is_ok_and(|output| output.status.success())
    });
    assert!(pushed, "{:?}", push());
    let config = ok(Command::new(&crane).args(["config", &name, "--insecure"]));
    let config: Value = serde_json::from_slice(&config.stdout).expect("JSON");
    assert_eq!(config["config"]["User"], "65532:65532");
    assert_eq!(config["config"]["Entrypoint"], serde_json::json!(["/nap"]));
    let files = Command::new(&crane).args(["export", "--insecure", &name, "-"]).output();
    let exported = files.expect("crane starts").stdout;
    let listed = String::from_utf8_lossy(&exported);
    for file in ["etc/ssl/certs/ca-certificates.crt", "nap"] {
        assert!(listed.contains(file), "{file}");
    }
    registry.kill();
}
