//! CPU profiles of `nap run`: on a switch, and readable by `go tool pprof`.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::process::{Cluster, Process, get, get_bytes, nap, ports, text};

const INFLATE: &str = include_str!("../../../../examples/inflate.yaml");

/// A `nap run` with these variables that is ready, and its metrics port.
fn start(cluster: &Cluster, variables: &[(&str, &str)]) -> (Process, u16) {
    let [metrics, health] = ports();
    let mut command = nap(&["run"]);
    command.envs(cluster.environment()).envs(variables.iter().copied()).stdout(Stdio::null());
    command.env("METRICS_PORT", metrics.to_string());
    command.env("HEALTH_PROBE_PORT", health.to_string());
    let nap = Process::start(&mut command);
    let ready = || get(health, "/readyz").is_some_and(|(code, _)| code == 200);
    cluster.eventually("it is ready", ready, |ready| *ready);
    (nap, metrics)
}

/// Fields of a message of protobuf: numbers and bytes by the number of the field.
#[derive(Default)]
struct Message {
    numbers: BTreeMap<u64, Vec<u64>>,
    bytes: BTreeMap<u64, Vec<Vec<u8>>>,
}

impl Message {
    fn parse(mut rest: &[u8]) -> Self {
        let mut message = Self::default();
        while !rest.is_empty() {
            let tag = varint(&mut rest);
            let value = varint(&mut rest);
            match tag & 7 {
                0 => message.numbers.entry(tag >> 3).or_default().push(value),
                2 => {
                    let (own, after) = rest.split_at(usize::try_from(value).expect("a length"));
                    message.bytes.entry(tag >> 3).or_default().push(own.to_vec());
                    rest = after;
                }
                other => panic!("wire type {other}"),
            }
        }
        message
    }

    fn messages(&self, field: u64) -> Vec<Self> {
        self.bytes.get(&field).into_iter().flatten().map(|bytes| Self::parse(bytes)).collect()
    }
}

fn varint(rest: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (first, after) = rest.split_first().expect("a byte");
        *rest = after;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return value;
        }
    }
    panic!("a number is too long");
}

#[test]
#[cfg_attr(no_kubectl, ignore = "there is no kubectl")]
fn a_cpu_profile_is_served_on_a_switch() {
    let cluster = Cluster::start_in_real_time(&["--no-controllers", "--vm-delays", "0.2"]);
    let path = "/debug/pprof/profile?seconds=8";
    let (off, port) = start(&cluster, &[]);
    assert_eq!(get(port, path).map(|(code, _)| code), Some(404));
    assert_eq!(get(port, "/debug/pprof/").map(|(code, _)| code), Some(404));
    off.stop();

    let (on, port) = start(&cluster, &[("ENABLE_PROFILING", "true")]);
    assert!(get(port, "/debug/pprof/").is_some_and(|(_, body)| body.contains("seconds=N")));
    for bad in ["0", "301", "-1", "soon", ""] {
        let (code, said) = get(port, &format!("/debug/pprof/profile?seconds={bad}")).expect("up");
        assert_eq!((code, said.contains("seconds: a whole number from 1 to 300")), (400, true));
    }
    let done = AtomicBool::new(false);
    let profile = std::thread::scope(|scope| {
        let profile = scope.spawn(|| {
            let profile = get_bytes(port, path);
            done.store(true, Ordering::Relaxed);
            profile
        });
        std::thread::sleep(std::time::Duration::from_secs(2));
        let second = get(port, path).expect("up");
        assert_eq!((second.0, second.1.contains("another profile")), (409, true));
        // Work to be sampled.
        cluster.apply(INFLATE);
        while !done.load(Ordering::Relaxed) {
            assert_eq!(get(port, "/metrics").map(|(code, _)| code), Some(200));
        }
        profile.join().expect("no panic").expect("an answer")
    });
    assert_eq!(profile.0, 200, "{}", text(&profile.1));
    on.stop();

    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(profile.1.as_slice()).read_to_end(&mut bytes).expect("gzip");
    let message = Message::parse(&bytes);
    let strings: Vec<String> = message.bytes[&6].iter().map(|bytes| text(bytes)).collect();
    assert_eq!(strings[0], "");
    let name = |index: u64| strings[usize::try_from(index).expect("an index")].as_str();
    let types: Vec<(&str, &str)> = message
        .messages(1)
        .iter()
        .map(|one| (name(one.numbers[&1][0]), name(one.numbers[&2][0])))
        .collect();
    assert_eq!(types, [("samples", "count"), ("cpu", "nanoseconds")]);
    assert_eq!(message.numbers[&12], [10_000_000], "the period is 10 ms");
    let seconds = message.numbers[&10][0] / 1_000_000_000;
    assert!((8..20).contains(&seconds), "{seconds} s");
    let samples: u64 = message.messages(2).iter().map(|sample| sample.numbers[&2][0]).sum();
    assert!(samples >= 10, "{samples} samples in eight seconds of work");
    let functions: Vec<String> =
        message.messages(5).iter().map(|one| name(one.numbers[&2][0]).to_owned()).collect();
    assert!(functions.iter().any(|name| name.contains("nap_controllers::")), "{functions:#?}");

    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("profile.pb.gz");
    std::fs::write(&file, &profile.1).expect("a folder to write to");
    // Go's tool reads it too, if Go is there.
    if let Ok(read) = Command::new("go").args(["tool", "pprof", "-top"]).arg(&file).output() {
        let said = format!("{}{}", text(&read.stdout), text(&read.stderr));
        assert!(read.status.success() && said.contains("Type: cpu"), "{said}");
    }
}
