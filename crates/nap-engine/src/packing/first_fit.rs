//! First-fit-decreasing: class by class onto the bins that can still grow, then onto new ones.

use crate::classes::PodCounts;
use crate::classes::dimensions::with_requests;
use crate::ids::{BinId, ClassId, EligibilityId, IndexVec};
use crate::packing::bin_queue::Cursor;
use crate::packing::bins::Fit;
use crate::packing::open_bin::NewBin;
use crate::packing::packer::Packer;
use crate::topology::counts::Allowance;
use crate::topology::domains::DomainAssignment;

/// Packs all pending pods in the order of their classes.
pub(super) fn pack(
    packer: &mut Packer<'_, '_>,
    pending: &mut PodCounts,
    smallest_ahead: &IndexVec<ClassId, Vec<i64>>,
) {
    for class in pending.ids() {
        if pending[class] > 0 {
            packer.bins.expect(&smallest_ahead[class]);
            packer.place(class, pending);
        }
    }
}

impl Packer<'_, '_> {
    /// Places the pods of a class; the next relaxation level gets those without a place.
    pub(super) fn place(&mut self, id: ClassId, pending: &mut PodCounts) {
        let class = &self.classes[id];
        let mut left = pending[id];
        if class.is_constrained() {
            left = self.place_constrained(id, left);
            if left > 0 && class.may_ignore_domains {
                self.ignores_domains = true;
                left = self.place_unconstrained(id, left);
                self.ignores_domains = false;
            }
        } else {
            if id > class.base {
                // The first level was tried on existing nodes before the packing began.
                left = self.fill_existing(id, left);
            }
            left = self.place_unconstrained(id, left);
        }
        pending[id] = left;
        if let Some(relaxed) = self.classes.relaxed(id) {
            pending[relaxed] += std::mem::take(&mut pending[id]);
        }
    }

    /// Places pods without regard to their own topology constraints and returns how many are left.
    fn place_unconstrained(&mut self, class: ClassId, count: usize) -> usize {
        let mut left = self.fill(class, count);
        while left > 0 {
            let opened = self.open_bins(class, left);
            if opened == 0 {
                break;
            }
            left -= opened;
        }
        left
    }

    /// Puts pods without constraints onto open bins and returns how many are left.
    pub(super) fn fill(&mut self, class: ClassId, mut count: usize) -> usize {
        // Pods that are counted go first where they violate no spread in any binding order.
        if self.classes[class].is_only_counted {
            count = self.fill_bins(class, count, true);
        }
        self.fill_bins(class, count, false)
    }

    fn fill_bins(&mut self, class: ClassId, mut count: usize, order_independent: bool) -> usize {
        self.bins.compact_queue();
        let evenly = self.fills_evenly();
        let mut cursor = Cursor::default();
        while count > 0
            && let Some(bin) = self.next_bin(&mut cursor)
        {
            // The incumbent goes to the bin with the fewest pods each time: a bin that took a pod
            // is met again later.
            let max = if evenly { 1 } else { count };
            let allowance = if order_independent {
                self.order_independent_room(bin, class)
            } else {
                Allowance::Unlimited
            };
            let none = DomainAssignment::default();
            if let Some(fit) = self.fit(bin, class, allowance.of(max), &none) {
                let wanted =
                    if evenly { fit.room } else { self.cheaper_than_apart(bin, class, &fit) };
                if wanted > 0 {
                    count -= self.add(bin, class, &fit, wanted);
                }
            }
        }
        count
    }

    /// Number of the fitting pods that are cheaper on a bin than on a node of their own: growing a
    /// bin, or narrowing it to the requirements of pods, can make it expensive.
    fn cheaper_than_apart(&mut self, bin: BinId, class: ClassId, fit: &Fit) -> usize {
        let entry = &self.bins[bin];
        if !entry.charge.is_empty() {
            return fit.room;
        }
        let class = &self.classes[class];
        let used = self.bins.used(bin);
        let offerings = &*self.offerings;
        let Some(before) = offerings.lowest_price(entry.eligibility, used, &[]) else {
            return fit.room;
        };
        let start = EligibilityId::of_pool(offerings.eligible(entry.eligibility).pool);
        let mut count = fit.room;
        while count > 0 {
            let with = with_requests(used, &class.requests, count);
            let Some(after) = self.offerings.lowest_price(fit.eligibility, &with, &[]) else {
                return count;
            };
            let apart = with_requests(&vec![0; used.len()], &class.requests, count);
            let apart = class.terms.iter().find_map(|term| {
                let eligibility = self.offerings.narrow(start, *term)?;
                self.offerings.lowest_price(eligibility, &apart, &[])
            });
            let increase = after.micros() - before.micros();
            if apart.is_none_or(|apart| increase <= apart.micros()) {
                return count;
            }
            count /= 2;
        }
        0
    }

    /// Opens bins for a class in the best pool and returns the number of pods placed.
    fn open_bins(&mut self, class: ClassId, count: usize) -> usize {
        let max = self.max_pods.of(count);
        let Some(NewBin { fit, cap, .. }) =
            self.best_new_bin(class, max, &DomainAssignment::default())
        else {
            return 0;
        };
        let limited = self.ledger.is_limited(self.offerings.eligible(fit.eligibility).pool);
        let mut placed = 0;
        // Full bins of a pool without limits are all alike: the best pool stays the best.
        while placed == 0 || (!limited && count - placed >= fit.room) {
            let bin = self.open_bin(fit.eligibility, cap);
            let added = self.add(bin, class, &fit, fit.room);
            if added == 0 {
                self.bins.pop();
                break;
            }
            placed += added;
        }
        placed
    }
}
