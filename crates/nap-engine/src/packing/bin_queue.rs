//! The bins that may still take pods, in the order in which they are looked at.
//!
//! Either the oldest comes first, or the one with the fewest pods. In the second case a bin moves
//! as it fills: its old entry stays behind and is swept out once there are too many of those, so
//! that a [`Cursor`] into the shelf always stays valid.

/// Drafts in order.
#[derive(Debug, Default)]
pub(crate) struct BinQueue {
    /// By their number of pods; a single one if the oldest comes first.
    buckets: Vec<Bucket>,
    by_pods: bool,
    /// In which bucket each bin is; `None` if it takes no more.
    bucket_of: Vec<Option<usize>>,
}

#[derive(Debug, Default)]
struct Bucket {
    bins: Vec<usize>,
    /// How many of them have left.
    left: usize,
}

/// How far somebody has looked.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cursor {
    bucket: usize,
    position: usize,
}

impl BinQueue {
    pub(crate) fn new(by_pods: bool) -> Self {
        Self { by_pods, ..Self::default() }
    }

    /// Notes that a bin has so many pods now.
    pub(crate) fn put(&mut self, bin: usize, pods: usize) {
        let bucket = if self.by_pods { pods } else { 0 };
        if self.bucket_of.len() <= bin {
            self.bucket_of.resize(bin + 1, None);
        }
        if self.bucket_of[bin] == Some(bucket) {
            return;
        }
        self.close(bin);
        if self.buckets.len() <= bucket {
            self.buckets.resize_with(bucket + 1, Bucket::default);
        }
        self.buckets[bucket].bins.push(bin);
        self.bucket_of[bin] = Some(bucket);
    }

    /// Takes a bin away: it takes no more pods.
    pub(crate) fn close(&mut self, bin: usize) {
        if let Some(bucket) = self.bucket_of[bin].take() {
            self.buckets[bucket].left += 1;
        }
    }

    /// Sweeps out what has left. No cursor stays valid.
    pub(crate) fn tidy(&mut self) {
        for (number, bucket) in self.buckets.iter_mut().enumerate() {
            if bucket.left * 2 > bucket.bins.len() {
                bucket.bins.retain(|bin| self.bucket_of[*bin] == Some(number));
                // A bin that came back has two entries; the later one is enough to keep it.
                bucket.bins.dedup();
                bucket.left = 0;
            }
        }
    }

    /// The next bin, if there is one. The cursor then points behind it.
    pub(crate) fn next(&self, cursor: &mut Cursor) -> Option<usize> {
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

    fn all(shelf: &BinQueue) -> Vec<usize> {
        let mut cursor = Cursor::default();
        std::iter::from_fn(|| shelf.next(&mut cursor)).collect()
    }

    #[test]
    fn fewest_pods_first_and_a_draft_that_moves_is_met_again() {
        let mut shelf = BinQueue::new(true);
        shelf.put(0, 3);
        shelf.put(1, 1);
        shelf.put(2, 1);
        assert_eq!(all(&shelf), [1, 2, 0]);
        let mut cursor = Cursor::default();
        assert_eq!(shelf.next(&mut cursor), Some(1));
        shelf.put(1, 2);
        assert_eq!([shelf.next(&mut cursor), shelf.next(&mut cursor)], [Some(2), Some(1)]);
        shelf.close(2);
        shelf.tidy();
        assert_eq!(all(&shelf), [1, 0]);
    }

    #[test]
    fn the_oldest_first() {
        let mut shelf = BinQueue::new(false);
        shelf.put(0, 5);
        shelf.put(1, 1);
        shelf.put(0, 9);
        assert_eq!(all(&shelf), [0, 1]);
    }
}
