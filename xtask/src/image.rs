//! A container image without a base image and without a builder: one layer with a static binary
//! and the CA roots, written as an archive.
//!
//! The archive is an OCI image layout with the `manifest.json` of `docker save` beside it, so that
//! `docker load`, `skopeo copy oci-archive:` and `crane push` all take it. Equal input gives equal
//! bytes: there are no times and no names of users in it.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use flate2::{Compression, GzBuilder};
use ring::digest::SHA256;
use serde_json::{Value, json};

/// The user that the process runs as.
const USER: &str = "65532:65532";
/// Where the binary finds the CA roots.
const CA_ROOTS: &str = "etc/ssl/certs/ca-certificates.crt";
/// Program header with the name of a dynamic linker.
const PT_INTERP: u32 = 3;

/// What an image is made of.
#[derive(Debug)]
pub struct Parts {
    /// The static binary.
    pub binary: Vec<u8>,
    /// CA roots in PEM.
    pub roots: Vec<u8>,
    /// Name and tag, such as `nap:0.1.0`.
    pub tag: String,
}

impl Parts {
    /// Reads the files.
    pub fn read(binary: &Path, roots: &Path, tag: &str) -> Result<Self> {
        let read = |path: &Path| std::fs::read(path).with_context(|| path.display().to_string());
        Ok(Self { binary: read(binary)?, roots: read(roots)?, tag: tag.to_owned() })
    }

    /// The archive.
    pub fn archive(&self) -> Result<Vec<u8>> {
        let architecture = architecture(&self.binary)?;
        ensure!(
            self.roots.windows(11).any(|part| part == b"BEGIN CERTI"),
            "the file of CA roots has no certificate: name one in PEM"
        );
        let layer = tar(&[
            ("etc/", 0o755, b"".as_slice()),
            ("etc/ssl/", 0o755, b""),
            ("etc/ssl/certs/", 0o755, b""),
            (CA_ROOTS, 0o644, &self.roots),
            ("nap", 0o755, &self.binary),
        ])?;
        let diff_id = digest(&layer);
        let layer = compress(&layer)?;
        let config = serde_json::to_vec(&json!({
            "architecture": architecture,
            "os": "linux",
            "config": {
                "User": USER,
                "Entrypoint": ["/nap"],
                "Cmd": ["run"],
                "ExposedPorts": { "8080/tcp": {}, "8081/tcp": {} },
                "Env": [format!("SSL_CERT_FILE=/{CA_ROOTS}")],
            },
            "rootfs": { "type": "layers", "diff_ids": [diff_id] },
        }))?;
        let manifest = serde_json::to_vec(&json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": descriptor("application/vnd.oci.image.config.v1+json", &config),
            "layers": [descriptor("application/vnd.oci.image.layer.v1.tar+gzip", &layer)],
        }))?;
        let mut of_index = descriptor("application/vnd.oci.image.manifest.v1+json", &manifest);
        of_index["platform"] = json!({ "architecture": architecture, "os": "linux" });
        of_index["annotations"] = json!({ "org.opencontainers.image.ref.name": self.tag });
        let index = serde_json::to_vec(&json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.index.v1+json",
            "manifests": [of_index],
        }))?;
        let of_docker = serde_json::to_vec(&json!([{
            "Config": blob(&config), "RepoTags": [self.tag], "Layers": [blob(&layer)],
        }]))?;
        tar(&[
            ("blobs/", 0o755, b""),
            ("blobs/sha256/", 0o755, b""),
            (&blob(&config), 0o644, &config),
            (&blob(&layer), 0o644, &layer),
            (&blob(&manifest), 0o644, &manifest),
            ("index.json", 0o644, &index),
            ("manifest.json", 0o644, &of_docker),
            ("oci-layout", 0o644, br#"{"imageLayoutVersion":"1.0.0"}"#),
        ])
    }
}

/// The architecture of an ELF binary, as Go names it. Fails if the binary is not static: the image
/// has no dynamic linker.
fn architecture(binary: &[u8]) -> Result<&'static str> {
    let bytes = |at: usize, length: usize| {
        binary.get(at..at + length).context("the binary is cut off: build it again")
    };
    ensure!(binary.starts_with(b"\x7fELF\x02\x01"), "the binary is not a 64-bit Linux program");
    let half = |at| Ok::<_, anyhow::Error>(u16::from_le_bytes(bytes(at, 2)?.try_into()?));
    let headers = usize::try_from(u64::from_le_bytes(bytes(0x20, 8)?.try_into()?))?;
    let (size, count) = (usize::from(half(0x36)?), usize::from(half(0x38)?));
    for header in 0..count {
        let kind = u32::from_le_bytes(bytes(headers + header * size, 4)?.try_into()?);
        ensure!(
            kind != PT_INTERP,
            "the binary needs a dynamic linker, which the image does not have: build it with \
             RUSTFLAGS='-C target-feature=+crt-static' and --target"
        );
    }
    match half(0x12)? {
        62 => Ok("amd64"),
        183 => Ok("arm64"),
        machine => bail!("there is no image for ELF machine {machine}"),
    }
}

/// A tar archive of directories, whose names end with a slash, and files, with their modes.
fn tar(entries: &[(&str, u32, &[u8])]) -> Result<Vec<u8>> {
    let mut builder = tar::Builder::new(Vec::new());
    for (name, mode, content) in entries {
        let mut header = tar::Header::new_ustar();
        header.set_mode(*mode);
        header.set_mtime(0);
        header.set_uid(0);
        header.set_gid(0);
        header.set_size(content.len() as u64);
        let is_folder = name.ends_with('/');
        header.set_entry_type(if is_folder {
            tar::EntryType::Directory
        } else {
            tar::EntryType::Regular
        });
        builder.append_data(&mut header, name, *content)?;
    }
    Ok(builder.into_inner()?)
}

fn compress(content: &[u8]) -> Result<Vec<u8>> {
    // Without the time and the system in the header.
    let mut encoder =
        GzBuilder::new().mtime(0).operating_system(255).write(Vec::new(), Compression::default());
    encoder.write_all(content)?;
    Ok(encoder.finish()?)
}

fn digest(content: &[u8]) -> String {
    let hash = ring::digest::digest(&SHA256, content);
    let mut text = "sha256:".to_owned();
    for byte in hash.as_ref() {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// Path of a blob in the archive.
fn blob(content: &[u8]) -> String {
    format!("blobs/{}", digest(content).replace(':', "/"))
}

fn descriptor(media_type: &str, content: &[u8]) -> Value {
    json!({ "mediaType": media_type, "digest": digest(content), "size": content.len() })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io::Read as _;

    use super::*;

    /// An ELF header for a machine with one program header of a kind.
    fn elf(machine: u16, program_header: u32) -> Vec<u8> {
        let mut binary = vec![0; 0x40 + 0x38];
        binary[..6].copy_from_slice(b"\x7fELF\x02\x01");
        binary[0x12..0x14].copy_from_slice(&machine.to_le_bytes());
        binary[0x20..0x28].copy_from_slice(&0x40_u64.to_le_bytes());
        binary[0x36..0x38].copy_from_slice(&0x38_u16.to_le_bytes());
        binary[0x38..0x3a].copy_from_slice(&1_u16.to_le_bytes());
        binary[0x40..0x44].copy_from_slice(&program_header.to_le_bytes());
        binary
    }

    fn parts(binary: Vec<u8>) -> Parts {
        let roots = b"-----BEGIN CERTIFICATE-----".to_vec();
        Parts { binary, roots, tag: "nap:test".to_owned() }
    }

    fn files(archive: &[u8]) -> BTreeMap<String, Vec<u8>> {
        let mut files = BTreeMap::new();
        for entry in tar::Archive::new(archive).entries().unwrap() {
            let mut entry = entry.unwrap();
            let name = entry.path().unwrap().display().to_string();
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            files.insert(name, content);
        }
        files
    }

    #[test]
    fn every_digest_names_what_is_in_the_archive() {
        let archive = parts(elf(62, 1)).archive().unwrap();
        let files = files(&archive);
        for (name, content) in files.iter().filter(|(name, _)| name.starts_with("blobs/sha256/")) {
            assert!(content.is_empty() || *name == blob(content), "{name}");
        }
        let read = |name: &str| -> Value { serde_json::from_slice(&files[name]).unwrap() };
        let path = |value: &Value| format!("blobs/{}", value.as_str().unwrap().replace(':', "/"));
        let manifest = read(&path(&read("index.json")["manifests"][0]["digest"]));
        let config = read(&path(&manifest["config"]["digest"]));
        assert_eq!(config["config"]["User"], USER);
        assert_eq!(config["architecture"], "amd64");
        let layer = &files[&path(&manifest["layers"][0]["digest"])];
        assert_eq!(manifest["layers"][0]["size"], layer.len());
        let mut plain = Vec::new();
        flate2::read::GzDecoder::new(layer.as_slice()).read_to_end(&mut plain).unwrap();
        assert_eq!(config["rootfs"]["diff_ids"][0], digest(&plain));
        assert_eq!(super::tests::files(&plain)["nap"], elf(62, 1));
        let docker = &read("manifest.json")[0];
        assert_eq!(docker["Layers"][0], path(&manifest["layers"][0]["digest"]));
        assert_eq!(parts(elf(62, 1)).archive().unwrap(), archive, "it is reproducible");
    }

    #[test]
    fn a_binary_that_could_not_start_is_refused() {
        let said = |binary| parts(binary).archive().unwrap_err().to_string();
        assert!(said(elf(62, PT_INTERP)).contains("needs a dynamic linker"));
        assert!(said(b"#!/bin/sh".to_vec()).contains("not a 64-bit Linux program"));
        assert!(said(elf(62, 1)[..0x30].to_vec()).contains("cut off"));
        assert!(said(elf(8, 1)).contains("ELF machine 8"));
        let empty = Parts { roots: Vec::new(), ..parts(elf(183, 1)) };
        assert!(empty.archive().unwrap_err().to_string().contains("no certificate"));
    }
}
