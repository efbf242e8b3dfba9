//! Node images of a node class: gallery definitions in order of preference, at their newest
//! versions.

use std::collections::BTreeMap;

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::Offset;
use nap_api::aksnodeclass::{AKSNodeClassSpec, FipsMode, ImageFamily, NodeImage};
use nap_api::requirement::NodeSelectorRequirement;
use nap_api::{Operator, Requirements, labels};
use nap_cloud::CloudError;
use serde::{Deserialize, Serialize};

use crate::AzureConfig;
use crate::arm::ArmClient;
use crate::machines::API_VERSION;

/// Separator of an image id before the version.
const VERSIONS: &str = "/versions/";

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

/// Choice of an image by a node class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImageChoice {
    /// Image family.
    pub family: ImageFamily,
    /// Whether the image has validated cryptography.
    pub fips: bool,
    /// Whether the VM has a virtual TPM or secure boot, which need an image of their own.
    pub trusted_launch: bool,
}

impl ImageChoice {
    /// The choice of a node class.
    pub fn of(spec: &AKSNodeClassSpec) -> Self {
        let launch = spec.security.as_ref().and_then(|security| security.trusted_launch.as_ref());
        Self {
            family: spec.image_family,
            fips: spec.fips_mode == Some(FipsMode::Fips),
            trusted_launch: launch
                .is_some_and(|it| it.vtpm == Some(true) || it.secure_boot == Some(true)),
        }
    }

    /// Whether it has an image for arm64. Without a Kubernetes version, the newest is assumed.
    pub fn has_arm64(self, kubernetes_version: Option<&str>) -> bool {
        let release = Release::of(self, kubernetes_version.unwrap_or("999.0"));
        release.definitions(self).iter().any(|(_, arch, _)| *arch == "arm64")
    }
}

/// Release of an image family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Release {
    Ubuntu2004,
    Ubuntu2204,
    Ubuntu2404,
    AzureLinux2,
    AzureLinux3,
}

/// Image definition, architecture and Hyper-V generation.
type Definition = (&'static str, &'static str, &'static str);

impl Release {
    fn of(choice: ImageChoice, kubernetes_version: &str) -> Self {
        let minor = minor_version(kubernetes_version);
        match choice.family {
            ImageFamily::Ubuntu2204 => Self::Ubuntu2204,
            // Only 20.04 has images with validated cryptography and without trusted launch, and
            // 24.04 has none at all.
            ImageFamily::Ubuntu if choice.fips && !choice.trusted_launch => Self::Ubuntu2004,
            ImageFamily::Ubuntu if choice.trusted_launch || minor < (1, 34) => Self::Ubuntu2204,
            ImageFamily::Ubuntu | ImageFamily::Ubuntu2404 => Self::Ubuntu2404,
            ImageFamily::AzureLinux if minor >= (1, 32) => Self::AzureLinux3,
            ImageFamily::AzureLinux => Self::AzureLinux2,
        }
    }

    /// Image definitions in order of preference; none if AKS publishes no such image.
    fn definitions(self, choice: ImageChoice) -> Vec<Definition> {
        let names: &[&'static str] = match (self, choice.fips, choice.trusted_launch) {
            (Self::Ubuntu2004, true, _) => &["2004gen2fipscontainerd", "2004fipscontainerd"],
            (Self::Ubuntu2204, true, true) => &["2204gen2fipsTLcontainerd"],
            (Self::AzureLinux2, true, _) => &["V2gen2fips", "V2fips"],
            (Self::AzureLinux3, true, _) => &["V3gen2fips", "V3fips", "V3gen2arm64fips"],
            (Self::Ubuntu2204, false, true) => &["2204gen2TLcontainerd"],
            (Self::Ubuntu2404, false, true) => &["2404gen2TLcontainerd"],
            (Self::AzureLinux2, false, true) => &["V2gen2TL"],
            (Self::AzureLinux3, false, true) => &["V3gen2TL"],
            (Self::Ubuntu2204, false, false) => {
                &["2204gen2containerd", "2204containerd", "2204gen2arm64containerd"]
            }
            (Self::Ubuntu2404, false, false) => {
                &["2404gen2containerd", "2404containerd", "2404gen2arm64containerd"]
            }
            (Self::AzureLinux2, false, false) => &["V2gen2", "V2", "V2gen2arm64"],
            (Self::AzureLinux3, false, false) => &["V3gen2", "V3", "V3gen2arm64"],
            (Self::Ubuntu2004, false, _) | (Self::Ubuntu2204 | Self::Ubuntu2404, true, _) => &[],
        };
        let platform = |name: &&'static str| {
            let arch = if name.contains("arm64") { "arm64" } else { "amd64" };
            (*name, arch, hyperv_generation(name))
        };
        names.iter().map(platform).collect()
    }

    /// Resource group and name of the shared gallery.
    fn gallery(self) -> (&'static str, &'static str) {
        match self {
            Self::Ubuntu2004 | Self::Ubuntu2204 | Self::Ubuntu2404 => ("AKS-Ubuntu", "AKSUbuntu"),
            Self::AzureLinux2 | Self::AzureLinux3 => ("AKS-AzureLinux", "AKSAzureLinux"),
        }
    }
}

/// The `osSKU` of a machine. It is that of the image, also where the incumbent names another
/// release (trusted launch with Kubernetes 1.34 or later).
pub fn os_sku(choice: ImageChoice, kubernetes_version: &str) -> &'static str {
    match Release::of(choice, kubernetes_version) {
        // With validated cryptography AKS chooses the release of Ubuntu by itself.
        Release::Ubuntu2004 => "Ubuntu",
        Release::Ubuntu2204 if choice.fips && choice.family == ImageFamily::Ubuntu => "Ubuntu",
        Release::Ubuntu2204 => "Ubuntu2204",
        Release::Ubuntu2404 => "Ubuntu2404",
        Release::AzureLinux2 | Release::AzureLinux3 => "AzureLinux",
    }
}

/// Gallery and definition names of a choice, in order of preference.
pub fn definitions(
    choice: ImageChoice,
    kubernetes_version: &str,
) -> Vec<(&'static str, &'static str)> {
    let release = Release::of(choice, kubernetes_version);
    let gallery = release.gallery().1;
    release.definitions(choice).into_iter().map(|(name, _, _)| (gallery, name)).collect()
}

/// Lists every image version that AKS has published in the region.
pub async fn list(arm: &ArmClient, config: &AzureConfig) -> Result<Vec<ImageVersion>, CloudError> {
    let path = format!(
        "/subscriptions/{}/providers/Microsoft.ContainerService/locations/{}/nodeImageVersions?api-version={API_VERSION}",
        config.subscription_id, config.location
    );
    arm.list("list node image versions", &path).await
}

/// The newest image of each published definition of a choice, in order of preference.
pub fn resolve(
    config: &AzureConfig,
    choice: ImageChoice,
    kubernetes_version: &str,
    published: &[ImageVersion],
) -> Vec<NodeImage> {
    let release = Release::of(choice, kubernetes_version);
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
        .definitions(choice)
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

/// An image at another version.
pub(crate) fn at_version(image: &NodeImage, version: &str) -> NodeImage {
    let (definition, _) = split_version(&image.id);
    NodeImage { id: format!("{definition}{VERSIONS}{version}"), ..image.clone() }
}

/// Whether two images are versions of one definition.
pub(crate) fn is_same_definition(one: &NodeImage, other: &NodeImage) -> bool {
    split_version(&one.id).0.eq_ignore_ascii_case(split_version(&other.id).0)
}

/// Time of publication, by the version of an image id: `202508.20.0` is of 2025-08-20. `None` if
/// the version is of another form.
pub(crate) fn published_at(id: &str) -> Option<Timestamp> {
    let mut parts = split_version(id).1.split('.');
    let (month, day) = (parts.next()?, parts.next()?);
    let (year, month) = month.split_at_checked(4)?;
    let date = Date::new(year.parse().ok()?, month.parse().ok()?, day.parse().ok()?).ok()?;
    Offset::UTC.to_timestamp(date.at(0, 0, 0, 0)).ok()
}

/// Definition and version of an image id.
fn split_version(id: &str) -> (&str, &str) {
    id.rsplit_once(VERSIONS).unwrap_or((id, ""))
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
        let images = resolve(&config, ImageChoice::default(), "1.33.4", &published);
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

    /// Family, FIPS, trusted launch, versions, `osSKU` and definitions.
    type Row = (ImageFamily, bool, bool, &'static [&'static str], &'static str, &'static str);

    /// The images that AKS has.
    const TABLE: &[Row] = {
        use ImageFamily::{AzureLinux, Ubuntu, Ubuntu2204, Ubuntu2404};
        const ALL: &[&str] = &["1.31.0", "1.33.9", "1.34.0", "1.36.1"];
        const OLD: &[&str] = &["1.31.0", "1.33.9"];
        const NEW: &[&str] = &["1.34.0", "1.36.1"];
        const NORMAL_2204: &str = "2204gen2containerd 2204containerd 2204gen2arm64containerd";
        const NORMAL_2404: &str = "2404gen2containerd 2404containerd 2404gen2arm64containerd";
        &[
            (Ubuntu, false, false, OLD, "Ubuntu2204", NORMAL_2204),
            (Ubuntu, false, false, NEW, "Ubuntu2404", NORMAL_2404),
            (Ubuntu, false, true, ALL, "Ubuntu2204", "2204gen2TLcontainerd"),
            (Ubuntu, true, false, ALL, "Ubuntu", "2004gen2fipscontainerd 2004fipscontainerd"),
            (Ubuntu, true, true, ALL, "Ubuntu", "2204gen2fipsTLcontainerd"),
            (Ubuntu2204, false, false, ALL, "Ubuntu2204", NORMAL_2204),
            (Ubuntu2204, false, true, ALL, "Ubuntu2204", "2204gen2TLcontainerd"),
            (Ubuntu2204, true, false, ALL, "Ubuntu2204", ""),
            (Ubuntu2204, true, true, ALL, "Ubuntu2204", "2204gen2fipsTLcontainerd"),
            (Ubuntu2404, false, false, ALL, "Ubuntu2404", NORMAL_2404),
            (Ubuntu2404, false, true, ALL, "Ubuntu2404", "2404gen2TLcontainerd"),
            (Ubuntu2404, true, false, ALL, "Ubuntu2404", ""),
            (AzureLinux, false, false, &["1.31.0"], "AzureLinux", "V2gen2 V2 V2gen2arm64"),
            (AzureLinux, false, false, &["1.32.0"], "AzureLinux", "V3gen2 V3 V3gen2arm64"),
            (AzureLinux, false, true, &["1.31.0"], "AzureLinux", "V2gen2TL"),
            (AzureLinux, false, true, NEW, "AzureLinux", "V3gen2TL"),
            (AzureLinux, true, false, &["1.31.0"], "AzureLinux", "V2gen2fips V2fips"),
            (AzureLinux, true, false, NEW, "AzureLinux", "V3gen2fips V3fips V3gen2arm64fips"),
        ]
    };

    #[test]
    fn images_follow_family_fips_trusted_launch_and_kubernetes_version() {
        for (family, fips, trusted_launch, versions, sku, expected) in TABLE {
            let choice =
                ImageChoice { family: *family, fips: *fips, trusted_launch: *trusted_launch };
            for version in *versions {
                assert_eq!(os_sku(choice, version), *sku, "{choice:?} {version}");
                let names: Vec<_> =
                    definitions(choice, version).into_iter().map(|(_, name)| name).collect();
                assert_eq!(names.join(" "), *expected, "{choice:?} {version}");
            }
        }
    }
}
