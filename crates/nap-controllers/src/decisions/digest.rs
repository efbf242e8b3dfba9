//! Digests of the engine's input, by which equal inputs are recognised.

use std::hash::Hasher;
use std::io::Write;
use std::sync::{Arc, Weak};

use nap_engine::{Catalogue, Fleet, Snapshot};
use serde::Serialize;

/// Computes digests. Those of catalogues, which are large and rarely change, are kept.
#[derive(Default)]
pub struct Digests {
    catalogues: Vec<(Weak<Catalogue>, u64)>,
}

impl Digests {
    /// Digest of the input of a plan: 16 hexadecimal digits.
    pub fn snapshot(&mut self, snapshot: &Snapshot) -> String {
        let mut writer = HashWriter::default();
        self.write_snapshot(&mut writer, snapshot);
        writer.text()
    }

    /// Digest of the input of a disruption.
    pub fn fleet(&mut self, fleet: &Fleet) -> String {
        let Fleet { snapshot, templates, candidates, pools, workloads } = fleet;
        let mut writer = HashWriter::default();
        self.write_snapshot(&mut writer, snapshot);
        writer.add(&(templates, candidates, pools, workloads));
        writer.text()
    }

    fn write_snapshot(&mut self, writer: &mut HashWriter, snapshot: &Snapshot) {
        let Snapshot { pods, nodes, pools, daemons, catalogues, reservations } = snapshot;
        writer.add(&(pods, nodes, pools, daemons, reservations));
        for (name, catalogue) in catalogues {
            writer.add(&(name, self.catalogue(catalogue)));
        }
    }

    fn catalogue(&mut self, catalogue: &Arc<Catalogue>) -> u64 {
        self.catalogues.retain(|(known, _)| known.strong_count() > 0);
        let is_same =
            |known: &Weak<Catalogue>| std::ptr::eq(known.as_ptr(), Arc::as_ptr(catalogue));
        if let Some((_, digest)) = self.catalogues.iter().find(|(known, _)| is_same(known)) {
            return *digest;
        }
        let mut writer = HashWriter::default();
        writer.add(catalogue.as_ref());
        let digest = writer.0.finish();
        self.catalogues.push((Arc::downgrade(catalogue), digest));
        digest
    }
}

/// Hashes what is written.
#[derive(Default)]
struct HashWriter(fnv::FnvHasher);

impl HashWriter {
    fn add(&mut self, value: &impl Serialize) {
        let written = serde_json::to_writer(&mut *self, value);
        debug_assert!(written.is_ok(), "the engine's input is plain data");
    }

    fn text(&self) -> String {
        format!("{:016x}", self.0.finish())
    }
}

impl Write for HashWriter {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.write(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use nap_engine::{Pod, PodKey};

    use super::*;

    #[test]
    fn equal_inputs_have_equal_digests_and_different_ones_do_not() {
        let pod = Pod { key: PodKey::new("shop", "web"), ..Pod::default() };
        let with = |pods: Vec<Pod>, catalogue: Catalogue| Snapshot {
            pods,
            catalogues: [("p".to_owned(), Arc::new(catalogue))].into(),
            ..Snapshot::default()
        };
        let (mut a, mut b) = (Digests::default(), Digests::default());
        let first = a.snapshot(&with(vec![pod.clone()], Catalogue::default()));
        assert_eq!(first, b.snapshot(&with(vec![pod.clone()], Catalogue::default())));
        assert_ne!(first, b.snapshot(&with(Vec::new(), Catalogue::default())));
        let size = serde_json::from_value(serde_json::json!([{
            "name": "D4", "requirements": {}, "capacity": {}, "allocatable": {}, "offerings": [],
        }]));
        assert_ne!(first, b.snapshot(&with(vec![pod], size.unwrap())), "another catalogue");
    }
}
