//! Instance types and offerings of the provider, node class validation, catalogue refresh.

use nap_api::{AKSNodeClass, labels};
use nap_azure::arm::{ArmClient, StaticToken};
use nap_azure::embedded::EmbeddedCatalogue;
use nap_azure::embedded::refresh;
use nap_cloud::{CloudProvider, ErrorClass, NodeClassCondition, NodeClassFinding};
use nap_engine::CapacityType;

use crate::world::{DEFAULT_POOL, World, claim};

#[tokio::test(start_paused = true)]
async fn instance_types_come_from_all_pages() {
    let world = World::with(|config| config.page_size = 97).await;
    let types = world.provider.instance_types(&world.class).await.unwrap();
    assert!(types.types().len() > 600, "{}", types.types().len());
    let d4 = types.types().iter().find(|kind| kind.name == "Standard_D4s_v5").unwrap();
    assert_eq!(d4.offerings.len(), 8, "three zones and the region, two ways to pay");
    assert_eq!(d4.requirements.get(labels::SKU_SERIES).unwrap().single(), Some("Ds_v5"));
    let price =
        |kind| d4.offerings.iter().find(|offering| offering.capacity_type == kind).unwrap().price;
    assert_eq!(price(CapacityType::OnDemand).to_string(), "$0.192");
    assert!(price(CapacityType::Spot) < price(CapacityType::OnDemand));
    assert!(d4.offerings.iter().all(|offering| offering.available));
    let burstable = types.types().iter().find(|kind| kind.name == "Standard_B4ms").unwrap();
    let spot =
        burstable.offerings.iter().filter(|offering| offering.capacity_type == CapacityType::Spot);
    assert!(
        spot.into_iter().all(|offering| !offering.available),
        "burstable sizes are not sold as spot"
    );
}

#[tokio::test(start_paused = true)]
async fn sizes_and_prices_are_fetched_once_and_cached() {
    let world = World::new().await;
    for index in 0..5 {
        let class = AKSNodeClass::default();
        world.provider.instance_types(&class).await.unwrap();
        let claim = claim(&format!("default-{index:05}"), "1", &DEFAULT_POOL);
        world.provider.create(&claim, &world.class, &[]).await.unwrap();
    }
    let requests = world.emulator.requests();
    let pages = requests["GET skus"];
    world.provider.instance_types(&world.class).await.unwrap();
    assert_eq!(world.emulator.requests()["GET skus"], pages);
    assert!(pages < 10 && requests["GET prices"] < 30, "{requests:?}");
    assert_eq!(requests["GET token"], 1);
}

#[tokio::test(start_paused = true)]
async fn unknown_or_malformed_subnet_is_reported_with_its_reason() {
    let world = World::new().await;
    let base = "/subscriptions/00000000-0000-0000-0000-000000000001/resourceGroups/byo/providers/Microsoft.Network";
    for (id, reason) in [
        (format!("{base}/virtualNetworks/v/subnets/missing"), "SubnetNotFound"),
        ("/not/a/subnet".to_owned(), "SubnetIDInvalid"),
    ] {
        let mut class = AKSNodeClass::default();
        class.spec.vnet_subnet_id = Some(id);
        let report = world.provider.inspect_node_class(&class).await;
        match &report.findings[&NodeClassCondition::Subnets] {
            NodeClassFinding::Violated { reason: found, .. } => assert_eq!(found, reason),
            other => panic!("{other:?}"),
        }
        assert_eq!(report.kubernetes_version.as_deref(), Some("1.34.1"));
        let images = report.images.unwrap();
        assert_eq!(images.len(), 3);
        let newest = "/AKSUbuntu/images/2404gen2containerd/versions/202610.12.0";
        assert!(images[0].id.ends_with(newest));
    }
}

#[tokio::test(start_paused = true)]
async fn node_class_that_is_not_ready_creates_no_vm() {
    let world = World::new().await;
    let claim = claim("default-abc12", "1", &DEFAULT_POOL);
    let error = world.provider.create(&claim, &AKSNodeClass::default(), &[]).await.unwrap_err();
    assert_eq!(error.class, ErrorClass::NodeClassNotReady);
    assert_eq!(world.emulator.machines(), []);
}

#[tokio::test(start_paused = true)]
async fn catalogue_refresh_rewrites_one_region() {
    let world = World::new().await;
    let service = world.emulator.http_service();
    let prices =
        ArmClient::anonymous(service.clone(), world.clock.clone(), "https://prices.azure.com");
    let embedded = EmbeddedCatalogue::embedded();
    let mut catalogue = EmbeddedCatalogue::default();
    let subscription = "00000000-0000-0000-0000-000000000001";
    let found =
        refresh::refresh(&mut catalogue, world.provider.arm(), &prices, subscription, "East US")
            .await
            .unwrap();
    assert_eq!(found.sizes, embedded.skus_in("eastus").count());
    assert_eq!(found.unpriced, 0);
    // Of all meters, also of Windows, Cloud Services and past years, the price was read.
    let (read, listed) = (catalogue.prices_in("eastus"), embedded.prices_in("eastus"));
    assert!(read.on_demand.len() > 900);
    for sku in embedded.skus_in("eastus") {
        assert_eq!(read.on_demand.get(&sku.name), listed.on_demand.get(&sku.name), "{}", sku.name);
        assert_eq!(read.spot.get(&sku.name), listed.spot.get(&sku.name), "{}", sku.name);
    }
    assert!(catalogue.region("eastus").unwrap().is_live);
    assert_eq!(catalogue.region("eastus").unwrap().zones, ["1", "2", "3"]);
    let folder = std::env::temp_dir().join(format!("nap-refresh-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    refresh::write_files(&catalogue, &folder).unwrap();
    let read = refresh::read_files(&folder).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(read == catalogue);

    let refused = ArmClient::new(
        service,
        std::sync::Arc::new(StaticToken("wrong".to_owned())),
        world.clock.clone(),
        "https://management.azure.com",
    );
    let error = refresh::refresh(&mut catalogue, &refused, &prices, subscription, "eastus")
        .await
        .unwrap_err();
    assert!(error.to_string().contains("access token is invalid"), "{error}");
    assert!(read == catalogue, "a failed refresh changes nothing");
}
