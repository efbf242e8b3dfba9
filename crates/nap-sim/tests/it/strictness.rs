//! What the emulator refuses as Azure does: API versions, members of bodies, sizes and images.

use http::Method;
use http_body_util::Full;
use nap_cloud::{CloudProvider as _, ErrorClass};
use nap_sim::azure::SUBSCRIPTION;
use serde_json::{Value, json};
use tower::ServiceExt as _;

use crate::arm::{Arm, BASE, TOKEN_URL, machine_body, machine_url, pool_url};
use crate::world::{DEFAULT_POOL, World, claim};

const SIZE: &str = "Standard_D4s_v5";

/// Prices and tokens are asked for without a namespace, and are as strict.
#[tokio::test(start_paused = true)]
async fn prices_and_tokens_have_their_own_versions_filters_and_audiences() {
    let world = World::new().await;
    let arm = Arm::new(&world.emulator).await;
    let prices = "https://prices.azure.com/api/retail/prices";
    for (query, status) in [
        ("api-version=2023-01-01-preview&$filter=armRegionName%20eq%20'eastus'", 200),
        ("$filter=priceType eq 'Consumption' and armRegionName eq 'eastus'", 200),
        ("api-version=2019-01-01", 400),
        ("$filter=armRegion eq 'eastus'", 400),
        ("$filter=armRegionName eq 'eastus' and kind eq 'Consumption'", 400),
        ("$filter=armRegionName eq eastus", 400),
        ("$filter=armRegionName ne 'eastus'", 400),
    ] {
        let url = format!("{prices}?{}", query.replace(' ', "%20"));
        assert_eq!(arm.get(&url).await.status, status, "{query}");
    }
    let token = |query: &str| format!("{TOKEN_URL}?{query}");
    for (query, status) in [
        ("api-version=2018-02-01&resource=https://management.azure.com/", 200),
        ("api-version=2018-02-01&resource=https://management.azure.com", 200),
        ("api-version=2018-02-01&resource=https://graph.microsoft.com/", 400),
        ("api-version=2019-08-01&resource=https://management.azure.com/", 400),
        ("resource=https://management.azure.com/", 400),
    ] {
        let metadata = [("metadata", "true")];
        let answer = arm.send(Method::GET, &token(query), &metadata, &Value::Null).await;
        assert_eq!(answer.status, status, "{query}");
    }
    for (scope, status) in [
        ("https://management.azure.com/.default", 200),
        ("http://127.0.0.1:9/.default", 200),
        ("https://management.azure.com/", 400),
        ("https://graph.microsoft.com/.default", 400),
    ] {
        let form = format!("client_id=c&client_assertion=a&scope={scope}");
        let request = http::Request::builder()
            .method(Method::POST)
            .uri("https://login.microsoftonline.com/t/oauth2/v2.0/token")
            .body(Full::new(bytes::Bytes::from(form)));
        let answer = world.emulator.clone().oneshot(request.unwrap()).await.unwrap();
        assert_eq!(answer.status().as_u16(), status, "{scope}");
    }
}

#[tokio::test(start_paused = true)]
async fn unknown_api_versions_are_refused_with_the_known_ones() {
    let world = World::new().await;
    let arm = Arm::new(&world.emulator).await;
    let cluster = "resourceGroups/nap/providers/Microsoft.ContainerService/managedClusters/nap";
    for (path, good, code) in [
        ("providers/Microsoft.Compute/skus", "2021-07-01", "InvalidResourceType"),
        (
            "providers/Microsoft.Compute/locations/eastus/usages",
            "2025-04-01",
            "InvalidResourceType",
        ),
        (cluster, "2026-05-02-preview", "NoRegisteredProviderFound"),
        (&format!("{cluster}/agentPools"), "2026-05-02-preview", "NoRegisteredProviderFound"),
        (
            &format!("{cluster}/providers/Microsoft.Authorization/permissions"),
            "2022-04-01",
            "NoRegisteredProviderFound",
        ),
        ("providers/Microsoft.Compute", "2021-04-01", "NoRegisteredProviderFound"),
    ] {
        let bad = arm.get(&format!("{BASE}/{path}?api-version=2001-01-01")).await;
        assert_eq!((bad.status, bad.code()), (400, code), "{path}");
        assert!(bad.message().contains(good), "{}", bad.message());
        let answer = arm.get(&format!("{BASE}/{path}?api-version={good}")).await;
        assert_eq!(answer.status, 200, "{path}: {answer:?}");
    }
    let bad = arm.get(&format!("{BASE}?api-version=2001-01-01")).await;
    assert_eq!((bad.status, bad.code()), (400, "NoRegisteredProviderFound"), "subscription");
    // Every pool of the list can be asked for.
    let system = format!("{BASE}/{cluster}/agentPools/system?api-version=2026-05-02-preview");
    let pool = arm.get(&system).await;
    assert_eq!(
        (pool.status, &pool.body["properties"]["mode"]),
        (200, &json!("System")),
        "{pool:?}"
    );
    // Nothing is written in a version whose members are not known: its definition has others.
    let window = json!({ "properties": {} });
    let schedule = "maintenanceConfigurations/aksManagedAutoUpgradeSchedule";
    let pool = json!({ "properties": { "mode": "Machines" } });
    for (url, body) in [
        (machine_url("m-1"), machine_body(SIZE, &["1"], &json!({}))),
        (system, pool),
        (format!("{BASE}/{cluster}/{schedule}?api-version=2026-05-02-preview"), window),
    ] {
        let old = url.replace("2026-05-02-preview", "2025-07-01");
        let refused = arm.put(&old, &[], &body).await;
        assert_eq!((refused.status, refused.code()), (400, "NoRegisteredProviderFound"), "{old}");
    }
}

#[tokio::test(start_paused = true)]
async fn members_that_the_api_does_not_have_are_refused_by_name() {
    let world = World::new().await;
    let arm = Arm::new(&world.emulator).await;
    let put = async |parent: &str, member: &str, value: Value| {
        let mut body = machine_body(SIZE, &["1"], &json!({}));
        body.pointer_mut(parent).unwrap()[member] = value;
        arm.put(&machine_url("m-1"), &[], &body).await
    };
    for (parent, member, value, part) in [
        ("", "location", json!("eastus"), "'location' is not known"),
        (
            "/properties/hardware",
            "size",
            json!("x"),
            "'properties.hardware.size' is not known; known are vmSize",
        ),
        (
            "/properties/kubernetes",
            "maxPods",
            json!("30"),
            "'properties.kubernetes.maxPods' must be an integer",
        ),
        (
            "/properties",
            "provisioningState",
            json!("Succeeded"),
            "'properties.provisioningState' is read-only",
        ),
        (
            "/properties/operatingSystem",
            "osSKU",
            json!("Debian"),
            "'properties.operatingSystem.osSKU' must be Ubuntu or",
        ),
    ] {
        let answer = put(parent, member, value).await;
        assert_eq!((answer.status, answer.code()), (400, "InvalidRequestContent"), "{part}");
        assert!(answer.message().contains(part), "{}", answer.message());
    }
    assert_eq!(world.emulator.machines(), []);
    assert_eq!(put("/properties", "mode", json!("User")).await.status, 201);
}

#[tokio::test(start_paused = true)]
async fn a_machine_needs_a_version_of_the_control_plane_and_a_subnet_that_exists() {
    let world = World::new().await;
    let arm = Arm::new(&world.emulator).await;
    let put = async |name: &str, parent: &str, member: &str, value: &str| {
        let mut body = machine_body(SIZE, &["1"], &json!({}));
        body["properties"]["network"] = json!({});
        body.pointer_mut(parent).unwrap()[member] = value.into();
        let answer = arm.put(&machine_url(name), &[], &body).await;
        (answer.status, answer.code().to_owned())
    };
    let (kubernetes, network) = ("/properties/kubernetes", "/properties/network");
    for version in ["1.34.2", "1.35", "2.0.0", "1.30.9"] {
        let refused = put("m-1", kubernetes, "orchestratorVersion", version).await;
        assert_eq!(refused, (400, "NodePoolMcVersionIncompatible".to_owned()), "{version}");
    }
    let refused = put("m-1", kubernetes, "orchestratorVersion", "v1.34").await;
    assert_eq!(refused, (400, "InvalidParameter".to_owned()));
    let subnet = world.emulator.config().subnets.iter().next().unwrap().clone();
    let refused = put("m-1", network, "vnetSubnetID", &format!("{subnet}-other")).await;
    assert_eq!(refused, (400, "InvalidResourceReference".to_owned()));
    assert_eq!(world.emulator.machines(), []);
    for (name, version) in [("m-1", "1.34.1"), ("m-2", "1.34"), ("m-3", "1.31.0")] {
        assert_eq!(put(name, kubernetes, "orchestratorVersion", version).await.0, 201, "{version}");
    }
    assert_eq!(put("m-4", network, "vnetSubnetID", &subnet.to_uppercase()).await.0, 201);
}

#[tokio::test(start_paused = true)]
async fn members_of_other_bodies_are_refused_by_name_too() {
    let world = World::new().await;
    let arm = Arm::new(&world.emulator).await;
    let made = machine_body(SIZE, &["1"], &json!({}));
    assert_eq!(arm.put(&machine_url("m-1"), &[], &made).await.status, 201);
    let delete = async |body: Value| {
        let answer = arm.send(http::Method::POST, &pool_url("/deleteMachines"), &[], &body).await;
        (answer.status, answer.message().to_owned())
    };
    for (body, says) in [
        (json!({ "machineNames": ["m-1"], "force": true }), "'force' is not known"),
        (json!({ "machineNames": "m-1" }), "'machineNames' must be a list of strings"),
        (json!({}), "machineNames is missing"),
    ] {
        let (status, message) = delete(body).await;
        assert!(status == 400 && message.contains(says), "{status}: {message}");
    }
    let url = pool_url("").replace(
        "/agentPools/aksmanagedap",
        "/maintenanceConfigurations/aksManagedNodeOSUpgradeSchedule",
    );
    let window = |member: &str, value: Value| {
        let mut window = json!({
            "schedule": { "weekly": { "intervalWeeks": 1, "dayOfWeek": "Monday" } },
            "durationHours": 4, "utcOffset": "+01:00", "startTime": "03:00",
        });
        window[member] = value;
        json!({ "properties": { "maintenanceWindow": window } })
    };
    for (body, says) in [
        (window("duration", json!(4)), "'properties.maintenanceWindow.duration' is not known"),
        (window("durationHours", json!("4")), "durationHours' must be an integer"),
        (
            window("schedule", json!({ "weekly": { "dayOfWeek": "Mon" } })),
            "schedule.weekly.dayOfWeek' must be Sunday or",
        ),
    ] {
        let refused = arm.put(&url, &[], &body).await;
        assert_eq!((refused.status, refused.code()), (400, "InvalidRequestContent"), "{says}");
        assert!(refused.message().contains(says), "{}", refused.message());
    }
    assert_eq!(arm.put(&url, &[], &window("utcOffset", json!("+02:00"))).await.status, 200);
    assert_eq!(delete(json!({ "machineNames": ["m-1"] })).await.0, 202);
}

#[tokio::test(start_paused = true)]
async fn images_must_suit_the_size_and_default_to_the_newest() {
    let world = World::new().await;
    let arm = Arm::new(&world.emulator).await;
    let put = async |name: &str, size: &str, os_sku: &str, image: Option<&str>| {
        let mut body = machine_body(size, &["1"], &json!({}));
        body["properties"]["operatingSystem"]["osSKU"] = os_sku.into();
        body["properties"]["nodeImageVersion"] = image.into();
        arm.put(&machine_url(name), &[], &body).await
    };
    let arm64 = put("m-1", "Standard_D4ps_v5", "Ubuntu", Some(crate::arm::IMAGE)).await;
    assert_eq!((arm64.status, arm64.code()), (400, "BadRequest"));
    assert!(arm64.message().contains("arm64"), "{}", arm64.message());
    let other = put("m-1", SIZE, "AzureLinux", Some(crate::arm::IMAGE)).await;
    assert_eq!((other.status, other.code()), (400, "InvalidParameter"));
    for (name, size, os_sku, image) in [
        ("m-1", SIZE, "Ubuntu", "AKSUbuntu-2404gen2containerd-202610.12.0"),
        ("m-2", SIZE, "AzureLinux", "AKSAzureLinux-V3gen2-202610.12.0"),
        ("m-3", "Standard_D4ps_v5", "Ubuntu2204", "AKSUbuntu-2204gen2arm64containerd-202610.12.0"),
    ] {
        let made = put(name, size, os_sku, None).await;
        assert_eq!(made.text("/properties/nodeImageVersion"), image, "{made:?}");
    }
    let mut body = machine_body("Standard_D2s_v3", &["1"], &json!({}));
    body["properties"]["operatingSystem"]["osDiskType"] = "Ephemeral".into();
    let disk = arm.put(&machine_url("m-4"), &[], &body).await;
    assert_eq!((disk.status, disk.code()), (400, "OperationNotAllowed"));
    assert!(disk.message().contains("greater than 53 GB"), "{}", disk.message());
}

#[tokio::test(start_paused = true)]
async fn restricted_and_retired_sizes_are_listed_with_their_restrictions() {
    let world = World::with(|config| {
        config.restrictions.insert("Standard_D8s_v5".to_owned(), Vec::new());
        config.restrictions.insert(SIZE.to_owned(), vec!["2".to_owned()]);
        config.ultra_disks = true;
    })
    .await;
    let arm = Arm::new(&world.emulator).await;
    let mut rows: Vec<Value> = Vec::new();
    let mut next = format!("{BASE}/providers/Microsoft.Compute/skus?api-version=2021-07-01");
    while !next.is_empty() {
        let page = arm.get(&next).await;
        rows.extend(page.body["value"].as_array().unwrap().iter().cloned());
        next = page.text("/nextLink").to_owned();
    }
    let row = |name: &str| rows.iter().find(|row| row["name"] == name).unwrap();
    for name in ["Standard_D8s_v5", "Standard_NC6s_v3"] {
        let restriction = &row(name)["restrictions"][0];
        assert_eq!(restriction["type"], "Location", "{name}");
        assert_eq!(restriction["reasonCode"], "NotAvailableForSubscription");
    }
    let zonal = row(SIZE);
    assert_eq!(zonal["restrictions"][0]["restrictionInfo"]["zones"], json!(["2"]));
    assert_eq!(
        zonal["locationInfo"][0]["zoneDetails"][0]["capabilities"][0]["name"],
        "UltraSSDAvailable"
    );
    assert!(rows.iter().any(|row| row["resourceType"] == "disks"));

    let put = async |size: &str, zone: &str| {
        let body = machine_body(size, &[zone], &json!({}));
        let answer = arm.put(&machine_url("m-1"), &[], &body).await;
        (answer.status, answer.code().to_owned())
    };
    assert_eq!(put("Standard_D8s_v5", "1").await, (400, "VMSizeNotSupported".to_owned()));
    assert_eq!(put("Standard_NC6s_v3", "1").await, (400, "VMSizeNotSupported".to_owned()));
    assert_eq!(put(SIZE, "2").await, (409, "SkuNotAvailable".to_owned()));
    assert_eq!(put(SIZE, "1").await.0, 201);
}

/// An address of the subnet for each machine, as far as they go.
#[tokio::test(start_paused = true)]
async fn machines_fill_their_subnet() {
    let path = "resourceGroups/net/providers/Microsoft.Network/virtualNetworks/v/subnets/small";
    let id = format!("/subscriptions/{SUBSCRIPTION}/{path}");
    let mut world = World::with(|config| {
        let small = json!({ "addressPrefix": "10.1.0.0/29" });
        config.surroundings.resources.insert(id.clone(), small);
    })
    .await;
    world.class.spec.vnet_subnet_id = Some(id);
    for number in 0..4 {
        let claim = claim(&format!("default-abc1{number}"), "1", &DEFAULT_POOL);
        let made = world.provider.create(&claim, &world.class, &[]).await;
        if number < 3 {
            assert!(made.is_ok(), "{number}: {made:?}");
            continue;
        }
        let error = made.unwrap_err();
        assert_eq!((error.class, &*error.code), (ErrorClass::NodeClassNotReady, "SubnetIsFull"));
    }
    let arm = Arm::new(&world.emulator).await;
    let subnet = arm.get(&format!("{BASE}/{path}?api-version=2024-05-01")).await;
    let taken = subnet.body.pointer("/properties/ipConfigurations").and_then(Value::as_array);
    assert_eq!(taken.map(Vec::len), Some(3), "{subnet:?}");
}
