//! The log of decisions in memory: bounded, and merged with what was stored before.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::record::{DecisionRecord, Document, Outcome, VERSION};

/// Upper limit on the records; the oldest are forgotten.
const MAX_RECORDS: usize = 200;
/// Upper limit on their text in bytes.
const MAX_BYTES: usize = 200 * 1024;

/// Records by id, which is their order in time.
#[derive(Debug, Default)]
pub struct DecisionLog {
    records: BTreeMap<i64, DecisionRecord>,
    /// Counts the changes.
    changes: u64,
}

impl DecisionLog {
    /// Adds a record. Returns its id.
    pub fn add(&mut self, mut record: DecisionRecord) -> i64 {
        let last = self.records.last_key_value().map_or(0, |(id, _)| *id);
        record.id = record.time.as_microsecond().max(last.saturating_add(1));
        let id = record.id;
        self.records.insert(id, record);
        while self.records.len() > MAX_RECORDS {
            self.records.pop_first();
        }
        self.changes += 1;
        id
    }

    /// Records the digest of the engine's input.
    pub fn set_input(&mut self, id: i64, input: String) {
        self.edit(id, |record| record.input = input);
    }

    /// Records that the launch at a position was created as a NodeClaim.
    pub fn created(&mut self, id: i64, position: usize, claim: &str) {
        self.edit(id, |record| {
            if let Some(node) = record.launched.get_mut(position) {
                claim.clone_into(&mut node.node_claim);
            }
        });
    }

    /// Records that a consolidation at this time was undone: pods of the NodePool that it moved
    /// needed a new node.
    pub fn undone(&mut self, pool: &str, at: Timestamp, now: Timestamp) {
        let is_it = |record: &&mut DecisionRecord| {
            record.time == at
                && record.outcome != Outcome::Undone
                && record.removed.iter().any(|one| one.node_pool == pool)
        };
        let mut found = 0;
        for record in self.records.values_mut().filter(is_it) {
            (record.outcome, record.settled) = (Outcome::Undone, Some(now));
            found += 1;
        }
        self.changes += found;
    }

    /// All records, from old to new.
    pub fn records(&self) -> impl Iterator<Item = &DecisionRecord> {
        self.records.values()
    }

    /// Records whose outcome is not known yet.
    pub fn pending(&self) -> impl Iterator<Item = &DecisionRecord> {
        self.records.values().filter(|record| record.outcome == Outcome::Pending)
    }

    /// Replaces a record by one with its outcome.
    pub fn settle(&mut self, settled: DecisionRecord) {
        self.edit(settled.id, |record| *record = settled);
    }

    /// Number of changes so far.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Adds records that were stored, by this process or by the leader before. An outcome that is
    /// known wins.
    pub fn merge(&mut self, stored: Vec<DecisionRecord>) {
        for record in stored {
            let known = self.records.get(&record.id);
            if known.is_none_or(|known| known.outcome == Outcome::Pending) {
                self.records.insert(record.id, record);
            }
        }
        while self.records.len() > MAX_RECORDS {
            self.records.pop_first();
        }
    }

    /// The document to store: the newest records that fit.
    pub fn to_text(&self) -> String {
        let mut left = MAX_BYTES - 100;
        let mut records = Vec::new();
        for record in self.records.values().rev() {
            let length = serde_json::to_string(record).map_or(0, |text| text.len() + 1);
            if length > left {
                break;
            }
            left -= length;
            records.push(record.clone());
        }
        records.reverse();
        let document = Document { version: VERSION, records };
        serde_json::to_string(&document).expect("a record is plain data")
    }

    fn edit(&mut self, id: i64, change: impl FnOnce(&mut DecisionRecord)) {
        if let Some(record) = self.records.get_mut(&id) {
            change(record);
            self.changes += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use nap_engine::{Plan, PriceEstimates};

    use super::*;
    use crate::decisions::{Kind, RecordedNode};
    use crate::testing::at;

    fn record(seconds: i64) -> DecisionRecord {
        DecisionRecord::new(
            Kind::Provisioning,
            "Pending",
            &Plan::default(),
            &[],
            PriceEstimates::None,
            at(seconds),
        )
    }

    fn stored(log: &DecisionLog) -> Vec<DecisionRecord> {
        Document::parse(&log.to_text()).unwrap().records
    }

    #[test]
    fn the_newest_records_are_kept_within_number_and_size() {
        let mut log = DecisionLog::default();
        for seconds in 0..300 {
            log.add(record(seconds));
        }
        let times: Vec<Timestamp> = stored(&log).iter().map(|one| one.time).collect();
        assert_eq!((times.len(), times[0], times[199]), (200, at(100), at(299)));
        for seconds in 300..400 {
            let mut large = record(seconds);
            large.launched = vec![RecordedNode::default(); 100];
            log.add(large);
        }
        let text = log.to_text();
        assert!(text.len() <= MAX_BYTES && text.len() > MAX_BYTES / 2, "{}", text.len());
        assert_eq!(stored(&log).last().unwrap().time, at(399));
    }

    #[test]
    fn records_of_the_same_time_are_kept_apart() {
        let mut log = DecisionLog::default();
        assert!(log.add(record(1)) < log.add(record(1)));
        assert_eq!(stored(&log).len(), 2);
    }

    #[test]
    fn stored_records_are_merged_and_a_known_outcome_wins() {
        let mut before = DecisionLog::default();
        let old = before.add(record(1));
        let mut log = DecisionLog::default();
        log.merge(stored(&before));
        log.add(record(2));
        let mut settled = stored(&log)[0].clone();
        settled.outcome = Outcome::Realised;
        log.settle(settled);
        log.merge(stored(&before));
        let all = stored(&log);
        assert_eq!((all.len(), all[0].id, all[0].outcome), (2, old, Outcome::Realised));
    }

    #[test]
    fn a_consolidation_of_another_time_or_pool_is_not_undone() {
        let mut log = DecisionLog::default();
        for seconds in [1, 2] {
            let node = RecordedNode { node_pool: "p".to_owned(), ..RecordedNode::default() };
            log.add(record(seconds).removing(vec![node], 1, None, ""));
        }
        log.undone("q", at(1), at(9));
        log.undone("p", at(1), at(9));
        let outcomes: Vec<Outcome> = stored(&log).iter().map(|one| one.outcome).collect();
        assert_eq!(outcomes, [Outcome::Undone, Outcome::Pending]);
    }
}
