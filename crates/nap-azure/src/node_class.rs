//! Inspection of a node class: Kubernetes version, images and subnet of new machines.
//!
//! Each part is read by itself. A part that cannot be read is unknown, which changes nothing: it
//! neither hides the others nor replaces a node.

use jiff::{SignedDuration, Timestamp};
use nap_api::aksnodeclass::{AKSNodeClassStatus, NodeImage, condition};
use nap_api::disruption::MaintenanceSchedule;
use nap_api::{AKSNodeClass, conditions, validation};
use nap_cloud::{CloudError, NodeClassCondition, NodeClassFinding, NodeClassReport};

use crate::arm::ArmClient;
use crate::images::{self, ImageChoice};
use crate::{AzureConfig, maintenance, subnet};

/// Age from which an image is replaced although no maintenance window is open.
const MAX_IMAGE_AGE: SignedDuration = SignedDuration::from_hours(90 * 24);

/// Inspects a node class. `version` is the Kubernetes version of the control plane.
pub(crate) async fn inspect(
    arm: &ArmClient,
    config: &AzureConfig,
    class: &AKSNodeClass,
    version: Result<String, CloudError>,
) -> NodeClassReport {
    let status = class.status.clone().unwrap_or_default();
    let mut report = NodeClassReport::default();
    let mut note = |condition, finding: Option<NodeClassFinding>| {
        report.findings.extend(finding.map(|finding| (condition, finding)));
    };
    let known = status.kubernetes_version.clone();
    let version = match version {
        Ok(read) => newer_version(known, read),
        Err(error) => {
            note(NodeClassCondition::KubernetesVersion, Some(unknown(&error)));
            known
        }
    };
    let images = match &version {
        Some(version) => inspect_images(arm, config, class, &status, version).await,
        None => Ok(Images {
            images: None,
            finding: Some(NodeClassFinding::Unknown {
                message: "images follow the Kubernetes version, which is not known".to_owned(),
            }),
        }),
    };
    let images =
        images.unwrap_or_else(|error| Images { images: None, finding: Some(unknown(&error)) });
    note(NodeClassCondition::Images, images.finding);
    let subnet = subnet::inspect(arm, config, &class.spec).await;
    note(NodeClassCondition::Subnets, subnet.unwrap_or_else(|error| Some(unknown(&error))));
    report.kubernetes_version = version;
    report.images = images.images;
    report
}

fn unknown(error: &CloudError) -> NodeClassFinding {
    NodeClassFinding::Unknown { message: error.condition_message() }
}

/// The newer of two Kubernetes versions; one that cannot be parsed gives way. Kubernetes does not
/// support nodes newer than the control plane, and AKS never downgrades one: an older version is an
/// answer of the past.
fn newer_version(known: Option<String>, read: String) -> Option<String> {
    let parts = |version: &str| {
        let version = version.trim_start_matches('v');
        version.split('.').map(|part| part.parse().ok()).collect::<Option<Vec<u32>>>()
    };
    known.filter(|known| parts(known) > parts(&read)).or(Some(read))
}

/// Images of a class. Without any, they stay as they are.
struct Images {
    images: Option<Vec<NodeImage>>,
    finding: Option<NodeClassFinding>,
}

async fn inspect_images(
    arm: &ArmClient,
    config: &AzureConfig,
    class: &AKSNodeClass,
    status: &AKSNodeClassStatus,
    version: &str,
) -> Result<Images, CloudError> {
    let published = images::list(arm, config).await?;
    let newest = images::resolve(config, ImageChoice::of(&class.spec), version, &published);
    if newest.is_empty() {
        let family = class.spec.image_family.as_str();
        let message = format!(
            "no image of family {family} with this fipsMode and trustedLaunch is published in the \
             region; change one of them"
        );
        let finding = Some(NodeClassFinding::violated("ImagesNotFound", message));
        return Ok(Images { images: Some(newest), finding });
    }
    // A pin that is no version is reported by the validation of the class.
    if let Ok(Some(pin)) = validation::pinned_image_version(class) {
        let message = format!("pinned to version {pin} by an annotation");
        let images = newest.iter().map(|image| images::at_version(image, pin)).collect();
        let finding = Some(NodeClassFinding::Holds { message });
        return Ok(Images { images: Some(images), finding });
    }
    let is_new = !conditions::is_true(&status.conditions, condition::IMAGES_READY);
    let is_upgraded = status.kubernetes_version.as_deref() != Some(version);
    if is_new || is_upgraded || status.images.is_empty() {
        return Ok(Images { images: Some(newest), finding: None });
    }
    let now = arm.clock().now();
    let kept = keep(&status.images, &newest, now);
    if kept == newest {
        return Ok(Images { images: Some(newest), finding: None });
    }
    let schedule = MaintenanceSchedule::NodeOsUpgrade;
    // Without certainty about the window no image changes, so that no node is replaced outside.
    let message = match maintenance::read_window(arm, config, schedule).await {
        Ok(None) => return Ok(Images { images: Some(newest), finding: None }),
        Ok(Some(window)) if window.is_open(now) => {
            return Ok(Images { images: Some(newest), finding: None });
        }
        Ok(Some(window)) => match window.next_opening(now) {
            Some(opening) => format!("newer images wait for the maintenance window at {opening}"),
            None => "newer images wait for a maintenance window that does not open".to_owned(),
        },
        Err(error) => format!("newer images wait until the maintenance window is known: {error}"),
    };
    Ok(Images { images: Some(kept), finding: Some(NodeClassFinding::Holds { message }) })
}

/// The newest images, with the current version of each definition that has one which is not too
/// old.
fn keep(current: &[NodeImage], newest: &[NodeImage], now: Timestamp) -> Vec<NodeImage> {
    let is_young = |image: &NodeImage| {
        images::published_at(&image.id).is_none_or(|at| now.duration_since(at) <= MAX_IMAGE_AGE)
    };
    let keep = |newest: &NodeImage| {
        let mut same = current.iter().filter(|image| images::is_same_definition(image, newest));
        let current = same.next().filter(|image| is_young(image));
        NodeImage { id: current.unwrap_or(newest).id.clone(), ..newest.clone() }
    };
    newest.iter().map(keep).collect()
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use bytes::Bytes;
    use http::{Request, Response};
    use http_body_util::Full;
    use nap_api::labels;
    use nap_clock::Clock;
    use serde_json::{Value, json};

    use super::*;
    use crate::arm::http_service;
    use crate::images::node_image_version;

    const DEFINITIONS: [&str; 3] =
        ["2404gen2containerd", "2404containerd", "2404gen2arm64containerd"];

    /// ARM with these images and this window; what is `None` fails.
    fn arm(image: Option<&'static str>, window: Option<Value>, now: &str) -> ArmClient {
        let service = http_service(tower::service_fn(move |request: Request<Full<Bytes>>| {
            let path = request.uri().path();
            let list = |version: &str| {
                let one = |sku: &&str| json!({ "os": "AKSUbuntu", "sku": sku, "version": version });
                json!({ "value": DEFINITIONS.iter().map(one).collect::<Vec<_>>() })
            };
            let body = if path.ends_with("nodeImageVersions") {
                image.map(&list)
            } else if path.contains("maintenanceConfigurations") {
                window.clone()
            } else {
                Some(json!({ "properties": { "addressPrefix": "10.0.0.0/16" } }))
            };
            let status = match &body {
                Some(Value::Null) => 404,
                Some(_) => 200,
                None => 403,
            };
            let body = body.unwrap_or_default().to_string();
            let response = Response::builder().status(status).body(Full::new(Bytes::from(body)));
            async { Ok::<_, Infallible>(response.unwrap()) }
        }));
        let clock = Clock::fixed(now.parse().unwrap());
        ArmClient::anonymous(service, clock, "https://arm.example")
    }

    /// A window on Sundays from midnight to four.
    fn sundays() -> Value {
        let schedule = json!({ "weekly": { "intervalWeeks": 1, "dayOfWeek": "Sunday" } });
        json!({ "properties": { "maintenanceWindow": {
            "schedule": schedule, "durationHours": 4, "startTime": "00:00", "startDate": "2026-01-01",
        } } })
    }

    fn class(status: Value, pin: Option<&str>) -> AKSNodeClass {
        let status = serde_json::from_value(status).unwrap();
        let mut class = AKSNodeClass { status, ..AKSNodeClass::default() };
        let pin = pin.map(|pin| (labels::PIN_IMAGE_VERSION.to_owned(), pin.to_owned()));
        class.metadata.annotations = Some(pin.into_iter().collect());
        class
    }

    /// Status of a class with all images at a version.
    fn ready(config: &AzureConfig, version: &str) -> Value {
        let image = |sku: &&str| images::ImageVersion {
            full_name: String::new(),
            os: "AKSUbuntu".to_owned(),
            sku: (*sku).to_owned(),
            version: version.to_owned(),
        };
        let published: Vec<_> = DEFINITIONS.iter().map(image).collect();
        let images = images::resolve(config, ImageChoice::default(), "1.34.1", &published);
        json!({ "kubernetesVersion": "1.34.1", "images": images, "conditions": [{
            "type": "ImagesReady", "status": "True", "reason": "ImagesReady", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }] })
    }

    async fn inspected(arm: &ArmClient, class: &AKSNodeClass, version: &str) -> NodeClassReport {
        let config = AzureConfig::new("s", "rg", "c", "eastus");
        inspect(arm, &config, class, Ok(version.to_owned())).await
    }

    /// Version of the first image, and the finding about images.
    fn images_of(report: &NodeClassReport) -> (String, Option<String>) {
        let id = &report.images.as_ref().unwrap()[0].id;
        let version = node_image_version(id).unwrap().rsplit_once('-').unwrap().1.to_owned();
        let finding = report.findings.get(&NodeClassCondition::Images);
        let message = finding.map(|finding| match finding {
            NodeClassFinding::Holds { message } => message.clone(),
            other => panic!("{other:?}"),
        });
        (version, message)
    }

    #[tokio::test]
    async fn new_images_are_taken_in_the_window_only() {
        let config = AzureConfig::new("s", "rg", "c", "eastus");
        let old = class(ready(&config, "202602.1.0"), None);
        let waits = "newer images wait for the maintenance window at 2026-03-08T00:00:00Z";
        let cases = [
            ("2026-03-07T23:59:00Z", sundays(), "202602.1.0", Some(waits)),
            ("2026-03-08T00:00:00Z", sundays(), "202603.5.0", None),
            ("2026-03-07T23:59:00Z", Value::Null, "202603.5.0", None),
        ];
        for (now, window, version, message) in cases {
            let arm = arm(Some("202603.5.0"), Some(window), now);
            let found = images_of(&inspected(&arm, &old, "1.34.1").await);
            assert_eq!(found, (version.to_owned(), message.map(str::to_owned)), "{now}");
        }
    }

    #[tokio::test]
    async fn no_image_changes_while_the_window_is_unknown() {
        let config = AzureConfig::new("s", "rg", "c", "eastus");
        let old = class(ready(&config, "202602.1.0"), None);
        let broken = json!({ "properties": { "maintenanceWindow": { "durationHours": 99 } } });
        for window in [None, Some(broken)] {
            let arm = arm(Some("202603.5.0"), window, "2026-03-08T00:00:00Z");
            let (version, message) = images_of(&inspected(&arm, &old, "1.34.1").await);
            assert_eq!(version, "202602.1.0");
            assert!(message.unwrap().contains("until the maintenance window is known"));
        }
    }

    #[tokio::test]
    async fn new_classes_and_upgrades_and_old_images_do_not_wait() {
        let config = AzureConfig::new("s", "rg", "c", "eastus");
        let arm = |now| arm(Some("202603.5.0"), Some(sundays()), now);
        let closed = "2026-03-07T12:00:00Z";
        let new = class(json!({}), None);
        assert_eq!(images_of(&inspected(&arm(closed), &new, "1.34.1").await).0, "202603.5.0");
        let old = class(ready(&config, "202602.1.0"), None);
        assert_eq!(images_of(&inspected(&arm(closed), &old, "1.35.0").await).0, "202603.5.0");
        // 90 days after the first of February.
        for (now, version) in
            [("2026-05-02T00:00:00Z", "202602.1.0"), ("2026-05-02T00:00:01Z", "202603.5.0")]
        {
            assert_eq!(images_of(&inspected(&arm(now), &old, "1.34.1").await).0, version, "{now}");
        }
    }

    #[tokio::test]
    async fn a_pin_is_kept_inside_and_outside_of_the_window() {
        let config = AzureConfig::new("s", "rg", "c", "eastus");
        let pinned = class(ready(&config, "202602.1.0"), Some("202601.9.0"));
        for now in ["2026-03-07T12:00:00Z", "2026-03-08T00:00:00Z", "2027-03-08T00:00:00Z"] {
            let arm = arm(Some("202603.5.0"), Some(sundays()), now);
            let (version, message) = images_of(&inspected(&arm, &pinned, "1.34.1").await);
            assert_eq!(version, "202601.9.0");
            assert_eq!(message.unwrap(), "pinned to version 202601.9.0 by an annotation");
        }
    }

    #[tokio::test]
    async fn a_part_that_cannot_be_read_hides_no_other() {
        let arm = arm(None, None, "2026-03-07T12:00:00Z");
        let mut class = class(json!({}), None);
        class.spec.vnet_subnet_id = Some("nonsense".to_owned());
        let report = inspected(&arm, &class, "1.34.1").await;
        assert_eq!(report.kubernetes_version.as_deref(), Some("1.34.1"));
        assert_eq!(report.images, None);
        let found = |condition| report.findings.get(&condition);
        let images = found(NodeClassCondition::Images);
        assert!(matches!(images, Some(NodeClassFinding::Unknown { .. })), "{images:?}");
        let subnet = found(NodeClassCondition::Subnets);
        assert!(matches!(subnet, Some(NodeClassFinding::Violated { .. })), "{subnet:?}");
        assert_eq!(found(NodeClassCondition::KubernetesVersion), None);
    }

    #[test]
    fn the_kubernetes_version_only_goes_up() {
        let newer = |known: &str, read: &str| {
            newer_version(Some(known.to_owned()), read.to_owned()).unwrap()
        };
        assert_eq!(newer("1.34.2", "1.35.0"), "1.35.0");
        assert_eq!(newer("1.34.10", "1.34.9"), "1.34.10");
        assert_eq!(newer("unknown", "1.34.9"), "1.34.9");
        assert_eq!(newer_version(None, "1.34.1".to_owned()).as_deref(), Some("1.34.1"));
    }

    #[tokio::test]
    async fn new_nodes_keep_their_version_when_the_control_plane_states_an_older_one() {
        let config = AzureConfig::new("s", "rg", "c", "eastus");
        let class = class(ready(&config, "202602.1.0"), None);
        // A change of the version would take the new image outside of the window.
        let arm = arm(Some("202603.5.0"), Some(sundays()), "2026-03-07T12:00:00Z");
        for (stated, version, image) in [
            ("1.33.9", "1.34.1", "202602.1.0"),
            ("1.9.0", "1.34.1", "202602.1.0"),
            ("1.34.2", "1.34.2", "202603.5.0"),
        ] {
            let report = inspected(&arm, &class, stated).await;
            assert_eq!(report.kubernetes_version.as_deref(), Some(version), "{stated}");
            assert_eq!(images_of(&report).0, image, "{stated}");
        }
    }
}
