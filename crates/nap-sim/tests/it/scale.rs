//! Growth of the embedded cluster's work with the number of pods.

use crate::cluster::{World, deployment, running};
use k8s_openapi::api::apps::v1::Deployment;

/// API requests of the embedded cluster per pod from creation to running: create, bind, read back,
/// status, and its share of the status updates of the Deployment and the ReplicaSet.
const MAX_REQUESTS_PER_POD: u64 = 8;

/// Requests from creating a Deployment on 100 ready nodes until all its pods run.
async fn requests_for(pods: i32) -> u64 {
    let world = World::start();
    for number in 0..100 {
        world.add_machine(&format!("node-{number:03}"), 200_000).await;
    }
    world.wait(60).await;
    let before = world.requests();
    world.create::<Deployment>(deployment(pods, "1")).await;
    world.wait(120).await;
    let requests = world.requests() - before;
    assert_eq!(running(&world.pods().await), usize::try_from(pods).unwrap());
    world.scale(pods / 3).await;
    world.wait(120).await;
    assert_eq!(world.pods().await.len(), usize::try_from(pods / 3).unwrap());
    requests
}

#[tokio::test(start_paused = true)]
async fn api_requests_grow_linearly_with_pods() {
    let (few, many) = (requests_for(150).await, requests_for(600).await);
    assert!(many <= 600 * MAX_REQUESTS_PER_POD, "{many} requests for 600 pods");
    assert!(many <= few * 4 + few / 10, "{few} requests for 150 pods, {many} for 600");
}
