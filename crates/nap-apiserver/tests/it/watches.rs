//! Lists, pages and watches on the paused clock.

use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::api::{
    Api, DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams,
};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, ResourceExt};
use serde_json::json;

use crate::support::{client, pod, refusal, server, typed};

async fn add(api: &Api<ConfigMap>, name: &str) -> ConfigMap {
    let map = typed(
        json!({ "metadata": { "name": name, "labels": { "name": name } }, "data": { "n": "0" } }),
    );
    api.create(&PostParams::default(), &map).await.unwrap()
}

fn told(event: &WatchEvent<ConfigMap>) -> String {
    match event {
        WatchEvent::Added(map) => format!("added {}", map.name_any()),
        WatchEvent::Modified(map) => format!("modified {}", map.name_any()),
        WatchEvent::Deleted(map) => format!("deleted {}", map.name_any()),
        WatchEvent::Bookmark(_) => "bookmark".to_owned(),
        WatchEvent::Error(status) => format!("error {}", status.code),
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_tells_what_changed_and_selectors_change_sides() {
    let api: Api<ConfigMap> = Api::default_namespaced(client());
    let first = add(&api, "a").await;
    let params = WatchParams::default().labels("name=a").disable_bookmarks();
    let mut watch = api.watch(&params, &first.resource_version().unwrap()).await.unwrap().boxed();
    add(&api, "b").await;
    let patch = |value: serde_json::Value| Patch::Merge(value);
    let quiet = PatchParams::default();
    api.patch("a", &quiet, &patch(json!({ "data": { "n": "1" } }))).await.unwrap();
    api.patch("a", &quiet, &patch(json!({ "metadata": { "labels": { "name": "z" } } })))
        .await
        .unwrap();
    api.patch("a", &quiet, &patch(json!({ "metadata": { "labels": { "name": "a" } } })))
        .await
        .unwrap();
    api.delete("a", &DeleteParams::default()).await.unwrap();
    let mut seen = Vec::new();
    for _ in 0..4 {
        seen.push(told(&watch.try_next().await.unwrap().unwrap()));
    }
    assert_eq!(seen, ["modified a", "deleted a", "added a", "deleted a"]);
}

#[tokio::test(start_paused = true)]
async fn a_watch_ends_at_its_timeout_and_bookmarks_before() {
    let api: Api<ConfigMap> = Api::default_namespaced(client());
    add(&api, "a").await;
    let started = tokio::time::Instant::now();
    let watch = api.watch(&WatchParams::default().timeout(150), "0").await.unwrap();
    let seen: Vec<String> = watch.map_ok(|event| told(&event)).try_collect().await.unwrap();
    assert_eq!(seen, ["added a", "bookmark", "bookmark", "bookmark"]);
    assert_eq!(started.elapsed().as_secs(), 150);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_watch_is_forgotten() {
    let server = server();
    let api: Api<ConfigMap> = Api::default_namespaced(Client::new(server.clone(), "default"));
    let mut watch = api.watch(&WatchParams::default(), "0").await.unwrap().boxed();
    let waited = tokio::time::timeout(Duration::from_secs(1), watch.try_next()).await;
    assert!(waited.is_err());
    assert_eq!(server.idle_watches(), 1);
    drop(watch);
    assert_eq!(server.idle_watches(), 0);
}

#[tokio::test(start_paused = true)]
async fn too_old_versions_are_gone() {
    let api: Api<ConfigMap> = Api::default_namespaced(client());
    let first = add(&api, "a").await;
    let mut slow = api
        .watch(&WatchParams::default(), &first.resource_version().unwrap())
        .await
        .unwrap()
        .boxed();
    for n in 0..5000 {
        let patch = Patch::Merge(json!({ "data": { "n": n.to_string() } }));
        api.patch("a", &PatchParams::default(), &patch).await.unwrap();
    }
    assert_eq!(told(&slow.try_next().await.unwrap().unwrap()), "error 410");
    assert!(slow.try_next().await.unwrap().is_none());
    let late = api.watch(&WatchParams::default(), &first.resource_version().unwrap()).await;
    let mut late = late.unwrap().boxed();
    assert_eq!(told(&late.try_next().await.unwrap().unwrap()), "error 410");
    assert!(late.try_next().await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn pages_show_one_moment() {
    let api: Api<ConfigMap> = Api::default_namespaced(client());
    for name in ["a", "b", "c", "d"] {
        add(&api, name).await;
    }
    let page = api.list(&ListParams::default().limit(2)).await.unwrap();
    let names = |list: &[ConfigMap]| list.iter().map(ResourceExt::name_any).collect::<Vec<_>>();
    assert_eq!(names(&page.items), ["a", "b"]);
    assert_eq!(page.metadata.remaining_item_count, Some(2));
    api.delete("c", &DeleteParams::default()).await.unwrap();
    add(&api, "e").await;
    let token = page.metadata.continue_.unwrap();
    let rest = api.list(&ListParams::default().limit(5).continue_token(&token)).await.unwrap();
    assert_eq!(names(&rest.items), ["c", "d"]);
    assert_eq!(rest.metadata.resource_version, page.metadata.resource_version);
    assert_eq!(names(&api.list(&ListParams::default()).await.unwrap().items), ["a", "b", "d", "e"]);
    assert_eq!(refusal(api.list(&ListParams::default().continue_token("zz")).await).0, 400);
}

#[tokio::test(start_paused = true)]
async fn kube_watchers_follow_for_hours() {
    let client = client();
    let api: Api<Pod> = Api::default_namespaced(client);
    for streaming in [false, true] {
        let name = format!("late-{streaming}");
        let config = if streaming {
            watcher::Config::default().streaming_lists()
        } else {
            watcher::Config::default()
        };
        let mut stream = watcher(api.clone(), config).applied_objects().boxed();
        let creator = api.clone();
        let mut tasks = tokio::task::JoinSet::new();
        let late = name.clone();
        tasks.spawn(async move {
            tokio::time::sleep(Duration::from_hours(3)).await;
            creator.create(&PostParams::default(), &pod(&late)).await.unwrap();
        });
        let seen = loop {
            let seen = stream.try_next().await.unwrap().unwrap();
            if seen.name_any() == name {
                break seen;
            }
        };
        assert_eq!(seen.name_any(), name);
    }
}

#[tokio::test(start_paused = true)]
async fn equal_seeds_give_equal_clusters() {
    async fn story() -> String {
        let api: Api<Pod> = Api::default_namespaced(client());
        let mut wanted = pod("x");
        wanted.metadata.name = None;
        wanted.metadata.generate_name = Some("x-".into());
        for _ in 0..5 {
            api.create(&PostParams::default(), &wanted).await.unwrap();
        }
        serde_json::to_string(&api.list(&ListParams::default()).await.unwrap().items).unwrap()
    }
    assert_eq!(story().await, story().await);
}
