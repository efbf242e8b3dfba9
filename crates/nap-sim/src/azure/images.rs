//! Node images that AKS publishes in the region, and which VMs they boot.

use serde_json::{Value, json};

use super::EmulatorConfig;
use super::maintenance::Changes;
use super::request::{Answer, ArmRequest, Refusal, page};
use super::sizes::VmSize;

/// Galleries and their image definitions. The name of a definition tells the rest: generation 2,
/// 64-bit Arm, trusted launch (`TL`) and FIPS.
const GALLERIES: [(&str, &[&str]); 2] = [
    (
        "AKSUbuntu",
        &[
            "2004fipscontainerd",
            "2004gen2fipscontainerd",
            "2204containerd",
            "2204gen2TLcontainerd",
            "2204gen2arm64containerd",
            "2204gen2containerd",
            "2204gen2fipsTLcontainerd",
            "2404containerd",
            "2404gen2TLcontainerd",
            "2404gen2arm64containerd",
            "2404gen2containerd",
        ],
    ),
    (
        "AKSAzureLinux",
        &[
            "V2",
            "V2fips",
            "V2gen2",
            "V2gen2TL",
            "V2gen2arm64",
            "V2gen2fips",
            "V3",
            "V3fips",
            "V3gen2",
            "V3gen2TL",
            "V3gen2arm64",
            "V3gen2arm64fips",
            "V3gen2fips",
        ],
    ),
];

/// Gallery, definition and version of every version of every image, the newest of an image last.
pub(crate) fn published_images(
    config: &EmulatorConfig,
    changes: &Changes,
) -> Vec<(&'static str, &'static str, String)> {
    let all =
        GALLERIES.iter().flat_map(|(gallery, names)| names.iter().map(|name| (*gallery, *name)));
    all.flat_map(|(gallery, name)| {
        let versions = changes.image_versions(config).into_iter();
        versions.map(move |version| (gallery, name, version.to_owned()))
    })
    .collect()
}

/// The list of `nodeImageVersions`.
pub(crate) fn list_images(
    config: &EmulatorConfig,
    changes: &Changes,
    request: &ArmRequest,
) -> Answer {
    let images: Vec<Value> = published_images(config, changes)
        .into_iter()
        .map(|(os, sku, version)| {
            let full_name = format!("{os}-{sku}-{version}");
            json!({ "fullName": full_name, "os": os, "sku": sku, "version": version })
        })
        .collect();
    page(request, &images, config.page_size, ("value", "nextLink"))
}

/// The image of a machine: the one that it names, or the newest for its operating system and size.
/// Refuses an image that is not published, or that the size cannot boot.
pub(crate) fn choose_image(
    config: &EmulatorConfig,
    changes: &Changes,
    size: &VmSize,
    properties: &Value,
) -> Result<String, Refusal> {
    let text = |pointer: &str| properties.pointer(pointer).and_then(Value::as_str);
    let flag = |pointer: &str| properties.pointer(pointer).and_then(Value::as_bool) == Some(true);
    let invalid = |message: String| Refusal::new(400, "InvalidParameter", message);
    let os_sku = text("/operatingSystem/osSKU").unwrap_or("Ubuntu");
    let Some(wanted) = text("/nodeImageVersion") else {
        let trusted = flag("/security/enableVTPM") || flag("/security/enableSecureBoot");
        let fips = flag("/operatingSystem/enableFIPS");
        let version = changes.kubernetes_version(config);
        let name = newest_definition(version, size, os_sku, trusted, fips);
        let published = published_images(config, changes);
        let newest = published.iter().rev().find(|(_, definition, _)| *definition == name);
        return newest
            .map(|(gallery, name, version)| format!("{gallery}-{name}-{version}"))
            .ok_or_else(|| invalid(format!("There is no node image '{name}' for {}.", size.name)));
    };
    let published = published_images(config, changes)
        .into_iter()
        .find(|(gallery, name, version)| wanted == format!("{gallery}-{name}-{version}"));
    let Some((gallery, name, _)) = published else {
        return Err(invalid(format!("The node image version '{wanted}' is not available.")));
    };
    if gallery.trim_start_matches("AKS").trim_end_matches(char::is_numeric)
        != os_sku.trim_end_matches(char::is_numeric)
    {
        let message = format!("The node image '{wanted}' is not one of osSKU '{os_sku}'.");
        return Err(invalid(message));
    }
    let arch = if name.contains("arm64") { "arm64" } else { "amd64" };
    if arch != size.arch {
        let message = format!(
            "The selected VM size '{}' has the architecture {}; the image '{wanted}' is of {arch}.",
            size.name, size.arch
        );
        return Err(Refusal::new(400, "BadRequest", message));
    }
    let generation = if name.contains("gen2") { '2' } else { '1' };
    if !size.generations.contains(generation) {
        let message = format!(
            "The selected VM size '{}' cannot boot Hypervisor Generation '{generation}'.",
            size.name
        );
        return Err(Refusal::new(400, "BadRequest", message));
    }
    Ok(wanted.to_owned())
}

fn newest_definition(
    kubernetes_version: &str,
    size: &VmSize,
    os_sku: &str,
    trusted_launch: bool,
    fips: bool,
) -> String {
    let minor = kubernetes_version.split('.').nth(1).and_then(|minor| minor.parse().ok());
    let newer = minor.is_some_and(|minor: u32| minor >= 34);
    let (release, suffix) = match os_sku {
        "AzureLinux" | "AzureLinux3" => ("V3", ""),
        "Ubuntu2204" => ("2204", "containerd"),
        "Ubuntu2404" => ("2404", "containerd"),
        _ if fips && !trusted_launch => ("2004", "containerd"),
        _ if newer && !fips => ("2404", "containerd"),
        _ => ("2204", "containerd"),
    };
    let generation = if size.generations.contains('2') { "gen2" } else { "" };
    let arm = if size.arch == "arm64" { "arm64" } else { "" };
    let fips = if fips { "fips" } else { "" };
    let trusted = if trusted_launch { "TL" } else { "" };
    format!("{release}{generation}{arm}{fips}{trusted}{suffix}")
}
