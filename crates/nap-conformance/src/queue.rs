//! The specs that are still to run: longest first, so that the planes end together.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::specs::Spec;

/// A queue that the workers of all planes share.
pub(crate) struct Queue {
    waiting: Mutex<Waiting>,
    port_free: Condvar,
}

struct Waiting {
    /// Shortest first; the last is taken.
    specs: Vec<Spec>,
    /// Whether a spec that needs the fixed port runs.
    port_taken: bool,
}

/// A spec that a worker runs; frees the port when dropped.
pub(crate) struct Taken<'q> {
    queue: &'q Queue,
    spec: Spec,
}

impl Taken<'_> {
    pub(crate) fn spec(&self) -> &Spec {
        &self.spec
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if self.spec.needs_port() {
            self.queue.lock().port_taken = false;
            self.queue.port_free.notify_all();
        }
    }
}

impl Queue {
    pub(crate) fn new(mut specs: Vec<Spec>) -> Self {
        specs.sort_by(|a, b| a.usual.cmp(&b.usual).then_with(|| b.name.cmp(&a.name)));
        let waiting = Waiting { specs, port_taken: false };
        Self { waiting: Mutex::new(waiting), port_free: Condvar::new() }
    }

    /// The longest spec that can run now. Waits if only specs are left that need the fixed port
    /// while another has it.
    pub(crate) fn take(&self) -> Option<Taken<'_>> {
        let mut waiting = self.lock();
        loop {
            let port_taken = waiting.port_taken;
            let next = waiting.specs.iter().rposition(|spec| !(port_taken && spec.needs_port()));
            if let Some(next) = next {
                let spec = waiting.specs.remove(next);
                waiting.port_taken |= spec.needs_port();
                return Some(Taken { queue: self, spec });
            }
            if waiting.specs.is_empty() {
                return None;
            }
            waiting = self.port_free.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Whether no spec waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.lock().specs.is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn spec(name: &str, seconds: u64) -> Spec {
        Spec {
            suite: "regression".to_owned(),
            name: name.to_owned(),
            usual: Duration::from_secs(seconds),
            excuse: None,
        }
    }

    #[test]
    fn longest_spec_is_first_and_the_port_has_one_user() {
        let queue = Queue::new(vec![
            spec("short", 1),
            spec("Chaos a", 9),
            spec("Chaos b", 9),
            spec("long", 20),
        ]);
        let name =
            |taken: &Option<Taken<'_>>| taken.as_ref().map(|taken| taken.spec().name.clone());
        let (first, second, third) = (queue.take(), queue.take(), queue.take());
        assert_eq!(name(&first).as_deref(), Some("long"));
        assert_eq!(name(&second).as_deref(), Some("Chaos a"));
        assert_eq!(name(&third).as_deref(), Some("short"), "the port is taken");
        drop(second);
        assert_eq!(name(&queue.take()).as_deref(), Some("Chaos b"));
        assert!(queue.take().is_none());
    }
}
