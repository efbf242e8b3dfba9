//! The queue of bins that may still take pods.
//!
//! Either the oldest bin comes first, or the one with the fewest pods. In the second case a bin
//! moves as it fills: its old entry stays behind and is removed once there are too many of those,
//! so that a [`Cursor`] stays valid between compactions.

use crate::ids::{BinId, IndexVec};

/// Bins in the order in which they are tried.
#[derive(Debug, Default)]
pub(crate) struct BinQueue {
    /// One bucket for each number of pods, or a single one if the oldest bin comes first.
    buckets: Vec<Bucket>,
    by_pods: bool,
    /// Bucket of each bin; `None` if it is not in the queue.
    bucket_of: IndexVec<BinId, Option<usize>>,
}

#[derive(Debug, Default)]
struct Bucket {
    bins: Vec<BinId>,
    /// Number of stale entries.
    stale: usize,
}

/// Position of a scan.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cursor {
    bucket: usize,
    position: usize,
}

impl BinQueue {
    pub(crate) fn new(by_pods: bool) -> Self {
        Self { by_pods, ..Self::default() }
    }

    /// Removes every bin.
    pub(crate) fn clear(&mut self) {
        *self = Self::new(self.by_pods);
    }

    /// Puts a bin with this many pods into its place.
    pub(crate) fn put(&mut self, bin: BinId, pods: usize) {
        let bucket = if self.by_pods { pods } else { 0 };
        if *self.bucket_of.grow_to(bin, None) == Some(bucket) {
            return;
        }
        self.close(bin);
        if self.buckets.len() <= bucket {
            self.buckets.resize_with(bucket + 1, Bucket::default);
        }
        self.buckets[bucket].bins.push(bin);
        self.bucket_of[bin] = Some(bucket);
    }

    /// Removes a bin: it takes no more pods.
    pub(crate) fn close(&mut self, bin: BinId) {
        if let Some(bucket) = self.bucket_of[bin].take() {
            self.buckets[bucket].stale += 1;
        }
    }

    /// Removes stale entries. No cursor stays valid.
    pub(crate) fn compact(&mut self) {
        for (number, bucket) in self.buckets.iter_mut().enumerate() {
            if bucket.stale * 2 > bucket.bins.len() {
                bucket.bins.retain(|bin| self.bucket_of[*bin] == Some(number));
                // A bin that returned to its bucket has two entries; the first one suffices.
                bucket.bins.dedup();
                bucket.stale = 0;
            }
        }
    }

    /// The next bin, if there is one. The cursor moves behind it.
    pub(crate) fn next(&self, cursor: &mut Cursor) -> Option<BinId> {
        while let Some(bucket) = self.buckets.get(cursor.bucket) {
            while let Some(bin) = bucket.bins.get(cursor.position) {
                cursor.position += 1;
                if self.bucket_of[*bin] == Some(cursor.bucket) {
                    return Some(*bin);
                }
            }
            *cursor = Cursor { bucket: cursor.bucket + 1, position: 0 };
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Id;

    fn all(queue: &BinQueue) -> Vec<usize> {
        let mut cursor = Cursor::default();
        std::iter::from_fn(|| queue.next(&mut cursor)).map(Id::index).collect()
    }

    #[test]
    fn bins_with_the_fewest_pods_come_first_and_a_bin_that_moves_is_met_again() {
        let [zero, one, two] = [0, 1, 2].map(BinId::new);
        let mut queue = BinQueue::new(true);
        queue.put(zero, 3);
        queue.put(one, 1);
        queue.put(two, 1);
        assert_eq!(all(&queue), [1, 2, 0]);
        let mut cursor = Cursor::default();
        assert_eq!(queue.next(&mut cursor), Some(one));
        queue.put(one, 2);
        assert_eq!([queue.next(&mut cursor), queue.next(&mut cursor)], [Some(two), Some(one)]);
        queue.close(two);
        queue.compact();
        assert_eq!(all(&queue), [1, 0]);
    }

    #[test]
    fn the_oldest_bin_comes_first_without_regard_to_pods() {
        let mut queue = BinQueue::new(false);
        queue.put(BinId::new(0), 5);
        queue.put(BinId::new(1), 1);
        queue.put(BinId::new(0), 9);
        assert_eq!(all(&queue), [0, 1]);
    }
}
