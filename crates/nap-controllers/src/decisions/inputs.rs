//! Inputs of the last decisions about underutilized nodes, as the files that `nap replay` reads.
//!
//! Each is in a ConfigMap of its own: together they would be larger than Kubernetes allows. There
//! is a fixed number of them, used in turn, so that nap's permissions can name them. Pods that wait
//! are not kept: their plans are made again and again, and the one that counted is on NodeClaims.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Write};

use flate2::Compression;
use flate2::write::GzEncoder;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use nap_engine::{Consolidation, ConsolidationOptions, Fleet};
use serde::Serialize;
use serde_json::json;

use super::DecisionRecord;
use crate::context::is_not_found;

/// Names of the ConfigMaps.
pub const NAMES: [&str; 8] = [
    "nap-decision-0",
    "nap-decision-1",
    "nap-decision-2",
    "nap-decision-3",
    "nap-decision-4",
    "nap-decision-5",
    "nap-decision-6",
    "nap-decision-7",
];
/// Key of the file, in `binaryData`.
pub const FILE_KEY: &str = "decision.json.gz";
/// Key of the digest of the input, in `data`.
pub const DIGEST_KEY: &str = "input";
/// Word in a record whose input is too large to be kept.
pub const TOO_LARGE: &str = "TooLarge";
/// `kind` of a file.
pub const FILE_KIND: &str = "nap plan disruption";
/// `version` of a file.
pub const FILE_VERSION: u32 = 1;
/// Upper limit on a file in bytes: with base64 it stays below the megabyte of a ConfigMap.
const MAX_BYTES: usize = 700 * 1024;

#[derive(Serialize)]
struct File<'f> {
    kind: &'static str,
    version: u32,
    region: &'static str,
    fleet: &'f Fleet,
    options: &'f ConsolidationOptions,
    decision: &'f Consolidation,
}

/// The file of a decision; `None` if it is too large.
pub fn pack(
    fleet: &Fleet,
    options: &ConsolidationOptions,
    decision: &Consolidation,
) -> Option<Vec<u8>> {
    let (kind, version) = (FILE_KIND, FILE_VERSION);
    // The region is in the zones of the catalogues.
    let file = File { kind, version, region: "", fleet, options, decision };
    let mut packed = GzEncoder::new(Bounded(Vec::new()), Compression::fast());
    serde_json::to_writer(&mut packed, &file).ok()?;
    packed.finish().ok().map(|bounded| bounded.0)
}

/// Bytes that end with an error where they become too many.
struct Bounded(Vec<u8>);

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > MAX_BYTES {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What a decision was made from.
#[derive(Clone, Debug, Default)]
pub struct Input {
    /// Its digest.
    pub digest: String,
    /// Its file; `None` if it is not kept, the inner one if it is too large.
    pub file: Option<Option<Vec<u8>>>,
}

/// Files that are not written yet, and where the next goes.
#[derive(Debug, Default)]
pub struct Inputs {
    next: usize,
    /// At most one for each ConfigMap.
    waiting: VecDeque<Waiting>,
}

/// A file that is to be written.
#[derive(Clone, Debug)]
pub struct Waiting {
    name: &'static str,
    digest: String,
    file: Vec<u8>,
}

impl Inputs {
    /// Lets a file be written. Returns where it will be, for the record; empty if it is not kept.
    pub fn keep(&mut self, input: &Input) -> String {
        let Some(file) = &input.file else { return String::new() };
        let Some(file) = file else { return TOO_LARGE.to_owned() };
        let name = NAMES[self.next % NAMES.len()];
        self.next = (self.next + 1) % NAMES.len();
        self.waiting.retain(|one| one.name != name);
        let (digest, file) = (input.digest.clone(), file.clone());
        self.waiting.push_back(Waiting { name, digest, file });
        name.to_owned()
    }

    /// Goes on after the ConfigMap that was used last before a restart.
    pub fn recall<'r>(&mut self, records: impl Iterator<Item = &'r DecisionRecord>) {
        let place = |record: &DecisionRecord| NAMES.iter().position(|one| *one == record.replay);
        if let Some(last) = records.filter_map(place).last() {
            self.next = (last + 1) % NAMES.len();
        }
    }

    /// The file that has waited longest.
    pub fn first(&self) -> Option<Waiting> {
        self.waiting.front().cloned()
    }

    /// Takes in that a file was written.
    pub fn written(&mut self, written: &Waiting) {
        self.waiting.retain(|one| one.digest != written.digest || one.name != written.name);
    }
}

/// Writes a file in place of what its ConfigMap had before.
pub async fn write(api: &Api<ConfigMap>, waiting: &Waiting) -> Result<(), kube::Error> {
    let Waiting { name, digest, file } = waiting;
    let data = BTreeMap::from([(DIGEST_KEY.to_owned(), digest.clone())]);
    let binary = BTreeMap::from([(FILE_KEY.to_owned(), ByteString(file.clone()))]);
    let patch = Patch::Merge(json!({ "data": data, "binaryData": binary }));
    match api.patch(name, &PatchParams::default(), &patch).await {
        Err(error) if is_not_found(&error) => {
            let object = ConfigMap {
                metadata: ObjectMeta { name: Some((*name).to_owned()), ..ObjectMeta::default() },
                data: Some(data),
                binary_data: Some(binary),
                ..ConfigMap::default()
            };
            api.create(&PostParams::default(), &object).await.map(drop)
        }
        done => done.map(drop),
    }
}

/// The file of a decision in one of the ConfigMaps; `None` if another decision has taken its place.
pub fn file_of(map: ConfigMap, digest: &str) -> Option<Vec<u8>> {
    let is_it = map.data.is_some_and(|data| data.get(DIGEST_KEY).is_some_and(|one| one == digest));
    map.binary_data.filter(|_| is_it)?.remove(FILE_KEY).map(|file| file.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decisions::Kind;
    use crate::testing::at;
    use nap_engine::{Plan, PriceEstimates};

    fn input(digest: &str) -> Input {
        Input { digest: digest.to_owned(), file: Some(Some(vec![1])) }
    }

    #[test]
    fn the_config_maps_are_used_in_turn_and_after_a_restart_too() {
        let mut inputs = Inputs::default();
        let names: Vec<String> =
            (0..9).map(|number| inputs.keep(&input(&number.to_string()))).collect();
        assert_eq!(names[..8], NAMES);
        assert_eq!(names[8], NAMES[0]);
        assert_eq!(inputs.waiting.len(), NAMES.len(), "the oldest was not written and is dropped");
        let record = |replay: &str| {
            let plan = Plan::default();
            let (kind, none) = (Kind::Disruption, PriceEstimates::None);
            let record = DecisionRecord::new(kind, "x", &plan, &[], none, at(0));
            DecisionRecord { replay: replay.to_owned(), ..record }
        };
        let records = [record(NAMES[5]), record(TOO_LARGE), record("")];
        let mut after = Inputs::default();
        after.recall(records.iter());
        assert_eq!(after.keep(&input("x")), NAMES[6]);
    }

    #[test]
    fn an_input_that_is_too_large_is_not_kept_and_the_record_says_so() {
        // Text that does not compress.
        let mut state = 1_u64;
        let mut letter = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            char::from(b'!' + u8::try_from((state >> 33) % 90).unwrap())
        };
        let mut fleet = Fleet::default();
        let options = ConsolidationOptions::default();
        assert!(pack(&fleet, &options, &Consolidation::default()).is_some());
        let name: String = (0..2 * MAX_BYTES).map(|_| letter()).collect();
        fleet.pools.insert(name, nap_engine::PoolRules::default());
        let file = pack(&fleet, &options, &Consolidation::default());
        assert_eq!(file, None);
        let mut inputs = Inputs::default();
        assert_eq!(inputs.keep(&Input { digest: "x".to_owned(), file: Some(file) }), TOO_LARGE);
        assert!(inputs.first().is_none());
        assert_eq!(inputs.keep(&Input::default()), "");
    }
}
