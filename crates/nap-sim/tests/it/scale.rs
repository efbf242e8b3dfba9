//! Larger clusters, to see that nothing grows with the square of the pods.

use crate::cluster::{World, deployment, running};
use k8s_openapi::api::apps::v1::Deployment;

#[tokio::test(start_paused = true)]
async fn hundreds_of_pods_on_a_hundred_machines() {
    let world = World::start();
    for number in 0..100 {
        world.add_machine(&format!("node-{number:03}"), 200_000).await;
    }
    world.create::<Deployment>(deployment(300, "1")).await;
    world.wait(120).await;
    assert_eq!(running(&world.pods().await), 300);
    world.scale(100).await;
    world.wait(120).await;
    assert_eq!(world.pods().await.len(), 100);
}
