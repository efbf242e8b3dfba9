//! Requests for several machines at once.
//!
//! Azure takes up to fifty machines of one template in one request, and counts it once. Callers
//! hand in their machine, and whatever comes together within a short window goes out together.
//! The requests run on tasks of their own: a caller that stops waiting stops no other.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use nap_clock::Clock;
use nap_cloud::{CloudError, ErrorClass};
use serde_json::Value;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::api::{Accepted, batch_entry};
use super::{Machine, Machines};

/// Time for which further machines are waited for. NodeClaims of one plan come within milliseconds;
/// a VM takes a minute.
const WINDOW: Duration = Duration::from_millis(200);
/// Most machines of one request.
pub const MAX_BATCH: usize = 50;

/// Most bytes of zones and tags in one request: they go into a header, and servers refuse a header
/// of 16 KiB.
const MAX_HEADER: usize = 8 << 10;

/// A machine to create: the template that it shares with others, and what is its own.
#[derive(Clone, Debug, PartialEq)]
pub struct NewMachine {
    /// Name.
    pub name: String,
    /// Body of the PUT, with its own zones and tags.
    pub body: Value,
}

impl NewMachine {
    /// The body without zones and tags: machines with equal templates can share a request. Zones
    /// stay where ultra disks depend on them.
    fn template(&self) -> String {
        let mut template = self.body.clone();
        let ultra = template.pointer("/properties/hardware/ultraSsdEnabled");
        if ultra != Some(&Value::Bool(true)) {
            template["zones"] = Value::Null;
        }
        template["properties"]["tags"] = Value::Null;
        template.to_string()
    }
}

/// Takes from the end as many machines as one request may have: at least one.
fn take_batch(waiting: &mut Waiting) -> Waiting {
    let mut bytes = 0;
    let fits = |(machine, _): &&(NewMachine, Reply<Created>)| {
        bytes += batch_entry(machine).len() + 1;
        bytes <= MAX_HEADER
    };
    let count = waiting.iter().rev().take(MAX_BATCH).take_while(fits).count().max(1);
    waiting.split_off(waiting.len().saturating_sub(count))
}

/// Answer to the request of one machine.
#[derive(Clone, Debug)]
pub struct Created {
    /// Time at which the request was sent.
    pub at: Timestamp,
    /// URL of the operation; `None` if Azure named none.
    pub operation: Option<String>,
    /// Correlation id of the request; `None` if the answer has none.
    pub correlation_id: Option<String>,
    /// The machine as the answer shows it; `None` for all but the first of a batch.
    pub machine: Option<Machine>,
    /// Whether the machine was asked for in a batch, in which Azure may overlook it.
    pub batched: bool,
}

type Reply<T> = oneshot::Sender<Result<T, CloudError>>;
/// Machines of one template, with their callers.
type Waiting = Vec<(NewMachine, Reply<Created>)>;

/// The requests that are being gathered and sent.
pub struct Batches {
    shared: Arc<Shared>,
    tasks: Mutex<JoinSet<()>>,
}

struct Shared {
    machines: Machines,
    clock: Clock,
    /// Machines to create by their template.
    creates: Mutex<BTreeMap<String, Waiting>>,
    deletes: Mutex<Vec<(String, Reply<()>)>>,
}

impl Batches {
    /// Creates batches of the machines of a pool.
    pub fn new(machines: Machines, clock: Clock) -> Self {
        let (creates, deletes) = Default::default();
        let shared = Arc::new(Shared { machines, clock, creates, deletes });
        Self { shared, tasks: Mutex::default() }
    }

    /// Requests the creation of a machine, together with others that are alike.
    pub async fn create(&self, machine: NewMachine) -> Result<Created, CloudError> {
        let (reply, answer) = oneshot::channel();
        let operation = format!("create machine {}", machine.name);
        let template = machine.template();
        let is_first = {
            let mut creates = lock(&self.shared.creates);
            let waiting = creates.entry(template.clone()).or_default();
            waiting.push((machine, reply));
            waiting.len() == 1
        };
        if is_first {
            let shared = Arc::clone(&self.shared);
            self.run(async move {
                shared.clock.sleep(WINDOW).await;
                let waiting = lock(&shared.creates).remove(&template).unwrap_or_default();
                shared.send_creates(waiting).await;
            });
        }
        answer.await.unwrap_or_else(|_| Err(interrupted(operation)))
    }

    /// Requests the deletion of a machine, together with others.
    pub async fn delete(&self, name: &str) -> Result<(), CloudError> {
        let (reply, answer) = oneshot::channel();
        let is_first = {
            let mut deletes = lock(&self.shared.deletes);
            deletes.push((name.to_owned(), reply));
            deletes.len() == 1
        };
        if is_first {
            let shared = Arc::clone(&self.shared);
            self.run(async move {
                shared.clock.sleep(WINDOW).await;
                let waiting = std::mem::take(&mut *lock(&shared.deletes));
                shared.send_deletes(waiting).await;
            });
        }
        answer.await.unwrap_or_else(|_| Err(interrupted(format!("delete machine {name}"))))
    }

    fn run(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = lock(&self.tasks);
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task);
    }
}

impl Shared {
    async fn send_creates(&self, mut waiting: Waiting) {
        // A caller that has given up leaves no machine behind.
        waiting.retain(|(_, reply)| !reply.is_closed());
        let mut batches = Vec::new();
        while !waiting.is_empty() {
            batches.push(take_batch(&mut waiting));
        }
        let sent = batches.into_iter().map(|batch| self.send_batch(batch));
        futures::future::join_all(sent).await;
    }

    async fn send_batch(&self, batch: Waiting) {
        let (new, replies): (Vec<NewMachine>, Vec<Reply<Created>>) = batch.into_iter().unzip();
        let at = self.clock.now();
        let result = self.machines.put_all(&new).await;
        let batched = new.len() > 1;
        for (number, (machine, reply)) in new.iter().zip(replies).enumerate() {
            let answer = match &result {
                Ok(Accepted { refused, .. }) if refused.contains_key(&machine.name) => {
                    Err(refused[&machine.name].clone())
                }
                Ok(Accepted { operation, correlation_id, machine, .. }) => Ok(Created {
                    at,
                    operation: operation.clone(),
                    correlation_id: correlation_id.clone(),
                    machine: machine.clone().filter(|_| number == 0),
                    batched,
                }),
                Err(error) => Err(error.clone()),
            };
            let _ = reply.send(answer);
        }
    }

    async fn send_deletes(&self, waiting: Vec<(String, Reply<()>)>) {
        let mut waiting = waiting;
        while !waiting.is_empty() {
            let batch = waiting.split_off(waiting.len().saturating_sub(MAX_BATCH));
            let names: Vec<&str> = batch.iter().map(|(name, _)| name.as_str()).collect();
            let result = self.machines.delete_all(&names).await;
            for (_, reply) in batch {
                let _ = reply.send(result.clone());
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn interrupted(operation: String) -> CloudError {
    let message = "the request was interrupted";
    CloudError::new(ErrorClass::Transient, operation, "Interrupted", message)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn waiting(count: usize, tags: usize) -> Waiting {
        let tags: BTreeMap<String, String> =
            (0..tags).map(|number| (format!("tag-{number}"), "x".repeat(20))).collect();
        let body = json!({ "zones": ["1"], "properties": { "tags": tags } });
        let machine = |number| NewMachine { name: format!("m-{number}"), body: body.clone() };
        (0..count).map(|number| (machine(number), oneshot::channel().0)).collect()
    }

    #[test]
    fn a_batch_ends_at_fifty_machines_or_where_its_header_would_be_too_long() {
        let sizes = |count, tags| {
            let mut waiting = waiting(count, tags);
            std::iter::from_fn(|| (!waiting.is_empty()).then(|| take_batch(&mut waiting).len()))
                .collect::<Vec<_>>()
        };
        assert_eq!(sizes(60, 1), [50, 10]);
        let many_tags = sizes(50, 30);
        assert!(many_tags.len() > 4, "{many_tags:?}");
        assert_eq!(many_tags.iter().sum::<usize>(), 50);
        assert_eq!(sizes(2, 1000), [1, 1], "one machine has no header");
    }
}
