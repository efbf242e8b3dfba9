//! Node images of a node class: gallery definitions in order of preference, at their newest
//! versions.

use std::collections::BTreeMap;

use nap_api::aksnodeclass::{ImageFamily, NodeImage};
use nap_api::requirement::NodeSelectorRequirement;
use nap_api::{Operator, Requirements, labels};
use nap_cloud::CloudError;
use serde::{Deserialize, Serialize};

use crate::AzureConfig;
use crate::arm::ArmClient;
use crate::machines::API_VERSION;

/// A published image version, as the `nodeImageVersions` API returns it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ImageVersion {
    /// `<gallery>-<definition>-<version>`.
    #[serde(default)]
    pub full_name: String,
    /// Gallery, such as `AKSUbuntu`.
    pub os: String,
    /// Image definition, such as `2204gen2containerd`.
    pub sku: String,
    /// Version, such as `202508.20.0`.
    pub version: String,
}

/// Release of an image family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Release {
    Ubuntu2204,
    Ubuntu2404,
    AzureLinux2,
    AzureLinux3,
}

/// Image definition, architecture and Hyper-V generation.
type Definition = (&'static str, &'static str, &'static str);

impl Release {
    fn of(family: ImageFamily, kubernetes_version: &str) -> Self {
        let minor = minor_version(kubernetes_version);
        match family {
            ImageFamily::Ubuntu2404 => Self::Ubuntu2404,
            ImageFamily::Ubuntu if minor >= (1, 34) => Self::Ubuntu2404,
            ImageFamily::Ubuntu | ImageFamily::Ubuntu2204 => Self::Ubuntu2204,
            ImageFamily::AzureLinux if minor >= (1, 32) => Self::AzureLinux3,
            ImageFamily::AzureLinux => Self::AzureLinux2,
        }
    }

    fn definitions(self) -> [Definition; 3] {
        let [gen2, gen1, arm64] = match self {
            Self::Ubuntu2204 => ["2204gen2containerd", "2204containerd", "2204gen2arm64containerd"],
            Self::Ubuntu2404 => ["2404gen2containerd", "2404containerd", "2404gen2arm64containerd"],
            Self::AzureLinux2 => ["V2gen2", "V2", "V2gen2arm64"],
            Self::AzureLinux3 => ["V3gen2", "V3", "V3gen2arm64"],
        };
        [(gen2, "amd64", "2"), (gen1, "amd64", "1"), (arm64, "arm64", "2")]
    }

    /// Resource group and name of the shared gallery.
    fn gallery(self) -> (&'static str, &'static str) {
        match self {
            Self::Ubuntu2204 | Self::Ubuntu2404 => ("AKS-Ubuntu", "AKSUbuntu"),
            Self::AzureLinux2 | Self::AzureLinux3 => ("AKS-AzureLinux", "AKSAzureLinux"),
        }
    }
}

/// The `osSKU` of a machine.
pub fn os_sku(family: ImageFamily, kubernetes_version: &str) -> &'static str {
    match Release::of(family, kubernetes_version) {
        Release::Ubuntu2204 => "Ubuntu2204",
        Release::Ubuntu2404 => "Ubuntu2404",
        Release::AzureLinux2 | Release::AzureLinux3 => "AzureLinux",
    }
}

/// Gallery and definition names of a family, in order of preference.
pub fn definitions(
    family: ImageFamily,
    kubernetes_version: &str,
) -> Vec<(&'static str, &'static str)> {
    let release = Release::of(family, kubernetes_version);
    release.definitions().map(|(definition, _, _)| (release.gallery().1, definition)).to_vec()
}

/// Lists every image version that AKS has published in the region.
pub async fn list(arm: &ArmClient, config: &AzureConfig) -> Result<Vec<ImageVersion>, CloudError> {
    let path = format!(
        "/subscriptions/{}/providers/Microsoft.ContainerService/locations/{}/nodeImageVersions?api-version={API_VERSION}",
        config.subscription_id, config.location
    );
    arm.list("list node image versions", &path).await
}

/// The newest image of each published definition of a family, in order of preference.
pub fn resolve(
    config: &AzureConfig,
    family: ImageFamily,
    kubernetes_version: &str,
    published: &[ImageVersion],
) -> Vec<NodeImage> {
    let release = Release::of(family, kubernetes_version);
    let (group, gallery) = release.gallery();
    let mut newest: BTreeMap<&str, &str> = BTreeMap::new();
    for image in published.iter().filter(|image| image.os == gallery) {
        let entry = newest.entry(&image.sku).or_insert(&image.version);
        if version_key(&image.version) > version_key(entry) {
            *entry = &image.version;
        }
    }
    let requirement = |key: &str, value: &str| NodeSelectorRequirement {
        key: key.to_owned(),
        operator: Operator::In,
        values: vec![value.to_owned()],
        min_values: None,
    };
    release
        .definitions()
        .into_iter()
        .filter_map(|(definition, arch, generation)| {
            let version = newest.get(definition)?;
            Some(NodeImage {
                id: format!(
                    "/subscriptions/{}/resourceGroups/{group}/providers/Microsoft.Compute/galleries/{gallery}/images/{definition}/versions/{version}",
                    config.gallery_subscription_id
                ),
                requirements: vec![
                    requirement(labels::ARCH, arch),
                    requirement(labels::SKU_HYPERV_GENERATION, generation),
                ],
            })
        })
        .collect()
}

/// The first image that suits an instance type and the requirements of a NodeClaim.
pub fn select<'a>(
    images: &'a [NodeImage],
    instance_type: &Requirements,
    claim: &Requirements,
) -> Option<&'a NodeImage> {
    images.iter().find(|image| {
        let image = Requirements::from_specs(&image.requirements);
        instance_type.intersects(&image).is_ok() && claim.intersects(&image).is_ok()
    })
}

/// Hyper-V generation of a machine's image, by the name of its definition.
pub fn hyperv_generation(node_image_version: &str) -> &'static str {
    if node_image_version.contains("gen2") { "2" } else { "1" }
}

/// `<gallery>-<definition>-<version>` of a shared-gallery image id, as machines name their image.
pub fn node_image_version(id: &str) -> Option<String> {
    let parts: Vec<&str> = id.split('/').collect();
    let after = |name: &str| {
        let index = parts.iter().position(|part| part.eq_ignore_ascii_case(name))?;
        parts.get(index + 1).filter(|part| !part.is_empty())
    };
    Some(format!("{}-{}-{}", after("galleries")?, after("images")?, after("versions")?))
}

/// Sort key of a version: its dotted numbers, so that a longer version follows its own prefix.
fn version_key(version: &str) -> Vec<u64> {
    version.split('.').map(|part| part.parse().unwrap_or(0)).collect()
}

/// Major and minor number of a Kubernetes version.
fn minor_version(version: &str) -> (u64, u64) {
    let mut parts =
        version.trim_start_matches('v').split('.').map(|part| part.parse().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_version_of_each_definition_is_selected_in_order() {
        let config = AzureConfig::new("sub", "rg", "c", "eastus");
        let image = |os: &str, sku: &str, version: &str| ImageVersion {
            full_name: String::new(),
            os: os.into(),
            sku: sku.into(),
            version: version.into(),
        };
        let published = [
            image("AKSUbuntu", "2204gen2containerd", "202508.9.0"),
            image("AKSUbuntu", "2204gen2containerd", "202508.20.0"),
            image("AKSUbuntu", "2204gen2arm64containerd", "202508.20.0"),
            image("AKSUbuntu", "2404gen2containerd", "202509.1.0"),
        ];
        let images = resolve(&config, ImageFamily::Ubuntu, "1.33.4", &published);
        let names: Vec<_> =
            images.iter().filter_map(|image| node_image_version(&image.id)).collect();
        assert_eq!(
            names,
            [
                "AKSUbuntu-2204gen2containerd-202508.20.0",
                "AKSUbuntu-2204gen2arm64containerd-202508.20.0"
            ]
        );
    }

    #[test]
    fn the_release_of_a_family_follows_the_kubernetes_version() {
        for (family, version, expected) in [
            (ImageFamily::Ubuntu, "1.33.9", "Ubuntu2204"),
            (ImageFamily::Ubuntu, "1.34.0", "Ubuntu2404"),
            (ImageFamily::Ubuntu2204, "1.36.1", "Ubuntu2204"),
            (ImageFamily::AzureLinux, "1.31.0", "AzureLinux"),
        ] {
            assert_eq!(os_sku(family, version), expected);
        }
        assert_eq!(definitions(ImageFamily::AzureLinux, "1.32.0")[0].1, "V3gen2");
        assert_eq!(definitions(ImageFamily::AzureLinux, "1.31.0")[0].1, "V2gen2");
    }
}
