//! One list of machines for all that watch them: however many machines are being created or
//! deleted, the API is asked at most once in an interval.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use nap_clock::Clock;
use nap_cloud::CloudError;

use super::{Machine, Machines};

/// Shortest interval between two lists for machines in progress.
const INTERVAL: SignedDuration = SignedDuration::from_secs(5);
/// Share of the time that listing may take, as a divisor: a list that takes a second is made every
/// twenty seconds.
const MAX_SHARE: i32 = 20;

/// All machines of the pool at a time.
#[derive(Debug)]
pub struct Listed {
    /// Time at which the list was asked for.
    pub at: Timestamp,
    took: SignedDuration,
    machines: BTreeMap<String, Machine>,
}

impl Listed {
    /// The machine of a name; `None` if there was none at that time.
    pub fn get(&self, name: &str) -> Option<&Machine> {
        self.machines.get(name)
    }

    /// All machines, by name.
    pub fn machines(&self) -> impl Iterator<Item = &Machine> {
        self.machines.values()
    }
}

/// The newest list.
pub struct MachineList {
    machines: Machines,
    clock: Clock,
    /// Locked while the list is fetched, so that concurrent callers fetch it once.
    newest: tokio::sync::Mutex<Option<Arc<Listed>>>,
}

impl MachineList {
    /// Creates an empty cache.
    pub fn new(machines: Machines, clock: Clock) -> Self {
        Self { machines, clock, newest: tokio::sync::Mutex::new(None) }
    }

    /// A list that was asked for at `at` or later.
    pub async fn since(&self, at: Timestamp) -> Result<Arc<Listed>, CloudError> {
        let mut newest = self.newest.lock().await;
        if let Some(listed) = newest.as_ref().filter(|listed| listed.at >= at) {
            return Ok(Arc::clone(listed));
        }
        let begun = self.clock.now();
        let machines = self.machines.list().await?;
        let machines = machines.into_iter().map(|machine| (machine.name.clone(), machine));
        let took = self.clock.now().duration_since(begun);
        let listed = Arc::new(Listed { at: begun, took, machines: machines.collect() });
        *newest = Some(Arc::clone(&listed));
        Ok(listed)
    }

    /// A list of the last seconds that was asked for at `at` or later.
    pub async fn recent_since(&self, at: Timestamp) -> Result<Arc<Listed>, CloudError> {
        let took = self.newest.lock().await.as_ref().map(|listed| listed.took);
        let interval = INTERVAL.max(took.unwrap_or_default().saturating_mul(MAX_SHARE));
        let recent = self.clock.now().checked_sub(interval).unwrap_or(Timestamp::MIN);
        self.since(recent.max(at)).await
    }

    /// A list of the last seconds.
    pub async fn recent(&self) -> Result<Arc<Listed>, CloudError> {
        self.recent_since(Timestamp::MIN).await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use bytes::Bytes;
    use http::{Request, Response};
    use http_body_util::Full;

    use super::*;
    use crate::AzureConfig;
    use crate::arm::{ArmClient, http_service};

    /// A list that takes a second, and the number of times it was asked for.
    fn list() -> (MachineList, Arc<AtomicUsize>) {
        let asked = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&asked);
        let service = http_service(tower::service_fn(move |_: Request<Full<Bytes>>| {
            let number = counted.fetch_add(1, Ordering::Relaxed);
            let body = format!(r#"{{"value":[{{"name":"m{number}"}}]}}"#);
            async move {
                tokio::time::sleep(std::time::Duration::from_secs(1)).await;
                Ok::<_, std::convert::Infallible>(Response::new(Full::new(Bytes::from(body))))
            }
        }));
        let clock = Clock::starting_at(Timestamp::UNIX_EPOCH, 1);
        let client = ArmClient::anonymous(service, clock.clone(), "https://arm.example");
        let machines = Machines::new(client, &AzureConfig::new("s", "rg", "c", "eastus"));
        (MachineList::new(machines, clock), asked)
    }

    #[tokio::test(start_paused = true)]
    async fn a_hundred_watchers_ask_once_in_an_interval() {
        let (list, asked) = list();
        let all = futures::future::join_all((0..100).map(|_| list.recent())).await;
        assert!(all.iter().all(|listed| listed.as_ref().unwrap().get("m0").is_some()));
        assert_eq!(asked.load(Ordering::Relaxed), 1);
        // The list took a second, so that it stays recent for twenty.
        list.clock.sleep(std::time::Duration::from_secs(15)).await;
        list.recent().await.unwrap();
        assert_eq!(asked.load(Ordering::Relaxed), 1);
        list.clock.sleep(std::time::Duration::from_secs(6)).await;
        list.recent().await.unwrap();
        assert_eq!(asked.load(Ordering::Relaxed), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_from_before_is_not_taken_for_a_later_one() {
        let (list, asked) = list();
        let first = list.recent().await.unwrap();
        let after = list.clock.now();
        let second = list.since(after).await.unwrap();
        assert!(first.at < after && second.at >= after);
        assert_eq!(asked.load(Ordering::Relaxed), 2);
    }
}
